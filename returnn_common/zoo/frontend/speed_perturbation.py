"""
Speed perturbation: play each audio somewhat slower or faster, in training. Pitch changes with it.

Ko et al., "Audio Augmentation for Speech Recognition", 2015, with the factors 0.9, 1.0 and 1.1. The length
changes, so it is called like a front end, before one.

Output sample n lies at n * percent / 100 in the input, computed in whole numbers, so that long audio is
not blurred. It is the sum over the nearest samples at distance d, weighted by the low-pass
c sinc(c d) with c = min(1, 100 / percent), in a Lanczos window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import nn
from .. import _dims

NORMAL = 100  # percent


class SpeedPerturbation(nn.Module):
    """One of some speeds for each sequence, without parameters; see the module docstring."""

    def __init__(self, percents: Sequence[int], *, num_taps: int):
        super().__init__()
        self.in_dim = self.out_dim = nn.FeatureDim("audio", 1)
        self.percents = percents
        self.taps_dim = nn.SpatialDim("taps", num_taps)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: audio `[B, in_spatial_dim]` or `[B, in_spatial_dim, 1]`
        :return: the same dims with `out_spatial_dim`, ceil(100 samples / percent) samples, and
            `out_spatial_dim`; `source` itself when not in training
        """
        _dims.check_input("speed_perturbation", source, in_spatial_dim=in_spatial_dim)
        train = nn.get_run_ctx().is_train_flag_enabled(func=SpeedPerturbation.__call__)
        if train is False:  # known already, as in recognition; else a bool or a tensor
            return source, in_spatial_dim
        no_batch = [in_spatial_dim, *([source.feature_dim] if source.feature_dim else [])]
        percent = nn.where(train, self.draw(source.remaining_dims(no_batch)), NORMAL)
        return self.resampled(source, percent, spatial_dim=in_spatial_dim)

    def draw(self, batch_dims: Sequence[nn.Dim]) -> nn.Tensor:
        """:return: int32, `batch_dims`, one of the speeds in percent"""
        choice = nn.random_uniform(batch_dims, dtype="int32", minval=0, maxval=len(self.percents))
        percent = nn.zeros(batch_dims, dtype="int32") + self.percents[0]
        for i, value in enumerate(self.percents[1:], start=1):
            percent = nn.where(choice == i, value, percent)
        return percent

    def resampled(
        self, source: nn.Tensor, percent: nn.Tensor, *, spatial_dim: nn.Dim
    ) -> tuple[nn.Tensor, nn.Dim]:
        """:return: `source` at `percent` of its speed, and its new spatial dim"""
        length = spatial_dim.get_size_tensor(device=source.device)
        out_dim = nn.Dim((length * NORMAL + percent - 1) // percent, name="resampled")
        hundredths = nn.combine_bc(nn.range_over_dim(out_dim, device=source.device), "*", percent)
        first = self.taps_dim.dimension // 2 - 1  # this many samples before the nearest earlier one
        tap = nn.range_over_dim(self.taps_dim, device=source.device) - first
        index = nn.combine_bc(hundredths // NORMAL, "+", tap)
        inside = nn.compare_bc(index, ">=", 0) & nn.compare_bc(index, "<", length)
        distance = nn.combine_bc(
            nn.cast(tap, "float32"), "-", nn.cast(hundredths % NORMAL, "float32") / NORMAL
        )
        weight = nn.where(inside, self.kernel(distance, percent), 0.0)
        index = nn.where(inside, index, 0)
        index.sparse_dim = None
        samples = nn.gather(source, indices=index, axis=spatial_dim)
        out = nn.matmul(samples, weight, reduce=self.taps_dim)
        out.feature_dim = source.feature_dim
        return out, out_dim

    def kernel(self, distance: nn.Tensor, percent: nn.Tensor) -> nn.Tensor:
        """:return: c sinc(c d) sinc(2 d / taps), the weight of a sample at distance d"""
        cutoff = nn.minimum(NORMAL / nn.cast(percent, "float32"), 1.0)
        window = sinc(distance * (2.0 / self.taps_dim.dimension))
        return sinc(distance * cutoff) * cutoff * window


def sinc(x: nn.Tensor) -> nn.Tensor:
    """sin(pi x) / (pi x), and 1 for 0"""
    at_zero = nn.abs(x) < 1e-6
    x = math.pi * nn.where(at_zero, 1.0, x)
    return nn.where(at_zero, 1.0, nn.sin(x) / x)


def make_speed_perturbation(
    percents: Sequence[int] = (90, 100, 110), *, num_taps: int = 16
) -> SpeedPerturbation:
    """
    Speed perturbation of raw audio, in training: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`.

    :param percents: speeds, of which each sequence draws one; those of the paper
    :param num_taps: input samples that one output sample is computed from, even
    :raises ValueError: there are no speeds, one is not positive, or `num_taps` is odd or not positive
    """
    if not percents or any(percent < 1 for percent in percents):
        raise ValueError(f"speed_perturbation: expected positive percents, got {tuple(percents)}")
    if num_taps < 2 or num_taps % 2:
        raise ValueError(f"speed_perturbation: expected an even num_taps from 2 on, got {num_taps}")
    return SpeedPerturbation(percents, num_taps=num_taps)
