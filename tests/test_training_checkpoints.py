"""Checkpoints: exact continuation, also after kill -9; names; keeping, averaging, damage."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, training
from returnn_common.training import checkpoints
from returnn_common.zoo.augmentation.specaugment import make_specaugment

BACKENDS = ["tensorflow-net-dict", "torch"]
TIME = nn.SpatialDim("time")
FEATURES = nn.FeatureDim("features", 6)
CLASSES = nn.FeatureDim("classes", 3)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}


class Model(nn.Module):
    """with SpecAugment, noise, dropout, and running statistics"""

    def __init__(self, hidden: int = 5, *, augment: bool = False):
        super().__init__()
        self.augment = make_specaugment() if augment else None
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", hidden))
        self.norm = nn.BatchNorm(self.hidden.out_dim)
        self.output = nn.Linear(self.hidden.out_dim, CLASSES)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        if self.augment is not None:
            x = self.augment(x, spatial_dim=TIME)
        x = x + nn.random_normal(x.dims, stddev=0.1, dtype="float32")
        x = self.norm(nn.tanh(self.hidden(x)))
        return self.output(nn.dropout(x, 0.3))


def train_step(*, model, extern_data, **_):
    nn.cross_entropy(model(extern_data["data"]), extern_data["classes"]).mark_as_loss()


def batches(epoch):
    """ragged, and other ones in each epoch"""
    rng = numpy.random.RandomState(epoch)
    for _ in range(5):
        lengths = rng.randint(2, 7, size=3).astype("int32")
        data = rng.normal(size=(3, lengths.max(), 6)).astype("float32")
        labels = data[:, :, :3].argmax(axis=-1).astype("int32")
        yield {"data": data, "data:size1": lengths, "classes": labels}


def make_session(backend, model=None, **options):
    return training.Session(
        model or Model(), extern_data=EXTERN_DATA, backend=backend, learning_rate=0.05, **options
    )


def run(backend, folder, pause=0.0):
    """two loops in each of three epochs, saved after every second update and at the end of an epoch"""
    session = make_session(backend, Model(augment=True), seed=3)
    train = session.step(train_step)
    session.resume(folder)
    Path(folder, "started").touch()
    for epoch in session.epochs(3):
        for loop in range(2):
            for batch in session.batches(batches(10 * epoch + loop)):
                loss = train(batch)["cross_entropy"]
                time.sleep(pause)
                session.state["losses"] = [*session.state.get("losses", []), float(loss)]
                if session.global_train_step % 2 == 0:
                    session.save(folder)
        session.save(folder)
        checkpoints.remove_others(folder, keep_last=2)
    numpy.savez(
        Path(folder, "result.npz"),
        losses=numpy.array(session.state["losses"]),
        **session.parameters,
        **{f"optimizer/{k}": v for k, v in session._engine.get_optimizer_state().items()},
    )
    session.close()


# --- kill -9


def kill_at(moment):
    """this process, when the function ``moment[0]`` of os is called for the ``moment[1]``-th time"""
    name, number, after = moment
    original, calls = getattr(os, name), []

    def call(*args, **kwargs):
        calls.append(name)
        if len(calls) == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if len(calls) == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, call)


#: In a save (files written, named or not), and in the first and the second loop of an epoch.
MOMENTS = {
    "torch": [
        ("fsync", 3, False),
        ("rename", 2, False),
        ("rename", 3, True),
        ("rename", 4, False),
        ("fsync", 8, True),
    ],
    "tensorflow-net-dict": [("rename", 3, False), ("fsync", 8, True)],  # each takes longer
}


def in_child(target, *args, kill=None):
    """
    ``target`` in a process that is forked off; gives whether it ended well. ``kill`` is a file and a number of seconds:
    it is killed so long after the file is there, or, for a number below zero, soon after its start.
    """
    child = os.fork()
    if not child:
        try:
            target(*args)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if kill is not None:
        file, seconds = kill
        while seconds > 0 and not file.exists():
            time.sleep(0.01)
        time.sleep(abs(seconds))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the training failed")
    return os.WIFEXITED(status)


def run_until_killed(backend, folder, moment):
    kill_at(moment)
    run(backend, folder)


def run_with_kills(backend, folder, moments):
    """in a process that has imported the framework, but started nothing of it"""
    importlib.import_module(
        "returnn.torch.frontend" if backend == "torch" else "returnn.tf.network"
    )
    pause = 0.1 if any(isinstance(moment, float) for moment in moments) else 0.0
    in_child(run, backend, f"{folder}/undisturbed", pause)
    for moment in moments:
        if isinstance(moment, float):
            started = Path(folder, "killed/started")
            started.unlink(missing_ok=True)
            ended = in_child(run, backend, f"{folder}/killed", pause, kill=(started, moment))
            print("killed" if not ended else "ended")
        else:
            assert not in_child(run_until_killed, backend, f"{folder}/killed", moment), moment
            print("killed")
    assert in_child(run, backend, f"{folder}/killed", pause)


def kill_and_compare(backend, folder, moments):
    for name in ("undisturbed", "killed"):
        (folder / name).mkdir()
    code = (
        f"import runpy; test = runpy.run_path({__file__!r}); "
        f"test['run_with_kills']({backend!r}, {str(folder)!r}, {moments!r})"
    )
    path = os.pathsep.join([str(Path(nn.__file__).parent.parent.parent), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    expected = dict(numpy.load(folder / "undisturbed/result.npz"))
    assert len(expected["losses"]) == 30
    got = dict(numpy.load(folder / "killed/result.npz"))
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        numpy.testing.assert_array_equal(got[key], value, err_msg=key)
    assert not list(folder.glob("killed/.*"))
    return result.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_chosen_moments_goes_on_exactly(backend, tmp_path):
    kill_and_compare(backend, tmp_path, MOMENTS[backend])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_20_random_moments_goes_on_exactly(backend, tmp_path):
    moments = [random.uniform(-0.1, 0.5) for _ in range(20)]
    out = kill_and_compare(backend, tmp_path, moments)
    assert out.count("killed") >= 10, (out, moments)


# --- continuing in one process


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """for each backend: a folder with checkpoints after 2, 4 and 5 updates, and the parameters at the end"""
    result = {}
    for backend in BACKENDS:
        folder = tmp_path_factory.mktemp(backend)
        session = make_session(backend)
        train = session.step(train_step)
        for epoch in session.epochs(1):
            for batch in session.batches(batches(epoch)):
                train(batch)
                if session.global_train_step % 2 == 0:
                    session.state["alignments"] = {"seq-1": numpy.array([1, 2]), "best": None}
                    session.save(folder, metrics={"dev_loss": abs(session.global_train_step - 3.5)})
        session.save(folder)
        result[backend] = folder, session.parameters
    return result


def test_files_of_a_checkpoint(saved):
    folder, parameters = saved["torch"]
    found = checkpoints.paths(folder)
    assert [path.name for path in found] == ["step-00000002", "step-00000004", "step-00000005"]
    assert checkpoints.last(folder) == found[-1]
    files = ["optimizer.safetensors", "parameters.safetensors", "session.json", "state.safetensors"]
    assert sorted(file.name for file in found[0].iterdir()) == files
    info = json.loads((found[0] / "session.json").read_text())
    assert info["epoch"] == 1 and info["global_train_step"] == 2
    assert info["place"] == {"is_done": False, "loop": 0, "number": 2}
    values = checkpoints.read_parameters(found[-1])
    assert values.keys() == parameters.keys()
    for name, value in parameters.items():
        numpy.testing.assert_array_equal(values[name], value)


@pytest.mark.parametrize("source", BACKENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_resume_on_either_backend(saved, source, backend):
    folder, parameters = saved[source]
    session = make_session(backend)
    assert session.is_new_run
    assert session.resume(folder)
    assert not session.is_new_run
    assert session.epoch == 1 and session.global_train_step == 5
    for name, value in parameters.items():
        numpy.testing.assert_array_equal(session.parameters[name], value, err_msg=name)
    state = session._engine.get_optimizer_state()
    expected = checkpoints.read_arrays(checkpoints.last(folder) / "optimizer.safetensors")
    assert (
        state.keys()
        == expected.keys()
        == {f"{name}/{slot}" for name in parameters if "running" not in name for slot in "mv"}
    )
    for name, value in expected.items():
        numpy.testing.assert_array_equal(state[name], value, err_msg=name)
    numpy.testing.assert_array_equal(session.state["alignments"]["seq-1"], [1, 2])
    assert session.state["alignments"]["best"] is None
    assert list(session.epochs(1)) == [] and list(session.epochs(2)) == [2]


def test_both_backends_go_on_alike(saved):
    """the step count of Adam's bias correction goes along"""

    def step(*, model, extern_data, **_):
        logits = model.output(nn.tanh(model.hidden(extern_data["data"])))
        nn.cross_entropy(logits, extern_data["classes"]).mark_as_loss()

    results = []
    for backend in BACKENDS:
        session = make_session(backend)
        session.resume(saved["torch"][0])
        train = session.step(step)
        results.append([train(batch)["cross_entropy"] for batch in batches(2)])
    numpy.testing.assert_allclose(*results, rtol=1e-5)


def test_resume_without_checkpoints(tmp_path):
    session = make_session("torch")
    assert not session.resume(tmp_path / "nothing")
    assert session.is_new_run


def test_another_run_does_not_mix_in(saved):
    folder, _ = saved["torch"]
    with pytest.raises(ValueError, match="has checkpoints of another run; continue it with"):
        make_session("torch").save(folder)
    session = make_session("torch", optimizer={"class": "sgd"})
    with pytest.raises(ValueError, match=r"the optimizers \['Adam'\], here are \['Sgd'\]"):
        session.resume(folder)


# --- the place in the data


def test_batches_are_drawn_again_or_begin_at_a_number(tmp_path):
    def interrupted(session, source):
        for _ in session.epochs(1):
            for number in session.batches(range(3)):
                seen.append(("first", number))
            for number in session.batches(source):
                seen.append(("second", number))
                if number == 1:
                    return session.save(tmp_path / "inside")

    seen = []
    session = make_session("torch")
    interrupted(session, range(4))
    for source in (range(4), lambda start: range(start, 4)):
        seen.clear()
        session = make_session("torch")
        session.resume(tmp_path / "inside")
        interrupted(session, source)
        assert seen == [("second", 2), ("second", 3)]


def test_a_loop_that_is_left_is_done(tmp_path):
    session = make_session("torch")
    for _ in session.epochs(1):
        for _ in session.batches(range(3)):
            break
        session.save(tmp_path)
    session = make_session("torch")
    session.resume(tmp_path)
    assert list(session.epochs(2)) == [2]


def test_save_between_loops(tmp_path):
    session = make_session("torch")
    for _ in session.epochs(1):
        for _ in session.batches(range(3)):
            pass
        session.save(tmp_path, epoch_is_done=False)
    session = make_session("torch")
    session.resume(tmp_path)
    assert [
        (e, list(session.batches("abc")), list(session.batches("de"))) for e in session.epochs(1)
    ] == [(1, [], ["d", "e"])]


def test_random_generators_go_on(tmp_path):
    session = make_session("torch")
    random.seed(5), numpy.random.seed(6)
    session.save(tmp_path)
    expected = random.random(), numpy.random.normal(size=3).tolist()
    random.seed(1), numpy.random.seed(1)
    make_session("torch").resume(tmp_path)
    assert (random.random(), numpy.random.normal(size=3).tolist()) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: 2}, "state/user/x has the key 1, expected strings"),
        ([object()], "state/user/x/0 is a object"),
        (numpy.array(["a"]), "an array of type <U1"),
    ],
)
def test_state_that_cannot_be_saved(tmp_path, value, message):
    session = make_session("torch")
    session.state["x"] = value
    with pytest.raises(TypeError, match=message):
        session.save(tmp_path)
    assert not list(tmp_path.iterdir())


# --- load


@pytest.fixture
def other_names(tmp_path):
    """a file as of another model"""
    values = {
        "enc.hidden.weight": numpy.full([6, 5], 0.25, dtype="float32"),
        "enc.hidden.bias": numpy.full([5], 0.5, dtype="float32"),
        "head.weight": numpy.full([5, 9], 0.75, dtype="float32"),
    }
    checkpoints.write_parameters(tmp_path / "other.safetensors", values)
    return tmp_path / "other.safetensors"


@pytest.mark.parametrize("backend", BACKENDS)
def test_load_by_prefix(other_names, backend):
    session = make_session(backend)
    before = session.parameters
    names = session.load(other_names, rename={"enc.": ""}, only="hidden.*")
    assert names == ["hidden.bias", "hidden.weight"]
    after = session.parameters
    assert (after["hidden.weight"] == 0.25).all() and (after["hidden.bias"] == 0.5).all()
    numpy.testing.assert_array_equal(after["output.weight"], before["output.weight"])


def test_load_by_function(other_names):
    session = make_session("torch")
    names = session.load(
        other_names, rename=lambda n: n[4:] if n.startswith("enc.") else None, strict=False
    )
    assert names == ["hidden.bias", "hidden.weight"]


LOAD_ERRORS = [
    ({}, r"missing: 'hidden.weight'; did you mean 'enc.hidden.weight'"),
    ({"rename": {"enc.": ""}}, r"unexpected: 'head.weight'"),
    ({"rename": {"encoder.": ""}}, r"no name begins with 'encoder.'"),
    ({"rename": {"en.": ""}}, r"no name begins with 'en.'; did you mean 'enc.'"),
    ({"rename": {"head.": "output."}, "only": "output.weight"}, r"'output.weight' is \[5, 9\], in the model \[5, 3\]"),
    ({"rename": {"head.": "output."}, "only": "output.weight", "strict": False}, "of another shape"),
    ({"rename": lambda name: "x"}, r"two names become 'x'"),
    ({"only": "hiden.*"}, r"only: the pattern 'hiden.\*' matches no parameter; did you mean 'hidden"),
    ({"strict": False}, r"no parameter of .* is one of the model; it has enc.hidden.bias"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), LOAD_ERRORS)
def test_error_of_load(other_names, options, message):
    session = make_session("torch")
    before = session.parameters
    with pytest.raises(ValueError, match=message):
        session.load(other_names, **options)
    for name, value in session.parameters.items():
        numpy.testing.assert_array_equal(value, before[name])


def test_a_continued_run_does_not_load_again(saved, other_names):
    session = make_session("torch")
    session.resume(saved["torch"][0])
    before = session.parameters["hidden.weight"]
    assert session.load(other_names, rename={"enc.": ""}, only="hidden.*") == []
    numpy.testing.assert_array_equal(session.parameters["hidden.weight"], before)


def test_another_model_does_not_resume(saved):
    with pytest.raises(ValueError, match=r"'hidden.weight' is \[6, 5\], in the model \[6, 4\]"):
        make_session("torch", Model(hidden=4)).resume(saved["torch"][0])


# --- which to keep, averages, damage


def test_best_average_and_keep(tmp_path, saved):
    source, _ = saved["torch"]
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", source, folder], check=True)
    first, second, third = checkpoints.paths(folder)
    assert checkpoints.best(folder, "dev_loss") == second
    with pytest.raises(ValueError, match="with the metric 'dev_los'; did you mean 'dev_loss'"):
        checkpoints.best(folder, "dev_los")
    values = [checkpoints.read_parameters(path)["output.weight"] for path in (first, second)]
    mean = checkpoints.average([first, second])["output.weight"]
    numpy.testing.assert_allclose(mean, (values[0] + values[1]) / 2, rtol=1e-6)
    assert mean.dtype == "float32"
    removed = checkpoints.remove_others(folder, keep_last=1, keep_best=1, metric="dev_loss")
    assert removed == [first]
    assert checkpoints.paths(folder) == [second, third]
    with pytest.raises(ValueError, match="keep_last is 0"):
        checkpoints.remove_others(folder, keep_last=0)


def test_a_metric_that_is_no_number_is_never_best(tmp_path):
    session = make_session("torch")
    session.save(tmp_path, metrics={"dev": float("nan")})
    for dev in (2.0, 1.0, float("nan")):
        session.apply({"output.bias": numpy.ones(3)})
        session.save(tmp_path, metrics={"dev": dev})
    assert checkpoints.best(tmp_path, "dev").name == "step-00000002"
    checkpoints.remove_others(tmp_path, keep_last=1, keep_best=2, metric="dev")
    names = [path.name for path in checkpoints.paths(tmp_path)]
    assert names == ["step-00000001", "step-00000002", "step-00000003"]


def test_damage_is_told(tmp_path, saved):
    source, _ = saved["torch"]
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", source, folder], check=True)
    newest = checkpoints.last(folder)
    content = (newest / "parameters.safetensors").read_bytes()
    (newest / "parameters.safetensors").write_bytes(content[:-7])
    with pytest.raises(ValueError, match="parameters.safetensors' is damaged"):
        make_session("torch").resume(folder)
    (newest / "session.json").write_text("{")
    with pytest.raises(ValueError, match="step-00000005' is no checkpoint"):
        make_session("torch").resume(folder)
    with pytest.raises(ValueError, match="holds several checkpoints; give one"):
        make_session("torch").load(folder)
    with pytest.raises(ValueError, match="there is no file"):
        make_session("torch").load(tmp_path / "nothing.safetensors")
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        checkpoints.last(tmp_path / "nothing")
