"""
Linear warm-up, then half a cosine down to the end.

Loshchilov and Hutter, "SGDR", 2016, https://arxiv.org/abs/1608.03983, equation 5, without restarts; with
the warm-up of Goyal et al., 2017, https://arxiv.org/abs/1706.02677, section 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ._checks import check_order, check_positive


@dataclass(frozen=True)
class WarmupCosine:
    """See :func:`make_warmup_cosine`."""

    peak: float
    num_steps: int
    warmup_steps: int
    end_factor: float

    def __call__(self, epoch: int, step: int) -> float:
        """:return: the rate of the step; from `num_steps` on the last one"""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / (self.warmup_steps + 1)
        end = self.peak * self.end_factor
        done = min(1.0, (step - self.warmup_steps) / (self.num_steps - self.warmup_steps))
        return end + (self.peak - end) * (1 + math.cos(math.pi * done)) / 2


def make_warmup_cosine(
    peak: float = 1e-3,
    *,
    num_steps: int = 100_000,
    warmup_steps: int = 10_000,
    end_factor: float = 0.01,
) -> WarmupCosine:
    """
    Linear warm-up and half a cosine over the steps: `(epoch, step) -> float`.

    :param peak: the largest rate, in the first step after the warm-up
    :param num_steps: of the whole training
    :param warmup_steps: steps in which the rate rises; a tenth of the training is usual
    :param end_factor: the last rate, as a part of the peak; may be 0
    :raises ValueError: the warm-up is not shorter than the training, the peak not positive, or
        `end_factor` negative
    """
    check_positive("warmup_cosine", peak=peak)
    check_order("warmup_cosine", warmup_steps, num_steps)
    if end_factor < 0:
        raise ValueError(f"warmup_cosine: end_factor must not be negative, got {end_factor!r}")
    return WarmupCosine(peak, num_steps, warmup_steps, end_factor)
