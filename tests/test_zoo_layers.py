"""
The entries as RETURNN layers: the same values and gradients as on torch, with the same parameters.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing, zoo
from returnn_common.zoo.encoder import conformer

pytest.importorskip("tensorflow")
pytest.importorskip("torch")

LENGTHS = (61, 1, 30)


def features(size, *, lengths=LENGTHS):
    """:return: extern data of features, and a batch with noise in the padding"""
    time_dim, dim = nn.SpatialDim("time"), nn.FeatureDim("feature", size)
    extern_data = {"data": nn.Tensor("data", [nn.batch_dim, time_dim, dim], "float32")}
    raw = numpy.random.RandomState(4).randn(len(lengths), max(lengths), size).astype("float32")
    return extern_data, {"data": raw, "data:size1": numpy.array(lengths, "int32")}


def audio(lengths):
    """:return: extern data of audio and labels, and a batch"""
    time_dim, labels_dim = nn.SpatialDim("time"), nn.SpatialDim("labels")
    vocab_dim = nn.FeatureDim("vocab", 4)
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim, time_dim], "float32"),
        "classes": nn.Tensor("classes", [nn.batch_dim, labels_dim], "int32", sparse_dim=vocab_dim),
    }
    raw = numpy.random.RandomState(4).randn(len(lengths), max(lengths)).astype("float32")
    batch = {
        "data": raw * 0.1,
        "data:size1": numpy.array(lengths, "int32"),
        "classes": numpy.array([[1, 3, 3], [2, 0, 0], [0, 0, 0]], "int32"),
        "classes:size1": numpy.array([3, 1, 0], "int32"),
    }
    return extern_data, batch


def call(model, source):
    """:return: the output of an encoder or front end"""
    out, _ = model(source, in_spatial_dim=source.dims[1])
    return out


def loss_step(*, model, extern_data, **_):
    out = call(model, extern_data["data"])
    nn.reduce_mean(nn.square(out), axis=out.feature_dim).mark_as_loss("square")


def output_step(*, model, extern_data, **_):
    call(model, extern_data["data"]).mark_as_output("out")


@pytest.mark.parametrize("conv_norm", [nn.BatchNorm, nn.LayerNorm])
def test_conformer_block_in_training(conv_norm):
    """With the statistics of the batch, over the frames within the sequences."""
    extern_data, batch = features(8)

    def get_model():
        return conformer.make_conformer_block(
            extern_data["data"].dims[2],
            num_heads=2,
            kernel_size=5,
            dropout=0.0,
            conv_norm=conv_norm,
        )

    model = get_model()
    options = {
        "parameters": testing.random_parameters(model),
        "gradients": True,
        "train": True,
    }
    layers = testing.run_layers(nn.lower(model, loss_step, extern_data), batch, **options)
    torch = testing.run_torch(get_model, loss_step, extern_data, batch, **options)
    numpy.testing.assert_allclose(layers.values["square"], torch.values["square"], rtol=1e-4)
    assert set(layers.gradients) == set(torch.gradients)
    for path, expected in torch.gradients.items():
        atol = 1e-4 * numpy.abs(expected).max() + 1e-6
        numpy.testing.assert_allclose(layers.gradients[path], expected, atol=atol, err_msg=path)


def test_logmel():
    lengths = (3000, 1, 800)
    extern_data, batch = audio(lengths)
    del extern_data["classes"]
    get_model = lambda: zoo.get("logmel")  # noqa: E731
    testing.assert_backends_agree(get_model, output_step, extern_data, batch, task="forward")


def test_ctc_decodes_greedily():
    extern_data, batch = audio((3000, 700, 1000))
    vocab_dim = extern_data["classes"].sparse_dim

    def get_model():
        encoder = zoo.get("conformer", out_dim=8, num_layers=1, num_heads=2, subsampling=2)
        return zoo.get("ctc", target_dim=vocab_dim, encoder=encoder, sample_rate=8000)

    testing.assert_backends_agree(get_model, decode_step, extern_data, batch, task="forward")


def decode_step(*, model, extern_data, **_):
    source = extern_data["data"]
    labels, _ = model.decode_greedy(source, in_spatial_dim=source.dims[1])
    labels.mark_as_output("labels")


@pytest.mark.parametrize("lengths", [(1,), (3, 1), (100, 49, 24)])
def test_specaugment(lengths):
    """Without training nothing changes; with it, masks of the widths that there may be."""
    extern_data, batch = features(40, lengths=lengths)
    batch["data"][:] = 1
    lowered = nn.lower(zoo.get("specaugment"), kept_step, extern_data)
    still = testing.run_layers(lowered, batch)
    numpy.testing.assert_allclose(still.values["kept"], sum(lengths) * 40)
    moving = testing.run_layers(lowered, batch, train=True)
    assert moving.values["kept"] < sum(lengths) * 40
    assert moving.values["kept"] >= sum(n // 2 for n in lengths) - 20


def kept_step(*, model, extern_data, **_):
    source = extern_data["data"]
    out = model(source, spatial_dim=source.dims[1])
    nn.reduce_sum(out, axis=out.feature_dim).mark_as_loss("kept")
