"""
Stochastic depth, weight dropout, variational noise: nothing outside of training; the right statistics in it.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing
from returnn_common.zoo.encoder.transformer import make_trafo_enc_block
from returnn_common.zoo.regularisation.stochastic_depth import stochastic_depth
from returnn_common.zoo.regularisation.weights import variational_noise, weight_dropout

pytest.importorskip("torch")

SIZE, SEQUENCES, FRAMES = 40, 400, 3


class Doubled(nn.Module):
    """An encoder block without parameters."""

    def __init__(self, dim):
        super().__init__()
        self.in_dim = self.out_dim = dim

    def __call__(self, source, *, in_spatial_dim):
        return 2.0 * source, in_spatial_dim


def ones(num=SEQUENCES):
    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("feature", SIZE)]
    batch = {
        "data": numpy.ones([num, FRAMES, SIZE], "float32"),
        "data:size1": numpy.full([num], FRAMES, "int32"),
    }
    return {"data": nn.Tensor("data", dims, "float32")}, batch


def outputs(make, call, *, train):
    """:return: what comes out on torch, as numpy"""
    data, batch = ones()
    with testing.torch_backend():
        nn.set_random_seed(1)
        model = make(data["data"].dims[2])
    got = []

    def step(*, model, extern_data, **_):
        out = call(model, extern_data["data"])
        got.append(out.raw_tensor.detach().numpy())
        nn.reduce_mean(out, axis=out.feature_dim).mark_as_loss("mean")

    testing.run_torch(lambda: model, step, data, batch, train=train)
    return got[0]


def call_block(model, source):
    return model(source, in_spatial_dim=source.dims[1])[0]


def last_of_two(dim):
    return stochastic_depth([Doubled(dim), Doubled(dim)], 0.5)[1]


def test_stochastic_depth_leaves_out_whole_sequences():
    """2 x outside of training; in it x, or x + 2 (2 x - x) = 3 x for a whole sequence, each half of the time."""
    assert (outputs(last_of_two, call_block, train=False) == 2.0).all()
    out = outputs(last_of_two, call_block, train=True).reshape(SEQUENCES, -1)
    assert (out == out[:, :1]).all()
    assert set(numpy.unique(out)) == {1.0, 3.0}
    assert 0.4 < (out[:, 0] == 3.0).mean() < 0.6


def test_probabilities_rise_linearly():
    dim = nn.FeatureDim("x", 8)
    blocks = [make_trafo_enc_block(dim, num_heads=2) for _ in range(4)]
    assert [b.probability for b in stochastic_depth(blocks, 0.4)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4]
    )


def linear(change):
    def make(dim):
        module = nn.Linear(dim, nn.FeatureDim("out", SIZE), with_bias=False)
        module.weight.initial = 1.0
        return change(module)

    return make


def call_linear(model, source):
    return model(source)


def test_weight_dropout():
    """A sum of 40 weights, each 0 or 1 / (1 - 0.2), the same for all frames of a step."""
    make = linear(lambda module: weight_dropout(module, 0.2))
    assert (outputs(make, call_linear, train=False) == SIZE).all()
    out = outputs(make, call_linear, train=True)
    assert (out == out[:1, :1]).all()
    kept = out[0, 0] / 1.25
    numpy.testing.assert_allclose(kept, kept.round(), atol=1e-4)
    assert 0.75 < kept.mean() / SIZE < 0.85


def test_variational_noise():
    """The sum of 40 weights with a deviation of 0.5 has one of 0.5 sqrt(40)."""
    make = linear(lambda module: variational_noise(module, 0.5))
    assert (outputs(make, call_linear, train=False) == SIZE).all()
    noise = outputs(make, call_linear, train=True)[0, 0] - SIZE
    assert 0.6 < noise.std() / (0.5 * SIZE**0.5) < 1.4
    assert abs(noise.mean()) < 3 * 0.5


@pytest.mark.parametrize("change", [weight_dropout, variational_noise])
def test_layers_agree_with_torch_outside_of_training(change):
    pytest.importorskip("tensorflow")
    data, batch = ones(2)

    def make():
        dim = data["data"].dims[2]
        return change(nn.Linear(dim, nn.FeatureDim("out", 3)))

    def step(*, model, extern_data, **_):
        out = model(extern_data["data"])
        nn.reduce_sum(nn.square(out), axis=out.feature_dim).mark_as_loss("square")

    still = testing.assert_backends_agree(make, step, data, batch)
    model = make()
    lowered = nn.lower(model, step, data)
    assert set(lowered.parameters) == {"weight", "bias"}
    options = {"parameters": testing.random_parameters(model), "train": True}
    moving = testing.run_layers(lowered, batch, **options)
    assert moving.values["square"] != still.values["square"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: weight_dropout(m, 1.0), r"the probability is 1.0, expected one in \[0, 1\)"),
        (lambda m: variational_noise(m, -1.0), "the deviation is -1.0, expected one >= 0"),
        (
            lambda m: weight_dropout(m, pattern="*wight"),
            r"no parameter matches '\*wight'; there are: weight, bias",
        ),
        (lambda m: stochastic_depth([m]), "the block maps .*a.* to .*b"),
    ],
)
def test_bad_options(call, message):
    module = nn.Linear(nn.FeatureDim("a", 3), nn.FeatureDim("b", 2))
    with pytest.raises(ValueError, match=message):
        call(module)
