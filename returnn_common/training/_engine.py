"""What the engines of the two backends have in common: a step that is ready to run, and what a run gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy
import returnn.frontend as rf

from ..lines import calling_line
from ..nn import _returnn
from ..nn._stage import Stage
from ._batches import Batch


class Average(float):
    """
    The mean of a loss over its frames (or sequences), as RETURNN reports it: a float that knows how many they are.
    """

    #: The number of frames, or of sequences for a loss ``[B]``, or what ``custom_inv_norm_factor`` says.
    frames: float

    def __new__(cls, total: float, frames: float) -> Average:
        average = super().__new__(cls, total / frames if frames else math.nan)
        average.frames = frames
        return average

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self) * self.frames, self.frames


@dataclass
class Values:
    """What one run gives: losses as (sum, number of frames), or outputs as arrays and lengths in the batch form."""

    losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    outputs: dict[str, numpy.ndarray] = field(default_factory=dict)


@dataclass
class Draw:
    """
    Where the random numbers of one run come from: the same seed and number give the same ones; and the step and epoch
    that the run context of the step function tells.
    """

    seed: int
    number: int
    global_train_step: int
    epoch: int


class Engine(Protocol):
    """One backend: runs steps, and holds the parameters and the state of the optimizers."""

    def compile(self, step: Callable | Stage, paths: Sequence[str] | None) -> Any:
        """a step that is ready to run; ``paths`` are the parameters that it updates, None for none at all"""

    def evaluate(self, compiled: Any, batch: Batch, draw: Draw) -> Values:
        """run the step without an update, as in validation"""

    def update(
        self, compiled: Any, batches: Sequence[Batch], draws: Sequence[Draw], learning_rate: float
    ) -> list[Values]:
        """one update from the gradients of all batches"""

    def gradients(
        self, compiled: Any, batches: Sequence[Batch], draws: Sequence[Draw]
    ) -> tuple[list[Values], dict[str, numpy.ndarray]]:
        """the gradients of all batches, without an update"""

    def apply(self, gradients: Mapping[str, numpy.ndarray], learning_rate: float) -> None:
        """one update from these gradients"""

    def get_parameters(self) -> dict[str, numpy.ndarray]:
        """all parameters of the model in RF's layout"""

    def set_parameters(self, values: Mapping[str, numpy.ndarray]) -> None:
        """set these parameters"""

    def get_optimizer_state(self) -> dict[str, numpy.ndarray]:
        """what the update rules keep, ``PATH/NAME``"""

    def set_optimizer_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        """set all of what the update rules keep"""

    def get_other_state(self) -> dict[str, numpy.ndarray]:
        """what else must be kept to go on exactly, on this backend alone"""

    def set_other_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        """set what :meth:`get_other_state` gave"""

    def close(self) -> None:
        """free what is held"""


class MarksLosses(Exception):
    """A step that was taken for one with outputs marks a loss."""


def with_checks(step: Callable, *, task: str) -> Callable:
    """the step, which raises :class:`MarksLosses` where it marks a loss though it is not to"""

    def call(*, model: rf.Module, extern_data: Any) -> None:
        if task != "train":
            _returnn.on_mark_as_loss(rf.get_run_ctx(), _refuse)
        step(model=model, extern_data=extern_data)

    call.__name__ = getattr(step, "__name__", "step")
    return call


def _refuse(loss: Any) -> None:
    raise MarksLosses


def check_finite(values: Sequence[Values], step: str) -> None:
    """FloatingPointError, with the user's line, where a loss is not a finite number"""
    for one in values:
        for name, (total, _) in one.losses.items():
            if not math.isfinite(total):
                raise not_finite(step, f"the loss {name!r} is {total}")


def not_finite(step: str, what: str) -> FloatingPointError:
    return FloatingPointError(
        f"{calling_line()}{what} in {step}; no parameter was changed by this step"
    )


def as_number_of_frames(inverse: float) -> float:
    """the number of frames from its float32 inverse, in which TensorFlow's side of RETURNN keeps it"""
    frames = 1.0 / inverse if inverse else math.inf
    nearest = round(frames) if math.isfinite(frames) else frames
    return float(nearest) if math.isclose(frames, nearest, rel_tol=1e-5) else frames


__all__ = [
    "Average",
    "Draw",
    "Engine",
    "MarksLosses",
    "Values",
    "as_number_of_frames",
    "check_finite",
    "not_finite",
    "with_checks",
]
