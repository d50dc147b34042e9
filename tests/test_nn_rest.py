"""Stacking and scattering beside numpy; operations that no layer does."""

from __future__ import annotations

import inspect

import numpy
import pytest
from returnn.frontend._backend import Backend

from returnn_common import nn, testing
from returnn_common.nn._backend import LayersBackend

TIME, DIM = nn.SpatialDim("time"), nn.FeatureDim("in", 3)
CLASSES = nn.FeatureDim("classes", 5)
EXTERN = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, DIM], "float32", feature_dim=DIM),
    "labels": nn.Tensor("labels", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}
LENGTHS = numpy.array([6, 4], "int32")
DATA = {
    "data": numpy.random.RandomState(1).randn(2, 6, 3).astype("float32"),
    "data:size1": LENGTHS,
    "labels": numpy.array([[0, 4, 1, 0, 0, 1], [3, 0, 3, 1, 2, 2]], "int32"),
    "labels:size1": LENGTHS,
}


def step(*, model, extern_data, **_):
    del model
    x, labels = extern_data["data"], extern_data["labels"]
    pair = nn.SpatialDim("pair", 2)
    stacked, _ = nn.stack([x, 2 * x], out_dim=pair)
    stacked.mark_as_output("stacked", shape=[nn.batch_dim, TIME, pair, DIM])
    sums = nn.scatter(x, indices=labels, indices_dim=TIME, out_dim=CLASSES)
    sums.mark_as_output("sums", shape=[nn.batch_dim, CLASSES, DIM])


def test_stack_and_scatter():
    values = testing.assert_backends_agree(nn.Module, step, EXTERN, DATA, task="forward").values
    for i, length in enumerate(LENGTHS):
        frames = DATA["data"][i, :length]
        numpy.testing.assert_array_equal(
            values["stacked"][i, :length], numpy.stack([frames, 2 * frames], axis=1)
        )
        expected = numpy.zeros((5, 3), "float32")
        numpy.add.at(expected, DATA["labels"][i, :length], frames)
        numpy.testing.assert_allclose(values["sums"][i], expected, rtol=1e-6)


def test_scan_over_a_dim_of_fixed_size():
    """a running product over the three features"""

    def products(*, model, extern_data, **_):
        del model
        x = extern_data["data"]
        ones = nn.ones([nn.batch_dim, TIME])
        y, last = nn.scan(
            lambda frame, state: (state * frame, state * frame),
            spatial_dim=DIM,
            xs=x,
            initial=ones,
        )
        y.mark_as_output("all", shape=[nn.batch_dim, TIME, DIM])
        last.mark_as_output("last")

    values = testing.assert_backends_agree(nn.Module, products, EXTERN, DATA, task="forward").values
    expected = numpy.cumprod(DATA["data"], axis=2)
    for i, length in enumerate(LENGTHS):
        numpy.testing.assert_allclose(values["all"][i, :length], expected[i, :length], rtol=1e-5)
        numpy.testing.assert_allclose(
            values["last"][i, :length], expected[i, :length, -1], rtol=1e-5
        )


def test_scatter_modes_without_a_layer():
    def bad(*, model, extern_data, **_):
        del model
        x, labels = extern_data["data"], extern_data["labels"]
        nn.scatter(x, indices=labels, indices_dim=TIME, mode="max", out_dim=CLASSES)

    with pytest.raises(NotImplementedError, match="nn.scatter: mode 'max' with fill value"):
        nn.lower(nn.Module(), bad, EXTERN)


def test_an_operation_without_a_layer_says_so():
    def bad(*, model, extern_data, **_):
        del model
        nn.sort(extern_data["data"], axis=TIME)

    with pytest.raises(
        NotImplementedError, match="'sort' has no RETURNN layer. It works on .*torch"
    ):
        nn.lower(nn.Module(), bad, EXTERN)


def test_no_operation_fails_without_a_word():
    """what RF's backend leaves open, but for raw tensors, ours does or refuses"""
    open_here = [
        name
        for name, function in inspect.getmembers(Backend, inspect.isroutine)
        if not name.startswith("_")
        and not name.endswith("_raw")
        and inspect.getattr_static(LayersBackend, name) is inspect.getattr_static(Backend, name)
        and inspect.getsource(function).rstrip().endswith("raise NotImplementedError")
    ]
    assert open_here == ["get_tensor_consumers", "get_tensor_dependencies"]
