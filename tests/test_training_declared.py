"""Declared stages: what is traced, what runs when, what is stored, and what errors say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tensorflow as tf
from returnn.config import Config, global_config_ctx

from returnn_common import nn, training
from returnn_common.training import checkpoints

TIME = nn.SpatialDim("time")
FEATURES, CLASSES = nn.FeatureDim("features", 4), nn.FeatureDim("classes", 3)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", 5))
        self.conv = nn.Conv1d(self.hidden.out_dim, self.hidden.out_dim, 3, padding="same")
        self.output = nn.Linear(self.hidden.out_dim, CLASSES)
        self.counter = nn.Parameter([], "float32", auxiliary=True)
        self.counter.initial = 0.0

    def __call__(self, x):
        x, _ = self.conv(nn.tanh(self.hidden(x)), in_spatial_dim=TIME)
        return self.output(x)


def sequences(number=6, seed=1):
    rng = numpy.random.RandomState(seed)
    for _ in range(number):
        data = rng.normal(size=(rng.randint(2, 6), 4)).astype("float32")
        yield {"data": data, "classes": data[:, :3].argmax(axis=1).astype("int32")}


DATASET = {
    "class": "StaticDataset",
    "data": list(sequences()),
    "output_dim": {"data": (4, 2), "classes": (3, 1)},
}


def batches(epoch=1):
    """two sequences each, with their tags"""
    seqs = list(sequences())
    for i in range(0, len(seqs), 2):
        items = {key: [seq[key] for seq in seqs[i : i + 2]] for key in ("data", "classes")}
        (batch,) = training.batches_from([items], EXTERN_DATA)
        yield {**batch, "seq_tag": [f"seq-{i}", f"seq-{i + 1}"]}


class Data:
    """what a part of a dataset is for a step loop"""

    extern_data = EXTERN_DATA

    def batches(self, epoch, *, batch_size, keys):
        assert batch_size == 100
        return batches(epoch)


def session_of(model, **options):
    return training.Session(model, extern_data=EXTERN_DATA, learning_rate=0.05, **options)


def mark_loss(model, targets):
    nn.cross_entropy(model(nn.extern_data("data")), targets).mark_as_loss(
        "ce", use_normalized_loss=True
    )


def run(session, folder, stages, **options):
    return training.run(session, folder, stages=stages, batch_size=100, **options)


# --- the same as a loop of one's own


def declare_supervised(model, num_epochs=3):
    with nn.Stages() as stages, nn.epoch_loop(num_epochs), nn.step_loop(Data()):
        mark_loss(model, nn.extern_data("classes"))
    return stages


@pytest.mark.parametrize("backend", training.BACKENDS)
def test_declared_is_own_loop(backend, tmp_path):
    model, own_model = Model(), Model()
    session, own = session_of(model, backend=backend), session_of(own_model, backend=backend)
    run(session, tmp_path, declare_supervised(model))

    def step(*, model, extern_data, **_):
        mark_loss(model, extern_data["classes"])

    train = own.step(step)
    for epoch in own.epochs(3):
        for batch in batches(epoch):
            train(batch)
    for path, value in own.parameters.items():
        numpy.testing.assert_array_equal(session.parameters[path], value, err_msg=path)
    assert session.global_train_step == 9
    assert [path.name for path in checkpoints.paths(tmp_path)][-1] == "step-00000009"


def test_what_a_loop_logs(tmp_path):
    model = Model()
    with nn.Stages() as stages, nn.epoch_loop(1):
        with nn.step_loop(Data()):
            mark_loss(model, nn.extern_data("classes"))
        for name in (None, None, "dev"):
            with nn.step_loop(Data(), update=False, name=name):
                mark_loss(model, nn.extern_data("classes"))
    session = session_of(model)
    (line,) = run(session, tmp_path, stages).lines()
    assert [key for key in line if isinstance(line[key], dict)] == [
        "train",
        "eval",
        "eval_2",
        "dev",
    ]
    p, total, frames = session.parameters, 0.0, 0
    for seq in sequences():
        x = numpy.tanh(seq["data"] @ p["hidden.weight"] + p["hidden.bias"])
        padded = numpy.pad(x, [(1, 1), (0, 0)])
        x = sum(padded[i : i + len(x)] @ p["conv.filter"][:, :, i].T for i in range(3))
        logits = (x + p["conv.bias"]) @ p["output.weight"] + p["output.bias"]
        log_probs = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
        total -= log_probs[numpy.arange(len(x)), seq["classes"]].sum()
        frames += len(x)
    assert line["dev"]["ce"] == line["eval"]["ce"] == pytest.approx(total / frames, rel=1e-5)
    assert (
        checkpoints.read_info(checkpoints.last(tmp_path))["metrics"]["dev_ce"] == line["dev"]["ce"]
    )


def test_a_function_behind_each_epoch_may_change_the_rate_and_end_the_run(tmp_path):
    model, lines = Model(), []

    def on_epoch_end(session, line):
        lines.append(line)
        session.learning_rate *= 0.5
        return session.epoch == 2

    session = session_of(model)
    run(session, tmp_path, declare_supervised(model, 5), on_epoch_end=on_epoch_end)
    assert [line["epoch"] for line in lines] == [1, 2] and lines[0]["train"]["ce"] > 0
    info = checkpoints.read_info(checkpoints.last(tmp_path))
    assert (info["epoch"], info["learning_rate"]) == (2, 0.05 * 0.5**2)


# --- align, then train


def declare_alignment(model, bodies, num_epochs=2):
    """each epoch labels all sequences by the model as it is, and trains on these labels"""
    with nn.Stages() as stages:
        with nn.init_ctx() as init:
            model.counter.assign(nn.where(init.is_new_run, 100.0, model.counter + 1000.0))
        with nn.epoch_loop(num_epochs) as epoch:
            nn.cond(
                epoch.index == 2,
                lambda: model.output.bias.assign_add(nn.convert_to_tensor(0.5)),
                lambda: None,
            )
            with nn.step_loop(batches, update=False):
                bodies.append("align")
                x = nn.extern_data(EXTERN_DATA["data"])
                nn.store("labels", nn.reduce_argmax(model(x), axis=CLASSES))
            with nn.step_loop(batches) as step:
                bodies.append("train")
                nn.extern_data(EXTERN_DATA["data"])
                mark_loss(model, nn.load("labels"))
                model.counter.assign_add(nn.cast(epoch.index * 10 + step.index, "float32"))
    return stages


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    folder, model, bodies = tmp_path_factory.mktemp("aligned"), Model(), []
    stages = declare_alignment(model, bodies)
    session = session_of(model)
    run(session, folder, stages)
    return folder, session, bodies


def aligned_by_hand(num_epochs):
    """a loop of one's own that does what :func:`declare_alignment` says, with numpy for all but the steps"""
    session = session_of(Model())

    def align(*, model, extern_data, **_):
        labels = nn.reduce_argmax(model(extern_data["data"]), axis=CLASSES)
        labels.mark_as_output("labels", shape=[nn.batch_dim, TIME])

    def train(*, model, extern_data, **_):
        mark_loss(model, extern_data["classes"])

    align, train = session.step(align, update=False), session.step(train)
    for epoch in session.epochs(num_epochs):
        if epoch == 2:
            bias = session.parameters["output.bias"]
            session.set_parameters({"output.bias": bias + numpy.float32(0.5)})
        labels = [align(batch)["labels"] for batch in batches(epoch)]
        for batch, chosen in zip(batches(epoch), labels):
            train({**batch, "classes": chosen})
    return session


def test_each_body_is_traced_once(aligned):
    assert aligned[2] == ["align", "train"]


def test_align_then_train(aligned):
    expected = aligned_by_hand(2).parameters
    expected["counter"] = numpy.float32(100 + (10 + 11 + 12) + (20 + 21 + 22))
    for path, value in aligned[1].parameters.items():
        numpy.testing.assert_array_equal(value, expected[path], err_msg=path)


def test_a_continued_run_goes_on(aligned, tmp_path):
    """two epochs, then a third one in another session; its init stage knows"""
    model = Model()
    for num_epochs in (2, 3):
        session = session_of(model)
        run(session, tmp_path, declare_alignment(model, [], num_epochs))
    expected = aligned_by_hand(3).parameters
    expected["counter"] = numpy.float32(100 + 33 + 63 + 1000 + (30 + 31 + 32))
    for path, value in session.parameters.items():
        numpy.testing.assert_array_equal(value, expected[path], err_msg=path)
    run(session, tmp_path, declare_alignment(model, [], 3))  # nothing is left to do
    assert session.global_train_step == 9


@pytest.mark.parametrize("backend", training.BACKENDS)
def test_several_epoch_loops_count_on(backend, tmp_path):
    model = Model()

    def declare():
        with nn.Stages() as stages:
            for factor in (1.0, 100.0):
                with nn.epoch_loop(2) as epoch, nn.step_loop(Data(), update=False):
                    number = factor * nn.cast(epoch.index, "float32")
                    model.counter.assign_add(number)
        return stages

    session = session_of(model, backend=backend)
    run(session, tmp_path, declare())
    expected = 3 * (1 + 2) + 3 * (300 + 400)
    assert session.parameters["counter"] == expected
    session = session_of(model, backend=backend)
    run(session, tmp_path, declare())  # all of it is done
    assert (session.parameters["counter"], session.epoch) == (expected, 4)


@pytest.mark.parametrize("backend", training.BACKENDS)
def test_what_an_epoch_stored_is_there_in_the_next_one_also_after_a_restart(backend, tmp_path):
    """stored lengths are loaded an epoch later, by a loop that stands before the one that stores"""
    model = Model()
    template = nn.Tensor("last", [nn.batch_dim], "float32")

    def declare(num_epochs):
        with nn.Stages() as stages, nn.epoch_loop(num_epochs) as epoch:
            with nn.step_loop(lambda epoch: batches() if epoch > 1 else [], update=False):
                sums = nn.reduce_sum(nn.load(template), axis=nn.batch_dim)
                model.counter.assign_add(sums)
            with nn.step_loop(Data(), update=False):
                x = nn.reduce_sum(nn.extern_data("data"), axis=[TIME, FEATURES])
                nn.store("last", x * nn.cast(epoch.index, "float32"))
        return stages

    for num_epochs in (1, 2, 3):
        session = session_of(model, backend=backend)
        run(session, tmp_path, declare(num_epochs))
    total = sum(seq["data"].sum() for seq in sequences())
    assert session.parameters["counter"] == pytest.approx(1 * total + 2 * total, rel=1e-4)


@pytest.mark.parametrize("backend", training.BACKENDS)
def test_stored_frames_of_another_length(backend, tmp_path):
    """a dim that is computed in the one loop is a new dim in the other"""
    model = Model()
    kernel = nn.Conv1d(FEATURES, nn.FeatureDim("out", 1), 1, strides=2, padding="valid")
    model.kernel = kernel
    seen = []
    with nn.Stages() as stages, nn.epoch_loop(1):
        with nn.step_loop(Data(), update=False):
            half, _ = kernel(nn.extern_data("data"), in_spatial_dim=TIME)
            nn.store("half", nn.squeeze(half, kernel.out_dim))
        with nn.step_loop(Data(), update=False):
            half = nn.load("half")
            seen.append(half.dims)
            again, half_time = kernel(nn.extern_data("data"), in_spatial_dim=TIME)
            half, _ = nn.replace_dim(half, in_dim=half.dims[1], out_dim=half_time)
            same = nn.reduce_all(nn.squeeze(again, kernel.out_dim) == half, axis=half.dims)
            number = nn.reduce_sum(nn.ones(half.dims), axis=half.dims)
            model.counter.assign_add(nn.where(same, number, -1000.0))
    session = session_of(model, backend=backend)
    run(session, tmp_path, stages)
    assert seen[0][1] != TIME and seen[0][1].is_dynamic()
    lengths = [-(-len(seq["data"]) // 2) for seq in sequences()]
    assert session.parameters["counter"] == sum(lengths)


# --- from the config


@contextlib.contextmanager
def config_of(**options):
    """RETURNN's global config for a while; RETURNN keeps it in TensorFlow's default graph, too"""
    with tf.Graph().as_default(), global_config_ctx(Config(options)):
        yield


def declare_from_config(model):
    with nn.Stages() as stages, nn.epoch_loop(), nn.step_loop():
        mark_loss(model, nn.extern_data("classes"))
    return stages


def test_epochs_data_and_batch_size_of_the_config(tmp_path):
    model = Model()
    with config_of(num_epochs=2, train=DATASET, batch_size=10, extern_data=EXTERN_DATA):
        session = session_of(model)
        log = training.run(session, tmp_path / "a", stages=declare_from_config(model))
    assert [line["epoch"] for line in log.lines()] == [1, 2]
    assert 3 <= session.global_train_step / 2 <= 6  # frames with padding: one or two sequences each
    options = {"num_epochs": 1, "train": DATASET, "batch_size": 1000, "max_seqs": 4}
    with config_of(**options, extern_data=EXTERN_DATA):
        session = session_of(model)
        training.run(session, tmp_path / "b", stages=declare_from_config(model))
    assert session.global_train_step == 2  # of six sequences


def test_the_config_says_nothing_of_data_that_are_given():
    other = nn.Tensor("data", [nn.batch_dim, TIME, nn.FeatureDim("others", 8)], "float32")
    model = Model()
    config = {"data": other}
    step_loop = nn.step_loop(batches, update=False)
    with config_of(extern_data=config), nn.Stages(), nn.epoch_loop(1), step_loop:
        with pytest.raises(KeyError, match="extern data has no 'data'"):
            nn.extern_data("data")
        nn.store("y", model(nn.extern_data(EXTERN_DATA["data"])))


def test_what_neither_says_is_an_error(tmp_path):
    model = Model()
    with config_of(extern_data=EXTERN_DATA):
        stages = declare_from_config(model)
    with pytest.raises(ValueError, match=r"nn.epoch_loop\(\) needs num_epochs: give it, or set it"):
        training.run(session_of(model), tmp_path, stages=stages)


def test_a_plain_config_is_that_of_the_step():
    model = Model()

    def step(*, model, extern_data, **_):
        mark_loss(model, extern_data["classes"])

    with nn.Stages() as stages, nn.epoch_loop(4), nn.step_loop(DATASET):
        x = nn.extern_data(EXTERN_DATA["data"])
        assert x is nn.extern_data("data")
        mark_loss(model, nn.extern_data(EXTERN_DATA["classes"]))
    text = training.to_config(model, stages, batch_size=9)
    lowered = nn.lower(model, step, EXTERN_DATA)
    assert text == lowered.config_text(num_epochs=4, train=DATASET, batch_size=9)
    assert "returnn_common" not in text.partition("import")[2]


def test_a_config_of_all_stages_runs_the_same(tmp_path):
    def declare(model):
        with nn.Stages() as stages:
            with nn.init_ctx() as init:
                model.counter.assign(nn.where(init.is_new_run, 5.0, 7.0))
            with nn.epoch_loop(2) as epoch:
                with nn.step_loop(DATASET, update=False):
                    x = nn.extern_data(EXTERN_DATA["data"])
                    nn.store("labels", nn.reduce_argmax(model(x), axis=CLASSES))
                with nn.step_loop(DATASET, update=["hidden.*", "output.*"]):
                    nn.extern_data(EXTERN_DATA["data"])
                    mark_loss(model, nn.load("labels"))
                    model.counter.assign_add(nn.cast(epoch.index, "float32"))
        return stages

    model = Model()
    model.output.bias.initial = numpy.array([0.5, -0.5, 0.25], dtype="float32")
    model.hidden.bias.trainable = False
    model.output.weight.weight_decay = 0.5
    settings = {
        "optimizer": {"class": "adamw"},
        "learning_rate": 0.05,
        "random_seed": 3,
        "batch_size": 10,
        "model": str(tmp_path / "from_config"),
    }
    text = training.to_config(model, declare(model), **settings)
    assert text == training.to_config(model, declare(model), **settings)
    config: dict = {}
    exec(compile(text, "x.config", "exec"), config)
    assert config["task"] == "config:run"
    with config_of(batch_size=10):
        config["run"]()
        session = session_of(model, optimizer={"class": "adamw"}, seed=3)
        training.run(session, tmp_path / "here", stages=declare(model))
    last = checkpoints.last(tmp_path / "from_config")
    restored = checkpoints.read_parameters(last)
    assert restored.keys() == session.parameters.keys()
    for path, value in session.parameters.items():
        numpy.testing.assert_array_equal(restored[path], value, err_msg=path)
    assert restored["counter"] > 5 and not restored["hidden.bias"].any()


CONFIG = """
import sys
from returnn_common import nn, training

dim = nn.FeatureDim("features", 4)
data = nn.Tensor("data", [nn.batch_dim, nn.SpatialDim("time"), dim], "float32")
model = nn.Linear(dim, dim)
with nn.init_ctx() as init:
    model.bias.assign(nn.where(init.is_new_run, 1.0, model.bias))
with nn.epoch_loop(3) as epoch, nn.step_loop({"class": "Task12AXDataset", "num_seqs": 5}, update=("w*", "b*")):
    x = nn.extern_data(data)
    nn.store("norm", nn.reduce_sum(nn.square(x), axis=dim))
    nn.reduce_sum(nn.square(model(x) - x), axis=dim).mark_as_loss(scale=0.5)
text = training.to_config(model, optimizer={"class": "adam", "epsilon": 1e-8}, batch_size=10)
assert "tensorflow" not in sys.modules and "torch" not in sys.modules
print(text)
"""


def test_a_config_has_the_same_bytes_in_every_process():
    root = Path(training.__file__).parent.parent.parent
    texts = [
        subprocess.run(
            [sys.executable, "-c", CONFIG],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and b'"stored": ["norm"]' in texts[0]


def test_a_setting_that_would_do_nothing_is_refused():
    model = Model()
    with nn.Stages() as stages, nn.epoch_loop(1), nn.step_loop(DATASET) as step:
        nn.extern_data(EXTERN_DATA["data"])
        mark_loss(model, nn.extern_data(EXTERN_DATA["classes"]))
        model.counter.assign(nn.cast(step.index, "float32"))
    with pytest.raises(ValueError, match="does not read 'max_seq'; did you mean 'max_seqs'?"):
        training.to_config(model, stages, max_seq=3)
    assert 'task = "config:run"' in training.to_config(model, stages, max_seqs=3)


def test_data_without_a_config_form():
    model = Model()
    with nn.Stages() as stages, nn.epoch_loop(1), nn.step_loop(batches):
        nn.extern_data(EXTERN_DATA["data"])
        mark_loss(model, nn.extern_data(EXTERN_DATA["classes"]))
    with pytest.raises(
        ValueError, match=r"test_training_declared.py:\d+: the data .* a function, which has no"
    ):
        training.to_config(model, stages)


# --- the default declaration


def test_declarations_belong_together_until_they_are_run():
    model = Model()
    with nn.epoch_loop(1), nn.step_loop(Data()):
        mark_loss(model, nn.extern_data("classes"))
    first = nn.declared()
    with nn.epoch_loop(2), nn.step_loop(Data()):
        mark_loss(model, nn.extern_data("classes"))
    assert nn.declared() is first and [loop.num_epochs for loop in first.loops] == [1, 2]
    with pytest.raises(ValueError, match="which has no config form"):
        training.to_config(model)
    with nn.epoch_loop(3), nn.step_loop(Data()):
        mark_loss(model, nn.extern_data("classes"))
    assert [loop.num_epochs for loop in nn.declared().loops] == [3]
    with nn.init_ctx():
        pass
    assert not nn.declared().loops


def test_what_is_printed():
    model = Model()
    text = str(declare_alignment(model, []))
    assert text.splitlines() == [
        "init: reads is_new_run",
        "epoch loop, 2",
        "  epoch: reads epoch_index",
        "  step loop eval: reads data; stores labels; without update",
        "  step loop train: reads data, stored_labels, epoch_index, step_index; losses ce",
    ]


# --- errors


def nested_epochs(model):
    with nn.epoch_loop(1), nn.epoch_loop(1):
        pass


def step_alone(model):
    with nn.step_loop(Data()):
        pass


def step_in_step(model):
    with nn.epoch_loop(1), nn.step_loop(Data()), nn.step_loop(Data()):
        pass


def init_in_epoch(model):
    with nn.epoch_loop(1), nn.init_ctx():
        pass


def no_loss(model):
    with nn.epoch_loop(1), nn.step_loop(Data()):
        model(nn.extern_data("data"))


def no_step(model):
    with nn.epoch_loop(1):
        pass


def nothing_done(model):
    with nn.epoch_loop(1), nn.step_loop(Data(), update=False):
        model(nn.extern_data("data"))


def marked_twice(model):
    with nn.epoch_loop(1), nn.step_loop(Data()):
        loss = nn.cross_entropy(model(nn.extern_data("data")), nn.extern_data("classes"))
        loss.mark_as_loss()
        loss.mark_as_loss()


def loss_of_an_epoch(model):
    with nn.epoch_loop(1):
        (model.counter * 2.0).mark_as_loss("twice")


def tensor_of_another_loop(model):
    with nn.epoch_loop(1):
        with nn.step_loop(Data(), update=False):
            x = nn.extern_data("data")
            nn.store("x", x)
        with nn.step_loop(Data(), update=False):
            nn.store("y", x * 2.0)


def index_outside(model):
    with nn.epoch_loop(1) as epoch, nn.step_loop(Data()):
        mark_loss(model, nn.extern_data("classes"))
    return epoch.index


def branch_in_python(model):
    with nn.epoch_loop(1) as epoch:
        if epoch.index == 1:
            pass


def unknown_data(model):
    with nn.epoch_loop(1), nn.step_loop(Data()):
        nn.extern_data("dat")


def no_templates(model):
    with nn.epoch_loop(1), nn.step_loop(batches):
        nn.extern_data("data")


def nothing_stored(model):
    with nn.epoch_loop(1):
        with nn.step_loop(Data(), update=False):
            nn.store("labels", nn.extern_data("classes"))
        with nn.step_loop(Data(), update=False):
            nn.load("label")


def stored_without_batch(model):
    with nn.epoch_loop(1), nn.step_loop(Data(), update=False):
        nn.store("bias", model.output.bias)


def stored_outside(model):
    with nn.epoch_loop(1):
        nn.store("x", model.counter)


def bad_number(model):
    with nn.epoch_loop(0):
        pass


ERRORS = {
    nested_epochs: r"nn.epoch_loop\(\) stands inside of nn.epoch_loop\(\), expected on its own",
    step_alone: r"nn.step_loop\(\) stands outside of nn.epoch_loop\(\), expected inside of nn.epoch_loop\(\)",
    step_in_step: r"nn.step_loop\(\) stands inside of nn.step_loop\(\), expected inside of nn.epoch_loop",
    init_in_epoch: r"nn.init_ctx\(\) stands inside of nn.epoch_loop\(\), expected on its own",
    no_loss: r"this step loop marks no loss; call loss.mark_as_loss\(\)",
    no_step: r"this epoch loop has no nn.step_loop\(\) in it",
    nothing_done: r"this step loop does nothing: it marks no loss, stores nothing and assigns nothing",
    marked_twice: r"the loss 'cross_entropy' is marked twice",
    loss_of_an_epoch: r"the loss '\w+' is marked outside of a step loop",
    tensor_of_another_loop: r"was computed elsewhere, in another stage",
    index_outside: r"epoch_index is read outside of the nn.epoch_loop\(\) that gave it",
    branch_in_python: r"has no truth value yet: .* branch with nn.cond",
    unknown_data: r"extern data has no 'dat'; did you mean 'data'\?",
    no_templates: r"extern data has no 'data'; .* give a template",
    nothing_stored: r"nn.load\('label'\): no step loop above stores this; did you mean 'labels'\?",
    stored_without_batch: r"nn.store\('bias'\): got .*, expected a tensor with nn.batch_dim",
    stored_outside: r"nn.store\('x'\) stands outside of nn.step_loop\(\)",
    bad_number: r"num_epochs is 0, expected a positive int",
}


@pytest.mark.parametrize("declare", ERRORS, ids=lambda declare: declare.__name__)
def test_errors_have_the_users_line(declare):
    with (
        pytest.raises(
            (ValueError, TypeError), match=rf"test_training_declared.py:\d+: .*{ERRORS[declare]}"
        ),
        nn.Stages(),
    ):
        declare(Model())


def test_nothing_is_left_open_by_an_error():
    with nn.Stages(), pytest.raises(ZeroDivisionError), nn.epoch_loop(1), nn.step_loop(Data()):
        1 / 0  # noqa: B018
    model = Model()
    assert nn.lower(
        model, lambda model, **_: mark_loss(model, nn.extern_data("classes")), EXTERN_DATA
    )
    assert declare_supervised(model).loops


def test_errors_of_a_run(tmp_path):
    model = Model()
    with pytest.raises(ValueError, match=r"training.run: no nn.epoch_loop\(\) is declared"):
        run(session_of(model), tmp_path, nn.Stages())
    other = declare_supervised(Model())
    with pytest.raises(
        ValueError, match="uses the parameter .*, which is not in the model Model of the session"
    ):
        run(session_of(model), tmp_path, other)
    with nn.Stages() as stages, nn.epoch_loop(1), nn.step_loop(iter(batches())):
        nn.extern_data(EXTERN_DATA["data"])
        mark_loss(model, nn.extern_data(EXTERN_DATA["classes"]))
    with pytest.raises(ValueError, match=r"a generator, which gives its batches only once"):
        run(session_of(model), tmp_path, stages)
    no_tags = lambda epoch: [{k: v for k, v in b.items() if k != "seq_tag"} for b in batches()]  # noqa: E731
    with nn.Stages() as stages, nn.epoch_loop(1), nn.step_loop(no_tags, update=False):
        nn.store("x", nn.extern_data(EXTERN_DATA["data"]))
    with pytest.raises(ValueError, match="the batch lacks 'seq_tag', the names of its sequences"):
        run(session_of(model), tmp_path, stages)
    assert not checkpoints.paths(tmp_path)
