"""
Mel frequency cepstral coefficients of raw audio, computed in the graph, normalised per utterance.

Davis and Mermelstein, "Comparison of parametric representations for monosyllabic word recognition
in continuously spoken sentences", IEEE Transactions on ASSP, 1980.

The log-mel power of :mod:`logmel` before its normalisation, so with the same frames, filters, and
floor of 80 dB below the loudest value of the utterance, goes through an orthonormal discrete cosine
transform (type II): of N filters x_0 ... x_(N - 1) coefficient k is

    c_k = sqrt(2 / N) sum_n x_n cos(pi k (n + 1/2) / N)        c_0 = sqrt(1 / N) sum_n x_n

The first ones are kept, among them c_0, the loudness. Then each is brought to mean 0 and variance 1
over the frames of the utterance, as in :mod:`logmel`. There is no liftering and no pre-emphasis:
after the normalisation the one would change nothing, the other next to nothing.
"""

from __future__ import annotations

import math

from ... import nn
from .. import _dims
from .logmel import DYNAMIC_RANGE, MIN_POWER, VARIANCE_EPS, LogMel, make_logmel


class Mfcc(nn.Module):
    """Cepstral coefficients, without parameters; see the module docstring for the definition."""

    def __init__(self, logmel: LogMel, out_dim: nn.Dim):
        """
        :param logmel: gives the power in its filters
        :param out_dim: the coefficients that are kept
        """
        super().__init__()
        self.logmel = logmel
        self.in_dim, self.out_dim = logmel.in_dim, out_dim

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: audio `[B, in_spatial_dim]` or `[B, in_spatial_dim, 1]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(samples / step) frames
        """
        _dims.check_input("mfcc", source, in_spatial_dim=in_spatial_dim)
        mel_dim = self.logmel.out_dim
        mel, spatial_dim = self.logmel.mel_power(source, in_spatial_dim=in_spatial_dim)
        loudest = nn.reduce_max(nn.reduce_max(mel, axis=mel_dim), axis=spatial_dim)
        floor = nn.maximum(loudest * 10.0 ** (-DYNAMIC_RANGE / 10.0), MIN_POWER)
        cosines = cosine_transform(mel_dim, self.out_dim)
        out = nn.matmul(nn.log(nn.maximum(mel, floor)), cosines, reduce=mel_dim)
        out.feature_dim = self.out_dim
        return nn.normalize(out, axis=spatial_dim, epsilon=VARIANCE_EPS), spatial_dim


def cosine_transform(in_dim: nn.Dim, out_dim: nn.Dim) -> nn.Tensor:
    """:return: `[in_dim, out_dim]`, the first columns of an orthonormal DCT-II"""
    size = in_dim.dimension
    n = nn.range_over_dim(in_dim, dtype="float32") + 0.5
    k = nn.range_over_dim(out_dim, dtype="float32")
    scale = nn.sqrt((2.0 - nn.cast(k < 0.5, "float32")) / size)
    return nn.cos(nn.combine_bc(n, "*", k) * (math.pi / size)) * scale


def make_mfcc(
    sample_rate: int = 16_000,
    num_coefficients: int | nn.Dim = 40,
    *,
    num_filters: int = 40,
    window_size: float = 0.025,
    step_size: float = 0.010,
) -> Mfcc:
    """
    Cepstral coefficients of raw audio: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`,
    normalised per utterance.

    40 coefficients of 40 filters are Kaldi's setting for neural networks (``mfcc_hires.conf``): a
    rotation of log-mel, which nothing is lost in. The filters go from 60 Hz to 0.475 of the sample
    rate, as in :func:`make_logmel`.

    :param sample_rate: of the audio, in Hz
    :param num_coefficients: the feature size of the output
    :param num_filters: number of mel filters
    :param window_size: in seconds
    :param step_size: in seconds
    :raises ValueError: more coefficients than filters, or the window is shorter than the step
    """
    out_dim = _dims.as_dim(num_coefficients, "mfcc")
    if out_dim.dimension > num_filters:
        raise ValueError(
            f"mfcc: need num_coefficients <= num_filters, got {out_dim.dimension} and {num_filters}"
        )
    mel_dim = nn.FeatureDim("mel", num_filters)
    logmel = make_logmel(sample_rate, mel_dim, window_size=window_size, step_size=step_size)
    return Mfcc(logmel, out_dim)
