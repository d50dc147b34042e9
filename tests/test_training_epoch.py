"""The epoch that a step function reads from the run context: in sessions on both backends and in RETURNN's loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, testing, training
from returnn_common.nn import _returnn

TIME = nn.SpatialDim("time")
FEATURES = nn.FeatureDim("features", 3)
EXTERN_DATA = {"data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32")}
LENGTHS = numpy.array([4, 2], dtype="int32")
BATCH = {"data": numpy.full([2, 4, 3], 2.0, dtype="float32"), "data:size1": LENGTHS}


class Scale(nn.Module):
    """one factor for each feature"""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter([FEATURES])
        self.scale.initial = 1.0


def train_step(*, model, extern_data, **_):
    """the loss scaled by 1 / epoch, as a schedule over epochs would do"""
    epoch = nn.cast(nn.get_run_ctx().get_epoch_tensor(), "float32")
    loss = nn.reduce_sum(model.scale * extern_data["data"], axis=FEATURES) / epoch
    loss.mark_as_loss("scaled", use_normalized_loss=True)


def forward_step(*, extern_data, **_):
    epoch = nn.get_run_ctx().get_epoch_tensor()
    out = nn.cast(extern_data["data"], "int32") * epoch
    out.mark_as_output("out", shape=[nn.batch_dim, TIME, FEATURES])


@pytest.mark.parametrize("backend", training.BACKENDS)
def test_epoch_of_a_session(backend):
    session = training.Session(
        Scale(),
        extern_data=EXTERN_DATA,
        optimizer={"class": "sgd"},
        learning_rate=0.1,
        backend=backend,
    )
    train, forward = session.step(train_step), session.step(forward_step, update=False)
    scale = 1.0
    for epoch in session.epochs(3):
        for _ in range(2):
            # three features with the value 2: the loss is 6 scale / epoch, its gradient 2 / epoch
            numpy.testing.assert_allclose(train(BATCH)["scaled"], 6 * scale / epoch, rtol=1e-5)
            scale -= 0.1 * 2 / epoch
        numpy.testing.assert_allclose(session.parameters["scale"], [scale] * 3, rtol=1e-5)
        numpy.testing.assert_array_equal(forward(BATCH)["out"][1, :2], 2 * epoch)


def test_epoch_of_returnns_network():
    """as RETURNN's engine tells it, before its loop over a dataset"""
    lowered = nn.lower(Scale(), train_step, EXTERN_DATA)
    with testing.layers_session(lowered, train=True) as (net, session):
        for epoch in (1, 4):
            net.set_run_opts(epoch=epoch, dataset_name="train")
            got = session.run(_returnn.losses_of_net(net), testing.feed_dict(net, BATCH))
            assert got == {"scaled": pytest.approx(6 * 6 / epoch)}  # 6 frames


def test_a_step_that_does_not_ask_has_no_layer_for_it():
    def step(*, model, extern_data, **_):
        nn.reduce_sum(model.scale * extern_data["data"], axis=FEATURES).mark_as_loss("sum")

    assert "epoch" not in nn.lower(Scale(), step, EXTERN_DATA).config_text()


@pytest.mark.slow
def test_epoch_of_returnns_loop(tmp_path):
    lowered = nn.lower(Scale(), train_step, EXTERN_DATA)
    text = lowered.config_text(
        train={
            "class": "StaticDataset",
            "data": [{"data": BATCH["data"][0, :length]} for length in LENGTHS],
            "output_dim": {"data": (3, 2)},
        },
        num_epochs=2,
        learning_rate=0.0,
        learning_rate_file="learning_rates",
        model="net",
        optimizer={"class": "adam"},
    )
    (tmp_path / "x.config").write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "returnn", "x.config"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    written = Path(tmp_path, "learning_rates").read_text()
    assert "'train_score': 6.0" in written and "'train_score': 3.0" in written, written
