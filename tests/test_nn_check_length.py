"""nn.check_length: nothing happens up to the longest length that is allowed, behind it a clear error."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing

tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch")


def step(*, model, extern_data, **_):
    source = extern_data["data"]
    out = nn.check_length(source, spatial_dim=source.dims[1], max_length=3)
    (out * 2.0).mark_as_output("out", shape=source.dims)


def case(*lengths):
    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("feature", 2)]
    data = {"data": nn.Tensor("data", dims, "float32")}
    raw = numpy.ones([len(lengths), max(lengths), 2], "float32")
    return data, {"data": raw, "data:size1": numpy.array(lengths, "int32")}


def test_length_within():
    data, batch = case(3, 1)
    lowered = nn.lower(nn.Module(), step, data, task="forward")
    for result in (
        testing.run_layers(lowered, batch),
        testing.run_torch(nn.Module, step, data, batch, task="forward"),
    ):
        numpy.testing.assert_array_equal(result.values["out"], 2 * batch["data"])


def test_length_beyond():
    data, batch = case(2, 4)
    lowered = nn.lower(nn.Module(), step, data, task="forward")
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than the max_length 3"):
        testing.run_layers(lowered, batch)
    with pytest.raises(ValueError, match="time.*a sequence of 4 is longer than 3"):
        testing.run_torch(nn.Module, step, data, batch, task="forward")
