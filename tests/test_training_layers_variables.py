"""One variable for each parameter on layers, whichever layers use it in each step, against numpy and torch."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, training

TIME = nn.SpatialDim("time")
FEATURES, HIDDEN = nn.FeatureDim("features", 5), nn.FeatureDim("hidden", 7)
WIDTH = nn.SpatialDim("width", 3)
EXTERN_DATA = {"data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32")}
BATCH = {
    "data": numpy.random.RandomState(1).normal(size=(2, 4, 5)).astype("float32"),
    "data:size1": numpy.array([4, 3], dtype="int32"),
}


class Model(nn.Module):
    """a convolution and a norm, which layers own, and parameters of its own"""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm(FEATURES)
        self.conv = nn.Conv1d(FEATURES, HIDDEN, 3, padding="same")
        self.first, self.second = nn.Parameter([FEATURES, HIDDEN]), nn.Parameter([FEATURES, HIDDEN])
        self.filter = nn.Parameter([HIDDEN, FEATURES, WIDTH])
        for param in (self.first, self.second, self.filter):
            param.initial = nn.init.Glorot()


def mark(x):
    nn.reduce_mean(nn.square(x), axis=HIDDEN).mark_as_loss("loss", use_normalized_loss=True)


def conv(*, model, extern_data, **_):
    mark(model.conv(model.norm(extern_data["data"]), in_spatial_dim=TIME)[0])


def tied_conv(*, model, extern_data, **_):
    """the filter of the convolution, in a second one and in a product: no layer owns it"""
    x, options = extern_data["data"], {"in_dim": FEATURES, "out_dim": HIDDEN}
    options.update(in_spatial_dims=[TIME], filter_size=[model.conv.filter_size[0]], padding="same")
    one, _ = nn.conv(x, filter=model.conv.filter, bias=model.conv.bias, **options)
    other, _ = nn.conv(x, filter=model.conv.filter, **options)
    mark(one + other * nn.reduce_mean(model.conv.filter, axis=model.conv.filter.dims))


def conv_of_own_filter(*, model, extern_data, **_):
    x, _ = nn.conv(
        extern_data["data"],
        in_dim=FEATURES,
        out_dim=HIDDEN,
        in_spatial_dims=[TIME],
        filter=model.filter,
        filter_size=[WIDTH],
        padding="same",
    )
    mark(x)


def first(*, model, extern_data, **_):
    mark(nn.matmul(extern_data["data"], model.first, reduce=FEATURES))


def second(*, model, extern_data, **_):
    """the layer that owns it has the name that the layer of the other one has"""
    mark(nn.matmul(extern_data["data"], model.second, reduce=FEATURES))


def squares(*, model, extern_data, **_):
    """of all parameters, so no layer owns any"""
    parameters = [p for p in model.parameters() if not p.auxiliary]
    total = sum(nn.reduce_sum(nn.square(p), axis=p.dims) for p in parameters)
    (total + 0.0 * nn.reduce_sum(extern_data["data"], axis=FEATURES)).mark_as_loss(
        "loss", use_normalized_loss=True
    )


def halved(*, model, extern_data, **_):
    """the filter is changed in the step itself"""
    model.conv.filter.assign(0.5 * model.conv.filter)
    squares(model=model, extern_data=extern_data)


SLOW = pytest.mark.slow
ORDERS = [
    pytest.param((conv, tied_conv, halved), id="owned first"),
    pytest.param((squares, conv_of_own_filter, conv), id="borrowed first"),
    pytest.param((first, second, squares), id="one name for two"),
    pytest.param((tied_conv, conv), id="tied first", marks=SLOW),
    pytest.param((halved, conv), id="assigned first", marks=SLOW),
    pytest.param((conv_of_own_filter, squares), id="own filter first", marks=SLOW),
]


@pytest.mark.parametrize("steps", ORDERS)
def test_steps_in_turn_are_as_on_torch(steps):
    def run(backend):
        session = training.Session(
            Model(), extern_data=EXTERN_DATA, learning_rate=0.02, backend=backend
        )
        made = [session.step(step) for step in steps]
        losses = [step(BATCH)["loss"] for _ in range(2) for step in made]
        number = len(session._engine.variables) if backend != "torch" else None
        return losses, session.parameters, number

    losses, parameters, number = run("tensorflow-net-dict")
    expected, expected_parameters, _ = run("torch")
    numpy.testing.assert_allclose(losses, expected, rtol=1e-4)
    for path, value in expected_parameters.items():
        numpy.testing.assert_allclose(parameters[path], value, atol=1e-5, err_msg=path)
    assert number <= len(expected_parameters)


def test_a_filter_is_one_variable_by_hand():
    """an update in the step that borrows the filter is seen in the step whose layer owns it, and the reverse"""

    def forward(*, model, extern_data, **_):
        out, _ = model.conv(extern_data["data"], in_spatial_dim=TIME)
        out.mark_as_output("out", shape=[nn.batch_dim, TIME, HIDDEN])
        model.filter.mark_as_output("filter", shape=model.filter.dims)

    session = training.Session(
        Model(), extern_data=EXTERN_DATA, optimizer={"class": "sgd"}, learning_rate=0.1
    )
    step = session.step(forward, update=False)
    shrink = session.step(squares)
    before = session.parameters
    shrink(BATCH)
    # the gradient of a square is twice the value
    filters = {name: 0.8 * before[name] for name in ("conv.filter", "filter")}
    got = step(BATCH)
    numpy.testing.assert_allclose(got["filter"], filters["filter"], rtol=1e-5)
    x = numpy.pad(BATCH["data"][0], [(1, 1), (0, 0)])
    expected = sum(x[i : i + 4] @ filters["conv.filter"][:, :, i].T for i in range(3))
    numpy.testing.assert_allclose(got["out"][0], expected + 0.8 * before["conv.bias"], atol=1e-5)
