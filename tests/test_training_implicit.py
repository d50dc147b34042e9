"""RETURNN's own loop, a loop of one's own and declared stages train the same parameters, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import returnn_common

MODULE = """
import numpy
from returnn_common import nn, training

time_dim = nn.SpatialDim("time")
feature_dim, label_dim = nn.FeatureDim("features", 7), nn.FeatureDim("labels", 3)
extern_data = {
    "data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, time_dim], "int32", sparse_dim=label_dim),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(feature_dim, nn.FeatureDim("hidden", 5))
        self.norm = nn.LayerNorm(self.hidden.out_dim)
        # in a net without layers over time, RETURNN's TensorFlow engine cuts sequences into frames
        self.conv = nn.Conv1d(
            self.hidden.out_dim, nn.FeatureDim("conv", 6), 3, padding="same", with_bias=False
        )
        self.batch_norm = nn.BatchNorm(self.conv.out_dim)
        self.output = nn.Linear(self.conv.out_dim, label_dim)

    def __call__(self, x):
        x = self.norm(nn.tanh(self.hidden(x)))
        x, _ = self.conv(x, in_spatial_dim=time_dim)
        return self.output(self.batch_norm(x))


def get_model():
    return Model()


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss("ce", use_normalized_loss=True)


def sequences():
    rng = numpy.random.RandomState(1)
    for _ in range(10):
        data = rng.normal(size=(rng.randint(3, 9), 7)).astype("float32")
        yield {"data": data, "classes": data[:, :3].argmax(axis=1).astype("int32")}


def batches():
    seqs = list(sequences())
    for pair in zip(seqs[::2], seqs[1::2]):
        yield [seq["data"] for seq in pair], [seq["classes"] for seq in pair]


def train(backend, optimizer, save):
    session = training.Session(
        Model(), extern_data=extern_data, optimizer=optimizer, learning_rate=0.01, backend=backend
    )
    step = session.step(train_step)
    save(session)
    for _ in session.epochs(3):
        for batch in training.batches_from(batches(), extern_data):
            step(batch)
    numpy.savez("own.npz", **session.parameters)
    train_declared(backend, optimizer)


def declare(model, data):
    with nn.Stages() as stages, nn.epoch_loop(3), nn.step_loop(data):
        tensors = {name: nn.extern_data(template) for name, template in extern_data.items()}
        train_step(model=model, extern_data=tensors)
    return stages


def train_declared(backend, optimizer):
    model = Model()
    stages = declare(model, lambda epoch: training.batches_from(batches(), extern_data))
    session = training.Session(
        model, extern_data=extern_data, optimizer=optimizer, learning_rate=0.01, backend=backend
    )
    training.run(session, stages=stages)
    numpy.savez("declared.npz", **session.parameters)


settings = dict(
    train={
        "class": "StaticDataset",
        "data": list(sequences()),
        "output_dim": {"data": (7, 2), "classes": (3, 1)},
    },
    batch_size=10_000,
    max_seqs=2,
    num_epochs=3,
    learning_rate=0.01,
    model="models/net",
    log_verbosity=3,
)
"""

LAYERS = """
import my_training as t
from returnn_common import nn, training

def save(session):
    net = session._engine.nets[0]
    with session._engine.graph.as_default():
        net.save_params_to_file("init", session=session._engine.session)

settings = dict(
    num_epochs=3,
    train=t.settings["train"],
    optimizer={"class": "adam", "epsilon": 1e-16},
    preload_from_files={"init": {"filename": "init", "init_for_train": True}},
)
settings.update(t.settings)
lowered = nn.lower(t.get_model(), t.train_step, t.extern_data)
text = lowered.config_text(**settings)
open("x.config", "w").write(text)
model = t.get_model()
declared = t.declare(model, settings.pop("train"))
assert training.to_config(model, declared, **settings) == text
t.train("tensorflow-net-dict", {"class": "adam", "epsilon": 1e-16}, save)
"""

LAYERS_RESULT = """
import numpy, tensorflow as tf
import my_training as t
from returnn_common import nn

lowered = nn.lower(t.get_model(), t.train_step, t.extern_data)
reader = tf.train.load_checkpoint("models/net.003")
values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
numpy.savez("implicit.npz", **lowered.from_tensorflow(values))
"""

TORCH = r"""
import my_training as t
from returnn_common import nn

def save(session):
    import torch
    torch.save({"model": {p: torch.tensor(v) for p, v in session.parameters.items()}}, "init.pt")

text = nn.torch_config(
    t.get_model, t.train_step, t.extern_data,
    optimizer={"class": "adam", "eps": 1e-8},
    preload_from_files={"init": {"filename": "init.pt", "init_for_train": True}},
    device="cpu",
    torch_dataloader_opts={"num_workers": 0},
    **t.settings,
)
open("x.config", "w").write(text.replace("backend =", "import numpy\n\nbackend =", 1))
t.train("torch", {"class": "adam"}, save)
"""

TORCH_RESULT = """
import numpy, torch
model = torch.load("models/net.003.pt", map_location="cpu")["model"]
numpy.savez("implicit.npz", **{path: value.numpy() for path, value in model.items()})
"""

PROGRAMS = {"tensorflow-net-dict": (LAYERS, LAYERS_RESULT), "torch": (TORCH, TORCH_RESULT)}
RETURNN = "import sys, runpy; sys.argv = ['returnn', 'x.config']; runpy.run_module('returnn', run_name='__main__')"


def run(code: str, folder: Path) -> str:
    root = Path(returnn_common.__file__).parent.parent
    path = os.pathsep.join([str(folder), str(root), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("backend", PROGRAMS)
def test_three_epochs_give_the_same_parameters(backend, tmp_path):
    (tmp_path / "my_training.py").write_text(MODULE)
    own, implicit = PROGRAMS[backend]
    run(own, tmp_path)
    run(RETURNN, tmp_path)
    run(implicit, tmp_path)
    expected = dict(numpy.load(tmp_path / "implicit.npz"))
    for loop in ("own", "declared"):
        got = dict(numpy.load(tmp_path / f"{loop}.npz"))
        assert got.keys() == expected.keys() and len(got) == 11
        for path, value in expected.items():
            numpy.testing.assert_array_equal(got[path], value, err_msg=f"{loop} {path}")
