"""A loop over targets in training: RETURNN's nets inside of layers have no targets unless the config says so."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing

pytest.importorskip("tensorflow")


def test_scan_over_targets():
    """The running sum of the labels and a parameter, 1 + 0.5, 1 + 2 + 1.0, ..., summed over the labels."""
    labels_dim = nn.SpatialDim("labels")
    label_dim = nn.FeatureDim("label", 9)
    dims = [nn.batch_dim, labels_dim]
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim], "float32"),
        "classes": nn.Tensor("classes", dims, "int32", sparse_dim=label_dim),
    }

    def step(*, model, extern_data, **_):
        def body(label, state):
            state = state + label + model.weight
            return state, state

        labels = nn.cast(extern_data["classes"], "float32")
        initial = nn.zeros([nn.batch_dim])
        sums, _ = nn.scan(body, spatial_dim=labels_dim, xs=labels, initial=initial)
        sums.mark_as_loss("sums")

    model = nn.Module()
    model.weight = nn.Parameter([])
    batch = {
        "data": numpy.zeros([2], "float32"),
        "classes": numpy.array([[1, 2, 3], [4, 0, 0]], "int32"),
        "classes:size1": numpy.array([3, 1], "int32"),
    }
    lowered = nn.lower(model, step, extern_data)
    result = testing.run_layers(lowered, batch, parameters={"weight": numpy.float32(0.5)})
    expected = (1.5 + 4.0 + 7.5) + 4.5
    numpy.testing.assert_allclose(result.values["sums"], expected)
