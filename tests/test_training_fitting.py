"""nn.RootModule, run by training.fit, on both backends."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, training
from returnn_common.training import checkpoints

BACKENDS = ["tensorflow-net-dict", "torch"]
TIME = nn.SpatialDim("time")
FEATURES, CLASSES = nn.FeatureDim("features", 4), nn.FeatureDim("classes", 3)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}


class Tagger(nn.RootModule):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(FEATURES, CLASSES)
        self.calls = []

    def train_step(self, *, extern_data):
        logits = self.output(nn.dropout(extern_data["data"], 0.2))
        nn.cross_entropy(logits, extern_data["classes"]).mark_as_loss("ce")

    def init_new_run(self, session):
        self.calls.append("init_new_run")
        session.set_parameters({"output.weight": numpy.zeros((4, 3))})

    def on_epoch_begin(self, session):
        self.calls.append(f"begin {session.epoch}")

    def on_step_end(self, session, result):
        self.calls.append(f"step {session.global_train_step} {list(result)}")

    def on_epoch_end(self, session, line):
        self.calls.append(f"end {line['epoch']} {sorted(line['valid'])}")


def batches(epoch):
    rng = numpy.random.RandomState(epoch)
    for _ in range(2):
        data = rng.normal(size=(2, 5, 4)).astype("float32")
        lengths = numpy.array([5, 3], dtype="int32")
        yield {"data": data, "data:size1": lengths, "classes": data[..., :3].argmax(-1)}


def make_session(backend):
    return training.Session(Tagger(), extern_data=EXTERN_DATA, learning_rate=0.1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_and_go_on(backend, tmp_path):
    first = make_session(backend)
    training.fit(first, batches, valid=batches, num_epochs=1, folder=tmp_path)
    steps = ["step 1 ['ce']", "step 2 ['ce']"]
    assert first.model.calls == ["init_new_run", "begin 1", *steps, "end 1 ['ce']"]
    second = make_session(backend)
    log = training.fit(second, batches, valid=batches, num_epochs=2, folder=tmp_path)
    steps = ["step 3 ['ce']", "step 4 ['ce']"]
    assert second.model.calls == ["begin 2", *steps, "end 2 ['ce']"]
    values = [line["valid"]["ce"] for line in log.lines()]
    assert len(values) == 2 and values[1] < values[0] < numpy.log(3)
    assert checkpoints.best(tmp_path, "valid_ce").name == "step-00000004"


def test_names_of_other_frameworks_are_told():
    with pytest.raises(
        TypeError, match="A defines training_step, which nothing calls; use train_s"
    ):
        type("A", (nn.RootModule,), {"training_step": lambda self: None})
    with pytest.raises(TypeError, match="defines on_epoch_start, .*; did you mean 'on_epoch_"):
        type("B", (nn.RootModule,), {"on_epoch_start": lambda self: None})


def test_errors_of_run(tmp_path):
    with pytest.raises(TypeError, match="the model is a Linear, expected an nn.RootModule"):
        model = nn.Linear(FEATURES, CLASSES)
        training.fit(training.Session(model, extern_data=EXTERN_DATA, backend="torch"), batches)
    model = type("Empty", (nn.RootModule,), {})()
    model.output = nn.Linear(FEATURES, CLASSES)
    session = training.Session(model, extern_data=EXTERN_DATA, backend="torch")
    with pytest.raises(NotImplementedError, match="Empty does not define train_step"):
        training.fit(session, batches, folder=tmp_path)
