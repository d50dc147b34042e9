"""
Log-mel features against their definition, written in numpy.
"""

from __future__ import annotations

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from returnn_common import nn, testing
from returnn_common.zoo.frontend.logmel import make_logmel

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def torch_backend():
    with testing.torch_backend():
        rf.init_forward_step_run_ctx(step=0, epoch=1)
        yield


def features(module, signals, *, with_channel=False):
    """:return: the features `[T, F]` of each signal, computed in one batch with noise as padding"""
    lengths = torch.tensor([len(signal) for signal in signals], dtype=torch.int32)
    batch_dim = Dim(len(signals), name="batch")
    time_dim = Dim(Tensor("time", [batch_dim], "int32", raw_tensor=lengths), name="samples")
    raw = numpy.random.RandomState(5).randn(len(signals), max(lengths))
    for row, signal in zip(raw, signals, strict=True):
        row[: len(signal)] = signal
    dims = [batch_dim, time_dim] + [nn.FeatureDim("channel", 1)] * with_channel
    raw = torch.tensor(raw.reshape([d.get_dim_value() for d in dims]), dtype=torch.float32)
    source = Tensor("audio", dims, "float32", raw_tensor=raw)
    if with_channel:
        source.feature_dim = dims[-1]
    out, out_dim = module(source, in_spatial_dim=time_dim)
    assert out.feature_dim == module.out_dim
    raw = out.copy_transpose([batch_dim, out_dim, module.out_dim]).raw_tensor
    return [row[:n].numpy() for row, n in zip(raw, out_dim.dyn_size, strict=True)]


def signals(*lengths):
    """A tone that rises, with noise: all filters get some power, of very different size."""
    rng = numpy.random.RandomState(4)
    for length in lengths:
        time = numpy.arange(length) / 8000
        yield 0.5 * numpy.sin(2 * numpy.pi * (300 + 900 * time) * time) + rng.randn(length) * 0.003


def mel(frequency):
    return 1125 * numpy.log(1 + frequency / 700)


def reference(signal, *, rate=8000, num_filters=80, f_min=60.0, f_max=3800.0):
    """The definition in the docstring of the module, one frame and one filter at a time."""
    window, step = rate // 40, rate // 100
    n_fft = {200: 256}[window]
    left = (window - step) // 2
    padded = numpy.pad(numpy.asarray(signal, "float64"), (left, window - 1 - left))
    hann = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(window) / window)
    edges = 700 * (numpy.exp(numpy.linspace(mel(f_min), mel(f_max), num_filters + 2) / 1125) - 1)
    bins = numpy.arange(n_fft // 2 + 1) * rate / n_fft
    out = []
    for start in range(0, len(signal), step):
        power = numpy.abs(numpy.fft.rfft(padded[start : start + window] * hann, n_fft)) ** 2
        rises = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        falls = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        out.append(numpy.maximum(0, numpy.minimum(rises, falls)) @ power)
    out = numpy.log(numpy.maximum(out, max(numpy.max(out) * 1e-8, 1e-10)))
    return (out - out.mean(0)) / numpy.sqrt(out.var(0) + 0.1)


def test_against_the_definition():
    """In one batch, with a length of one sample, of less than a window, and of no whole steps."""
    audio = list(signals(4000, 1, 79, 80, 81, 199, 200, 201, 3333))
    got = features(make_logmel(8000), audio)
    for out, signal in zip(got, audio, strict=True):
        assert len(out) == -(-len(signal) // 80)
        numpy.testing.assert_allclose(out, reference(signal), rtol=1e-4, atol=1e-4)


def test_alone_equals_in_a_batch():
    audio = list(signals(4000, 1, 199, 3333))
    module = make_logmel(8000)
    for out, signal in zip(features(module, audio), audio, strict=True):
        numpy.testing.assert_allclose(out, features(module, [signal])[0], rtol=1e-5, atol=1e-5)


def test_level_does_not_matter():
    (audio,) = signals(4000)
    loud, quiet = (features(make_logmel(8000), [audio * level])[0] for level in (1.0, 1 / 9))
    numpy.testing.assert_allclose(loud, quiet, rtol=1e-3, atol=1e-3)


def test_every_channel_is_normalised():
    (out,) = features(make_logmel(16_000), list(signals(16_000)))
    assert out.shape == (100, 80)
    numpy.testing.assert_allclose(out.mean(0), 0, atol=1e-4)
    numpy.testing.assert_allclose(out.std(0), 0.95, atol=0.05)


def test_no_filter_is_empty():
    """Also at 8 kHz, where the lowest filters are narrower than two bins."""
    for rate in (8_000, 16_000):
        noise = numpy.random.RandomState(2).randn(rate)
        assert features(make_logmel(rate), [noise])[0].std(0).min() > 0.8


def test_digital_silence_is_finite():
    (out,) = features(make_logmel(8000), [numpy.zeros(500)])
    numpy.testing.assert_array_equal(out, numpy.zeros([7, 80]))


def test_channel_axis_of_size_one():
    audio = list(signals(700, 300))
    module = make_logmel(8000, 20)
    for a, b in zip(
        features(module, audio), features(module, audio, with_channel=True), strict=True
    ):
        numpy.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": 0.005}, "0 < step_size <= window_size, got 0.01 and 0.005 seconds"),
        ({"step_size": 0.0}, "0 < step_size"),
        ({"f_max": 9000}, "f_max <= 8000 Hz"),
        ({"f_min": 5000, "f_max": 4000}, "f_min < f_max"),
    ],
)
def test_bad_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        make_logmel(**options)
