"""What all schedules refuse."""

from __future__ import annotations


def check_positive(who: str, **values: float) -> None:
    """:raises ValueError: one of the values is not positive; the message names it"""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{who}: {name} must be positive, got {value!r}")


def check_order(who: str, warmup_steps: int, num_steps: int) -> None:
    """:raises ValueError: the warm-up does not end before the training"""
    if not 0 < warmup_steps < num_steps:
        raise ValueError(
            f"{who}: need 0 < warmup_steps < num_steps, got {warmup_steps} and {num_steps}"
        )
