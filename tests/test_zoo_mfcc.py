"""
Cepstral coefficients against their definition in numpy, on layers and torch.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing, zoo
from returnn_common.zoo.frontend.mfcc import make_mfcc

pytest.importorskip("tensorflow")
pytest.importorskip("torch")

RATE, LENGTHS = 8000, (3000, 1, 199, 800)


def signals() -> list[numpy.ndarray]:
    """A tone that rises, with noise: all filters get some power, of very different size."""
    rng = numpy.random.RandomState(4)
    time = numpy.arange(max(LENGTHS)) / RATE
    tone = 0.5 * numpy.sin(2 * numpy.pi * (300 + 900 * time) * time)
    return [tone[:length] + rng.randn(length) * 0.003 for length in LENGTHS]


def mel(frequency):
    return 1125 * numpy.log(1 + frequency / 700)


def reference(signal, *, num_coefficients, num_filters, f_min=60.0, f_max=0.475 * RATE):
    """The definition in the docstring of the module, one frame, filter and coefficient at a time."""
    window, step, n_fft = 200, 80, 256
    left = (window - step) // 2
    padded = numpy.pad(numpy.asarray(signal, "float64"), (left, window - 1 - left))
    hann = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(window) / window)
    edges = 700 * (numpy.exp(numpy.linspace(mel(f_min), mel(f_max), num_filters + 2) / 1125) - 1)
    bins = numpy.arange(n_fft // 2 + 1) * RATE / n_fft
    powers = []
    for start in range(0, len(signal), step):
        power = numpy.abs(numpy.fft.rfft(padded[start : start + window] * hann, n_fft)) ** 2
        rises = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        falls = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        powers.append(numpy.maximum(0, numpy.minimum(rises, falls)) @ power)
    logs = numpy.log(numpy.maximum(powers, max(numpy.max(powers) * 1e-8, 1e-10)))
    out = numpy.zeros([len(logs), num_coefficients])
    for k in range(num_coefficients):
        scale = numpy.sqrt((1 if k == 0 else 2) / num_filters)
        for n in range(num_filters):
            out[:, k] += scale * logs[:, n] * numpy.cos(numpy.pi * k * (n + 0.5) / num_filters)
    return (out - out.mean(0)) / numpy.sqrt(out.var(0) + 0.1)


def output_step(*, model, extern_data, **_):
    data = extern_data["data"]
    out, _ = model(data, in_spatial_dim=data.dims[1])
    out.mark_as_output("out")


def test_against_the_definition_on_both_backends():
    """In one batch, with a sequence of one sample, and one of less than a window."""
    extern_data = {"data": nn.Tensor("data", [nn.batch_dim, nn.SpatialDim("time")], "float32")}
    audio = signals()
    rows = numpy.random.RandomState(5).randn(len(audio), max(LENGTHS)).astype("float32")
    for row, signal in zip(rows, audio):
        row[: len(signal)] = signal
    batch = {"data": rows, "data:size1": numpy.array(LENGTHS, "int32")}
    options = {"num_coefficients": 13, "num_filters": 23}
    get_model = lambda: zoo.get("mfcc", sample_rate=RATE, **options)  # noqa: E731
    layers = testing.assert_backends_agree(
        get_model, output_step, extern_data, batch, task="forward"
    )
    (values,) = layers.values.values()
    for out, signal in zip(values, audio):
        frames = -(-len(signal) // 80)
        expected = reference(signal, **options)
        assert expected.shape == (frames, 13)
        numpy.testing.assert_allclose(out[:frames], expected, rtol=1e-4, atol=1e-4)


def test_sizes():
    model = make_mfcc()
    assert (model.in_dim.dimension, model.out_dim.dimension) == (1, 40)
    with pytest.raises(ValueError, match="need num_coefficients <= num_filters, got 40 and 20"):
        make_mfcc(num_filters=20)
    with pytest.raises(ValueError, match="0 < step_size <= window_size"):
        make_mfcc(window_size=0.005)
