"""
Log-mel features of raw audio, computed in the graph, normalised per utterance.

Definition, for a window of W and a step of S samples: the audio is padded with zeros, (W - S) // 2
on the left, W - 1 in all, so that T samples give ceil(T / S) frames and frame t is centred on the
samples t S ... (t + 1) S - 1 that it stands for. Even one sample gives one frame. Each frame is
multiplied with a Hann window, and its power spectrum with triangular filters of height 1, equally
spaced on the mel scale 1125 ln(1 + f / 700). Then the natural logarithm, not lower than 80 dB below
the loudest value of the utterance (the dynamic range of Whisper's features,
https://arxiv.org/abs/2212.04356), and every mel channel is brought to mean 0 and variance 1
(nearly: 0.1 is added to the variance before the division, so that a constant channel stays so) over
the frames of the utterance. So neither the level of a recording (factors of ten are usual between
speakers and corpora) nor a fixed channel colouring reaches the model, and digital silence does not
dominate the statistics. A streaming model cannot do this: it needs the whole utterance.
"""

from __future__ import annotations

import math

from ... import nn
from .. import _dims

DYNAMIC_RANGE = 80.0  # dB
MIN_POWER = 1e-10
VARIANCE_EPS = 0.1  # of log power in nats; in speech a channel has a variance of 1 to 10


class LogMel(nn.Module):
    """Log-mel features, without parameters; see the module docstring for the definition."""

    def __init__(
        self,
        out_dim: nn.Dim,
        *,
        sample_rate: int,
        window: int,
        step: int,
        f_min: float,
        f_max: float,
    ):
        """:param window, step: in samples; the other arguments as in :func:`make_logmel`"""
        super().__init__()
        self.in_dim = nn.FeatureDim("audio", 1)
        self.out_dim = out_dim
        self.sample_rate, self.window, self.step = sample_rate, window, step
        self.f_min, self.f_max = f_min, f_max
        self.fft_length = 2 ** math.ceil(math.log2(window))

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: audio `[B, in_spatial_dim]` or `[B, in_spatial_dim, 1]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(samples / step) frames
        """
        _dims.check_input("logmel", source, in_spatial_dim=in_spatial_dim)
        mel, spatial_dim = self.mel_power(source, in_spatial_dim=in_spatial_dim)
        loudest = nn.reduce_max(nn.reduce_max(mel, axis=self.out_dim), axis=spatial_dim)
        floor = nn.maximum(loudest * 10.0 ** (-DYNAMIC_RANGE / 10.0), MIN_POWER)
        log_mel = nn.log(nn.maximum(mel, floor))
        return nn.normalize(log_mel, axis=spatial_dim, epsilon=VARIANCE_EPS), spatial_dim

    def mel_power(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :return: the power `[B, out_spatial_dim, out_dim]` in each mel filter, and `out_spatial_dim`
        """
        if source.feature_dim is not None and source.feature_dim.dimension == 1:
            source = nn.squeeze(source, axis=source.feature_dim)
        source, padded_dim = self.padded(source, spatial_dim=in_spatial_dim)
        spectrum, spatial_dim, bin_dim = nn.stft(
            source,
            in_spatial_dim=padded_dim,
            frame_step=self.step,
            frame_length=self.window,
            fft_length=self.fft_length,
            out_spatial_dim=in_spatial_dim.ceildiv_right(self.step),
            use_mask=False,  # the padding has done it
        )
        power = nn.abs(spectrum) ** 2.0
        filters = {"sampling_rate": self.sample_rate, "f_min": self.f_min, "f_max": self.f_max}
        return nn.audio.mel_filterbank(
            power, in_dim=bin_dim, out_dim=self.out_dim, **filters
        ), spatial_dim

    def padded(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """:return: `source` with zeros on both sides of every sequence, and its longer dim"""
        left = (self.window - self.step) // 2
        right = self.window - 1 - left
        padded_dim = left + spatial_dim + right
        source, _ = nn.pad(
            source.copy_masked(0.0, dims=[spatial_dim]),
            axes=[spatial_dim],
            padding=[(left, right)],
            out_dims=[padded_dim],
            value=0.0,
            handle_dynamic_dims=False,  # zeros follow each sequence already
        )
        return source, padded_dim


def make_logmel(
    sample_rate: int = 16_000,
    num_filters: int | nn.Dim = 80,
    *,
    window_size: float = 0.025,
    step_size: float = 0.010,
    f_min: float = 60.0,
    f_max: float | None = None,
) -> LogMel:
    """
    Log-mel features of raw audio: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`,
    normalised per utterance.

    The defaults are those of the recipes of RWTH Aachen: 80 filters from 60 Hz to 7600 Hz, windows
    of 25 ms every 10 ms.

    :param sample_rate: of the audio, in Hz
    :param num_filters: number of mel filters, the feature size of the output
    :param window_size: in seconds
    :param step_size: in seconds
    :param f_min: lower edge of the first filter, in Hz
    :param f_max: upper edge of the last filter, in Hz; by default 0.475 of the sample rate
    :raises ValueError: the window is shorter than the step, or the edges are not in order below
        half the sample rate
    """
    window, step = int(window_size * sample_rate), int(step_size * sample_rate)
    if not 0 < step <= window:
        raise ValueError(
            f"logmel: need 0 < step_size <= window_size, got {step_size} and {window_size} seconds"
        )
    f_max = 0.475 * sample_rate if f_max is None else f_max
    if not 0 <= f_min < f_max <= sample_rate / 2:
        raise ValueError(
            f"logmel: need 0 <= f_min < f_max <= {sample_rate / 2:g} Hz, got {f_min} and {f_max}"
        )
    out_dim = _dims.as_dim(num_filters, "logmel")
    return LogMel(
        out_dim, sample_rate=sample_rate, window=window, step=step, f_min=f_min, f_max=f_max
    )
