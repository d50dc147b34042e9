"""
One cycle: the rate rises linearly, falls back in the same time, and fades out.

Smith and Topin, "Super-Convergence", 2017, https://arxiv.org/abs/1708.07120. The same curve as
``torch.optim.lr_scheduler.OneCycleLR(three_phase=True, anneal_strategy="linear")``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._checks import check_positive


@dataclass(frozen=True)
class OneCycle:
    """See :func:`make_one_cycle`."""

    peak: float
    num_steps: int
    rise: float
    start_factor: float
    end_factor: float

    def __call__(self, epoch: int, step: int) -> float:
        """:return: the rate of the step; behind `num_steps` that of the last one"""
        start, end = self.peak * self.start_factor, self.peak * self.end_factor
        top = self.rise * self.num_steps - 1
        points = [(0.0, start), (top, self.peak), (2 * top, start), (self.num_steps - 1, end)]
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            if step <= x1:
                return y0 + (y1 - y0) * (step - x0) / (x1 - x0)
        return end


def make_one_cycle(
    peak: float = 1e-3,
    *,
    num_steps: int = 100_000,
    rise: float = 0.45,
    start_factor: float = 0.1,
    end_factor: float = 1e-3,
) -> OneCycle:
    """
    A one-cycle schedule over the steps: `(epoch, step) -> float`.

    By default the rate rises for 45 % of the training from a tenth of the peak, and falls for as
    long, as in the conformer recipes of RWTH Aachen.

    :param peak: the largest rate
    :param num_steps: of the whole training
    :param rise: the part of the training in which it rises, less than a half
    :param start_factor: the first rate, as a part of the peak
    :param end_factor: the last rate, as a part of the peak
    :raises ValueError: `rise` leaves no step to one of the phases, or another one is not positive
    """
    check_positive("one_cycle", peak=peak, start_factor=start_factor, end_factor=end_factor)
    if not 1 < rise * num_steps < num_steps / 2:
        raise ValueError(
            f"one_cycle: need 1 < rise * num_steps < num_steps / 2, got rise={rise} and "
            f"num_steps={num_steps}"
        )
    return OneCycle(peak, num_steps, rise, start_factor, end_factor)
