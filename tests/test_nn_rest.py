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


class TwoTables(nn.Module):
    """two parameters of one module, both looked up, and two more both multiplied with"""

    def __init__(self):
        super().__init__()
        out_dim = nn.FeatureDim("out", 4)
        self.out_dim = out_dim
        self.a, self.b = nn.Parameter([CLASSES, DIM]), nn.Parameter([CLASSES, DIM])
        self.c, self.d = nn.Parameter([DIM, out_dim]), nn.Parameter([DIM, out_dim])

    def __call__(self, labels: nn.Tensor) -> nn.Tensor:
        a, b = (nn.gather(table, indices=labels, axis=CLASSES) for table in (self.a, self.b))
        return nn.matmul(a - b, self.c, reduce=DIM) - nn.matmul(a, self.d, reduce=DIM)


def test_parameters_of_one_module_that_are_used_alike_stay_apart():
    def two_step(*, model, extern_data, **_):
        out = model(extern_data["labels"])
        nn.reduce_mean(nn.square(out), axis=model.out_dim).mark_as_loss("square")

    lowered = nn.lower(TwoTables(), two_step, EXTERN)
    assert len({variable.name for variable in lowered.parameters.values()}) == 4
    testing.assert_backends_agree(TwoTables, two_step, EXTERN, DATA)


def test_zero_minus_something():
    """RF itself gives x for 0 - x"""

    def negative(*, model, extern_data, **_):
        del model
        (0 - extern_data["data"]).mark_as_output("int")
        (0.0 - extern_data["data"]).mark_as_output("float")

    values = testing.assert_backends_agree(nn.Module, negative, EXTERN, DATA, task="forward").values
    for i, length in enumerate(LENGTHS):
        for value in values.values():
            numpy.testing.assert_array_equal(value[i, :length], -DATA["data"][i, :length])


def test_a_loss_over_dims_of_fixed_size_only():
    def norms(*, model, extern_data, **_):
        del extern_data
        nn.square(model.weight).mark_as_loss("squares")

    get_model = lambda: nn.Linear(DIM, nn.FeatureDim("out", 4))  # noqa: E731
    testing.assert_backends_agree(get_model, norms, EXTERN, DATA)


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
