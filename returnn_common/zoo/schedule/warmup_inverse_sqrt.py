"""
Linear warm-up, then the rate falls with the inverse square root of the step.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, equation 3: their
rate d**-0.5 * min(n**-0.5, n * w**-1.5) of the n-th step (from 1 on) with w warm-up steps has the peak
(d * w)**-0.5 in step w. Here the peak is given.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._checks import check_positive


@dataclass(frozen=True)
class WarmupInverseSqrt:
    """See :func:`make_warmup_inverse_sqrt`."""

    peak: float
    warmup_steps: int

    def __call__(self, epoch: int, step: int) -> float:
        """:return: the rate of the step"""
        n = step + 1
        return self.peak * min(n / self.warmup_steps, (self.warmup_steps / n) ** 0.5)


def make_warmup_inverse_sqrt(
    peak: float = 1e-3, *, warmup_steps: int = 25_000
) -> WarmupInverseSqrt:
    """
    Linear warm-up and inverse square root over the steps: `(epoch, step) -> float`.

    :param peak: the largest rate, in the last step of the warm-up
    :param warmup_steps: steps in which the rate rises; 25,000 in ESPnet's transformer recipe for
        LibriSpeech
    :raises ValueError: one of them is not positive
    """
    check_positive("warmup_inverse_sqrt", peak=peak, warmup_steps=warmup_steps)
    return WarmupInverseSqrt(peak, warmup_steps)
