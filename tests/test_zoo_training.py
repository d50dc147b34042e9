"""
Whole models train with plain RETURNN: also those whose decoders loop over the targets.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from returnn_common import nn, zoo
from returnn_common.zoo.segmental.transformer import Transformer

FEATURES, LABELS = nn.FeatureDim("features", 9), nn.FeatureDim("labels", 2)
TINY_ENCODER = {"in_dim": FEATURES, "num_cells": 6, "num_layers": 1, "pooling": ()}


def transformer():
    return zoo.get(
        "transformer",
        in_dim=FEATURES,
        target_dim=LABELS,
        num_layers=1,
        model_dim=8,
        num_heads=2,
    )


def lstm_attention():
    encoder, with_end_dim = zoo.get("blstm", **TINY_ENCODER), nn.FeatureDim("with_end", 3)
    sizes = {"num_cells": 8, "embedding_dim": 4, "key_dim": 5}
    decoder = zoo.get("lstm_decoder", encoder_dim=encoder.out_dim, target_dim=with_end_dim, **sizes)
    return Transformer(encoder, decoder, LABELS)


def transducer():
    encoder = zoo.get("blstm", **TINY_ENCODER)
    sizes = {"predictor_dim": 5, "joint_dim": 6}
    return zoo.get("transducer", in_dim=FEATURES, target_dim=LABELS, encoder=encoder, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [transformer, pytest.param(lstm_attention, marks=pytest.mark.ci), transducer],
    ids=lambda make: make.__name__,
)
def test_trains_with_returnn(make, tmp_path):
    """The loss on the toy data that RETURNN generates falls from the first epoch to the third."""
    pytest.importorskip("tensorflow")
    data = {"class": "Task12AXDataset", "num_seqs": 30}
    text = lowered(make()).config_text(
        train=data,
        dev={**data, "fixed_random_seed": 1},
        optimizer={"class": "adam"},
        learning_rate=0.01,
        batch_size=1500,
        num_epochs=3,
        model="net",
        log_verbosity=4,
    )
    (tmp_path / "train.config").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "returnn", "train.config"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out[-4000:]
    first, _, last = (float(score) for score in re.findall(r"epoch \d+ score: ([\d.]+)", out))
    assert last < 0.95 * first


def lowered(model):
    time_dim, labels_time_dim = nn.SpatialDim("time"), nn.SpatialDim("labels_time")
    dims = [nn.batch_dim, labels_time_dim]
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim, time_dim, FEATURES], "float32"),
        "classes": nn.Tensor("classes", dims, "int32", sparse_dim=LABELS),
    }

    def step(*, model, extern_data, **_):
        losses = model.losses(
            extern_data["data"],
            in_spatial_dim=time_dim,
            targets=extern_data["classes"],
            targets_spatial_dim=labels_time_dim,
        )
        for name, loss in losses.items():
            loss.mark_as_loss(name)

    return nn.lower(model, step, extern_data)
