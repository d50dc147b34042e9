"""
Several processes: two that ``torchrun`` starts train as one with the doubled batch does, and share data and files.

This file is also the program that both run (:func:`main`).
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, training
from returnn_common.training import _distributed, checkpoints

ROOT = Path(__file__).parent.parent
TIME = nn.SpatialDim("time")
FEATURES = nn.FeatureDim("features", 7)
CLASSES = nn.FeatureDim("classes", 3)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", 5))
        self.output = nn.Linear(self.hidden.out_dim, CLASSES)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        return self.output(nn.tanh(self.hidden(x)))


class Noisy(Model):
    """with what draws random numbers, and running statistics"""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm(self.hidden.out_dim)
        self.masks = []

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        x = nn.dropout(self.norm(self.hidden(x)), 0.4)
        self.masks.append(x.raw_tensor.detach().numpy() == 0)
        return self.output(x)


class Pair(nn.Module):
    """a weight for each of two ranks, and one that nobody uses"""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = (
            nn.Linear(FEATURES, CLASSES, with_bias=False) for _ in range(3)
        )


def mean_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss("mean", use_normalized_loss=True)


def sum_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss("sum", scale=0.1)


def both_step(*, model, extern_data, **_):
    mean_step(model=model, extern_data=extern_data)
    sum_step(model=model, extern_data=extern_data)
    loss = nn.reduce_mean(nn.square(model.hidden(extern_data["data"])), axis=model.hidden.out_dim)
    loss.mark_as_loss("other", use_normalized_loss=True)


def batches(epoch, number=7):
    """ragged, with other numbers of sequences"""
    rng = numpy.random.RandomState(epoch)
    for _ in range(number):
        lengths = rng.randint(2, 7, size=rng.randint(1, 4)).astype("int32")
        data = rng.normal(size=(len(lengths), lengths.max(), 7)).astype("float32")
        classes = data[:, :, :3].argmax(axis=-1).astype("int32")
        yield {"data": data, "data:size1": lengths, "classes": classes}


def joined(*parts):
    """one batch of the sequences of several, padded with what must not matter"""
    end = max(part["data"].shape[1] for part in parts)
    pads = [(0, 0), (0, end)]
    return {
        "data": numpy.concatenate(
            [numpy.pad(p["data"], [*pads, (0, 0)], constant_values=9)[:, :end] for p in parts]
        ),
        "classes": numpy.concatenate([numpy.pad(p["classes"], pads)[:, :end] for p in parts]),
        "data:size1": numpy.concatenate([p["data:size1"] for p in parts]),
    }


def make_session(model=None, *, backend="torch", **options):
    options = {"optimizer": "sgd", "learning_rate": 0.1, "seed": 3, **options}
    return training.Session(model or Model(), extern_data=EXTERN_DATA, backend=backend, **options)


#: (step, options of the session)
UPDATES = {
    "mean": (mean_step, {"optimizer": {"class": "adam", "gradient_clip_global_norm": 0.3}}),
    "sum": (sum_step, {}),
    "both": (both_step, {"optimizer": {"class": "adamw"}, "learning_rate": 0.01}),
}


def updated(name, source, number):
    """parameters and losses after updates by ``number`` batches of the source each"""
    step, options = UPDATES[name]
    with make_session(**options) as session:
        train, losses, rest = session.step(step), [], list(source(session))
        while rest:
            losses.append(train(*rest[:number]))
            del rest[:number]
        averages = [{n: [float(v), v.frames] for n, v in loss.items()} for loss in losses]
        return session.parameters, averages


# --- the program of each process


def main(folder):
    os.chdir(folder)
    rank = int(os.environ["RANK"])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        run("killed", kill=True)  # torchrun starts both again
    results, arrays = {}, {}

    def keep(name, values):
        arrays.update({f"{name}/{key}": value for key, value in values.items()})

    def failing(name, function):
        try:
            function()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"

    for name in UPDATES:
        for number in (1, 2):
            values, losses = updated(name, lambda s: s.batches(batches(0)), number)
            keep(f"{name}{number}", values)
            results[f"{name}{number}"] = losses
    keep("pair", update_of_pair())
    keep("continued", {**run("killed"), **run("undisturbed")})
    results["program"] = run_program()
    results["group"] = group_of_ones_own()

    session = make_session(Noisy())
    train, evaluate = session.step(mean_step), session.step(mean_step, update=False)
    train(next(batches(0)))
    keep("masks", {"mask": session.model.masks[-1]})
    session.set_parameters({"output.bias": numpy.array([1.0, 2.0, 3.0]) + rank})
    keep("set", session.parameters)
    averages = session.averages(evaluate, batches(1, 3))
    alone = training.averages(evaluate(batch) for batch in batches(1, 3))
    results["gathered"] = session.gather([rank, *session.share(range(5))])
    results["averages"] = [[float(a["mean"]), a["mean"].frames] for a in (averages, alone)]
    gradients = session.gradients(train, list(batches(0))[rank])
    keep("gradients", gradients)
    session.apply({"output.bias": gradients["output.bias"]})
    keep("applied", session.parameters)

    Path("file").touch()
    failing("save", lambda: session.save("file/checkpoints"))
    others = {"output.bias": gradients["output.bias"] + rank}
    failing("apply", lambda: session.apply(others))
    failing("only first", session.save if rank == 0 else lambda: train(next(batches(0))))
    bad = next(batches(0))
    bad["data"][:] = numpy.nan if rank else 0.0
    failing("nan", lambda: train(bad))
    trained = session.parameters
    del trained["norm.running_mean"], trained["norm.running_variance"]
    keep("after errors", trained)
    if rank == 0:
        failing("ended", lambda: train(next(batches(0))))
    Path(f"{rank}.json").write_text(json.dumps(results))
    numpy.savez(f"{rank}.npz", **arrays)


def update_of_pair():
    """two updates, in which each rank has losses of its own; of the last weight only rank 1 has one, but of no frame"""

    def step(*, model, extern_data, **_):
        own = model.second if session.rank else model.first
        loss = nn.reduce_sum(nn.square(own(extern_data["data"])), axis=CLASSES)
        loss.mark_as_loss(f"loss{session.rank}", use_normalized_loss=True)

    with make_session(Pair()) as session:
        before = session.parameters
        session.step(step)(list(batches(0))[session.rank])
        after = session.parameters
    return {f"{path}/{i}": v[path] for i, v in enumerate((before, after)) for path in before}


def run(kind, *, kill=False):
    """parameters after two epochs; or one process kills itself in the first one, behind a checkpoint"""
    with make_session(Noisy(), optimizer="adam") as session:
        train, evaluate = session.step(mean_step), session.step(mean_step, update=False)
        log = training.Log(session, kind)
        numpy.random.seed(session.rank)  # random numbers of its own
        session.resume(kind)
        for epoch in session.epochs(2):
            for batch in session.batches(batches(epoch)):
                batch["data"] += numpy.random.normal(size=batch["data"].shape)
                log.step(train(batch))
                if session.rank:
                    evaluate(batch)
                session.save(kind)
                checkpoints.remove_others(kind)
                if kill and session.rank and session.global_train_step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            log.epoch(dev=session.averages(evaluate, batches(0)))
        checkpoints.write_parameters("rank.pt", {"rank": numpy.array(session.rank)})
        board = training.TensorBoard(session, f"board{session.rank}")
        board.write({"train": {"loss": 1.0}})
        board.close()
        return {f"{kind}/{path}": value for path, value in session.parameters.items()}


def group_of_ones_own():
    """whether a process group that a program has made stays"""
    from torch import distributed

    distributed.init_process_group("gloo")
    with make_session() as session:
        pass
    stays = distributed.is_initialized()
    distributed.destroy_process_group()
    with make_session() as other, make_session():
        pass
    return [session.world_size, stays, other.world_size, distributed.is_initialized()]


def run_program():
    """that of docs/training.md"""
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    section = re.search(r"^## Several processes\n(.*?)(?=^## |\Z)", text, re.S | re.M)[1]
    file = Path(f"program/{os.environ['RANK']}.py").absolute()
    file.parent.mkdir(exist_ok=True)
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
    file.write_text("\n".join(blocks), encoding="utf-8")
    os.chdir("program")
    found = runpy.run_path(str(file))
    os.chdir("..")
    session = found["session"]
    session.close()
    return [session.rank, session.world_size, session.global_train_step, len(found["errors"])]


# --- what came of it


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """of each rank: results, arrays; and what both have printed"""
    folder = tmp_path_factory.mktemp("two")
    path = os.pathsep.join([str(ROOT), *sys.path])
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "--max-restarts",
        "1",
    ]
    result = subprocess.run(
        [sys.executable, *launch, __file__, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    arrays = [dict(numpy.load(folder / f"{rank}.npz")) for rank in range(2)]
    return folder, results, arrays, result.stdout + result.stderr


def part(arrays, name):
    return {
        key.removeprefix(f"{name}/"): v for key, v in arrays.items() if key.startswith(f"{name}/")
    }


def test_parameters_are_those_of_all_ranks_to_the_bit(ranks):
    _, _, (first, second), _ = ranks
    assert first.keys() == second.keys()
    for key, value in first.items():
        if not key.startswith("masks/"):
            numpy.testing.assert_array_equal(second[key], value, err_msg=key)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("number", [1, 2])
def test_two_processes_are_one_with_the_doubled_batch(ranks, name, number):
    """and with several batches for one update; the seventh batch has no partner"""
    _, results, arrays, _ = ranks
    used = list(batches(0))[:6]
    rounds = [joined(*used[i : i + 2 * number]) for i in range(0, 6, 2 * number)]
    parameters, losses = updated(name, lambda session: rounds, 1)
    for path, value in part(arrays[0], f"{name}{number}").items():
        numpy.testing.assert_allclose(value, parameters[path], atol=1e-5, err_msg=path)
    for result in results:
        assert len(result[f"{name}{number}"]) == len(losses)
        for got, expected in zip(result[f"{name}{number}"], losses):
            assert list(got) == list(expected)
            for loss, (value, frames) in expected.items():
                numpy.testing.assert_allclose(got[loss][0], value, rtol=1e-5)
                assert got[loss][1] == frames


def test_losses_of_some_ranks(ranks):
    """d/dw of sum (x w)^2 / frames = 2 x' x w / frames: a loss that one rank marks has that rank's frames"""
    pair = part(ranks[2][0], "pair")
    for name, batch in zip(("first", "second"), batches(0)):
        weight = pair[f"{name}.weight/0"]
        frames = [x[:n] for x, n in zip(batch["data"], batch["data:size1"])]
        x = numpy.concatenate(frames)
        expected = weight - 0.1 * 2 * x.T @ x @ weight / len(x)
        numpy.testing.assert_allclose(pair[f"{name}.weight/1"], expected, atol=1e-5)
    numpy.testing.assert_array_equal(pair["unused.weight/0"], pair["unused.weight/1"])


def test_goes_on_inside_of_an_epoch_where_one_process_was_killed(ranks):
    folder, _, (arrays, _), _ = ranks
    continued = part(arrays, "continued")
    undisturbed, killed = part(continued, "undisturbed"), part(continued, "killed")
    assert len(undisturbed) == 8
    for path, value in undisturbed.items():
        numpy.testing.assert_array_equal(killed[path], value, err_msg=path)
    logs = [(folder / kind / "log.jsonl").read_text() for kind in ("undisturbed", "killed")]
    lines = [[json.loads(line) for line in log.splitlines()] for log in logs]
    for line in lines[0] + lines[1]:
        del line["seconds"]
    assert lines[0] == lines[1]
    assert [line["global_train_step"] for line in lines[0]] == [3, 6]


def test_the_first_process_writes(ranks):
    folder, _, _, output = ranks
    assert [path.name for path in checkpoints.paths(folder / "undisturbed")] == ["step-00000006"]
    assert len(re.findall("^epoch 2, step 6: train: mean .*; dev: mean ", output, re.M)) == 2
    assert output.count("Warning") == 1  # where it is wanted


def test_warning_where_all_train_on_the_same_batch(ranks):
    message = r"test_training_distributed.py:\d+: all 2 processes train on the same batch; loop over session.batches"
    assert len(re.findall(message, ranks[3])) == 1


def test_the_program_of_the_document(ranks):
    _, results, _, _ = ranks
    assert [result["program"] for result in results] == [[0, 2, 30, 11], [1, 2, 30, 10]]


def test_process_group_is_closed_where_it_was_made(ranks):
    assert [result["group"] for result in ranks[1]] == [[2, True, 2, False]] * 2


@pytest.mark.parametrize("local_rank", [0, 1, 2])
def test_each_process_has_its_gpu(monkeypatch, local_rank):
    import torch

    selected = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    if local_rank == 2:
        with pytest.raises(ValueError, match="is process 3 on this machine, which has 2 GPUs"):
            _distributed._select_gpu()
    else:
        _distributed._select_gpu()
        assert selected == [local_rank]


def test_ranks_draw_other_random_numbers(ranks):
    first, second = (part(arrays, "masks")["mask"] for arrays in ranks[2])
    assert first.shape == second.shape
    assert 0.2 < first.mean() < 0.6
    assert (first != second).any()


def test_values_are_those_of_the_first_rank(ranks):
    numpy.testing.assert_array_equal(ranks[2][1]["set/output.bias"], [1.0, 2.0, 3.0])


def test_gradients_and_apply(ranks):
    for arrays in ranks[2]:
        expected = arrays["set/output.bias"] - 0.1 * arrays["gradients/output.bias"]
        numpy.testing.assert_allclose(arrays["applied/output.bias"], expected, rtol=1e-6)
        assert numpy.abs(arrays["gradients/output.bias"]).max() > 0.01


def test_shares_of_all_and_what_all_have(ranks):
    assert [result["gathered"] for result in ranks[1]] == [[[0, 0, 2, 4], [1, 1, 3]]] * 2


def test_averages_over_batches_that_are_shared_out(ranks):
    frames = sum(int(batch["data:size1"].sum()) for batch in batches(1, 3))
    for result in ranks[1]:
        shared, alone = result["averages"]
        assert shared[1] == alone[1] == frames
        numpy.testing.assert_allclose(shared[0], alone[0], rtol=1e-6)


ERRORS = {
    "save": (r"NotADirectoryError: .*file/checkpoints",) * 2,
    "apply": (
        r"RuntimeError: .*test_training_distributed.py:\d+: all processes must do the same in the same order, but "
        r"rank 0 is at an update by gradients with the checksum \d+; rank 1 is at",
    )
    * 2,
    "only first": (
        r"rank 0 is at session.save; rank 1 is at an update by mean_step with the learning rate 0.1",
    )
    * 2,
    "nan": (r"FloatingPointError: .*the loss 'mean' is nan in mean_step \(.*\) on rank 1",) * 2,
    "ended": (r"RuntimeError: .*rank 0 is at an update .* one has failed or ended",),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_raised_by_all(ranks, name):
    _, results, (arrays, _), _ = ranks
    for result, message in zip(results, ERRORS[name]):
        assert re.search(message, result[name]), result[name]
    for path, value in part(arrays, "after errors").items():
        numpy.testing.assert_array_equal(arrays[f"applied/{path}"], value)


def test_layers_train_in_one_process(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"one of 2 processes .*; use backend='torch', or start"):
        make_session(backend="tensorflow-net-dict")


def test_one_process_of_torchrun_is_alone(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with make_session() as session:
        assert (session.rank, session.world_size) == (0, 1)


if __name__ == "__main__":
    main(sys.argv[1])
