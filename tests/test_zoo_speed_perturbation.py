"""
Speed perturbation: a sine becomes one of another frequency, and outside of training nothing happens.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing, zoo

pytest.importorskip("torch")
pytest.importorskip("tensorflow")

LENGTHS = (1000, 301)


def case():
    dims = [nn.batch_dim, nn.SpatialDim("time")]
    time = numpy.arange(max(LENGTHS))
    batch = {
        "data": numpy.stack([numpy.sin(0.3 * time)] * 2).astype("float32"),
        "data:size1": numpy.array(LENGTHS, "int32"),
    }
    return {"data": nn.Tensor("data", dims, "float32")}, batch


def loss_step(*, model, extern_data, **_):
    source = extern_data["data"]
    out, _ = model(source, in_spatial_dim=source.dims[1])
    out.mark_as_loss("audio")  # not reduced: one value for each sample


def rows(percent, *, layers, train=True):
    """:return: the audio of each sequence at this speed"""
    data, batch = case()
    make = lambda: zoo.get("speed_perturbation", percents=(percent,))  # noqa: E731
    if layers:
        lowered = nn.lower(make(), loss_step, data)
        with testing.layers_session(lowered, train=train) as (net, session):
            out = net.get_layer("audio").output.copy_as_batch_major()
            size = out.dims[1].dyn_size
            feed = testing.feed_dict(net, batch)
            values, lengths = session.run([out.placeholder, size], feed_dict=feed)
        return [row[:length] for row, length in zip(values, lengths)]
    result = testing.run_torch(make, loss_step, data, batch, train=train)
    return result.rows["audio"]


@pytest.mark.parametrize("layers", [False, True], ids=["torch", "layers"])
@pytest.mark.parametrize("percent", [90, 100, 110])
def test_sine_changes_its_frequency(percent, layers):
    """sin(0.3 n) at 1.1 times the speed is sin(0.33 n), for ceil(N / 1.1) samples; the ends are smoothed."""
    for row, length in zip(rows(percent, layers=layers), LENGTHS, strict=True):
        assert len(row) == -(-length * 100 // percent)
        expected = numpy.sin(0.3 * percent / 100 * numpy.arange(len(row)))
        numpy.testing.assert_allclose(row[10:-10], expected[10:-10], atol=0.02)


def test_normal_speed_is_the_audio_itself():
    _, batch = case()
    for row, source, length in zip(rows(100, layers=False), batch["data"], LENGTHS, strict=True):
        numpy.testing.assert_allclose(row, source[:length], atol=1e-5)


def test_high_frequencies_do_not_fold_back():
    """Faster by 2, frequencies above a quarter of the rate are lost, not heard as other ones."""
    data, batch = case()
    batch["data"] = numpy.stack([numpy.sin(0.8 * numpy.pi * numpy.arange(1000))] * 2)
    batch["data"] = batch["data"].astype("float32")
    make = lambda: zoo.get("speed_perturbation", percents=(200,), num_taps=64)  # noqa: E731
    result = testing.run_torch(make, loss_step, data, batch, train=True)
    assert numpy.abs(result.rows["audio"][0][40:-40]).max() < 0.02


def test_nothing_outside_training():
    _, batch = case()
    for row, source, length in zip(
        rows(90, layers=False, train=False), batch["data"], LENGTHS, strict=True
    ):
        numpy.testing.assert_array_equal(row, source[:length])


def test_every_sequence_draws_for_itself():
    dims = [nn.batch_dim, nn.SpatialDim("time")]
    batch = {
        "data": numpy.ones([300, 100], "float32"),
        "data:size1": numpy.full([300], 100, "int32"),
    }
    make = lambda: zoo.get("speed_perturbation")  # noqa: E731
    data = {"data": nn.Tensor("data", dims, "float32")}
    result = testing.run_torch(make, loss_step, data, batch, train=True)
    lengths, counts = numpy.unique([len(row) for row in result.rows["audio"]], return_counts=True)
    assert lengths.tolist() == [91, 100, 112]
    assert (counts > 60).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"percents": ()}, r"expected positive percents, got \(\)"),
        ({"percents": (90, 0)}, r"expected positive percents, got \(90, 0\)"),
        ({"num_taps": 5}, "expected an even num_taps from 2 on, got 5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        zoo.get("speed_perturbation", **options)
