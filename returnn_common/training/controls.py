"""
What to ask in a loop of one's own: is it time, has the training stopped to improve, and which learning rate comes next.

None of these owns the loop. What they remember is in ``session.state``, and so in checkpoints: a run that is continued
decides as it would have without the break. Of scores, the lower are the better, such as losses and error rates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from .session import Session


def every_steps(session: Session, number: int) -> Callable[[], bool]:
    """
    A function that is True once in every ``number`` updates, to be called after each; it may be called less often.

    The first time is after ``number`` updates of the whole run. What is due at one step, do before ``session.save``.
    """
    if number < 1:
        raise ValueError(f"every_steps: the number of steps is {number}, expected at least 1")
    last: int | None = None

    def is_due() -> bool:
        nonlocal last
        before = session.first_train_step if last is None else last
        last = session.global_train_step
        return last // number > before // number

    return is_due


def every_seconds(seconds: float) -> Callable[[], bool]:
    """
    A function that is True when so much time has passed since it was last, or since it was made.

    Several processes have several clocks: where they decide together, use :func:`every_steps`.
    """
    if seconds <= 0:
        raise ValueError(f"every_seconds: {seconds} seconds, expected more than 0")
    last = time.monotonic()

    def is_due() -> bool:
        nonlocal last
        due = time.monotonic() >= last + seconds
        last = time.monotonic() if due else last
        return due

    return is_due


class Newbob:
    """
    Lowers the learning rate of a session when a score improves too little: called with the score of each epoch, it
    gives the new learning rate.

    The rule and its defaults are those of ``learning_rate_control = "newbob_rel"`` in RETURNN: the rate is multiplied
    by the decay where ``(new - old) / abs(new)`` is above the threshold.

    :param learning_rate_decay: RETURNN's option of the same name
    :param relative_error_threshold: ``newbob_relative_error_threshold``; -0.01 asks for an improvement of 1 %
    :param min_learning_rate: RETURNN's option of the same name
    :raises ValueError: the session's learning rate is a function
    """

    def __init__(
        self,
        session: Session,
        *,
        learning_rate_decay: float = 0.5,
        relative_error_threshold: float = -0.01,
        min_learning_rate: float = 0.0,
    ):
        if callable(session.learning_rate):
            raise ValueError("Newbob: the session's learning rate is a function, expected a number")
        self.session = session
        self.learning_rate_decay = learning_rate_decay
        self.relative_error_threshold = relative_error_threshold
        self.min_learning_rate = min_learning_rate

    def __call__(self, score: float) -> float:
        new, old = _finite(score, "Newbob"), self.session.state.get("newbob")
        self.session.state["newbob"] = new
        if old is not None and new - old > self.relative_error_threshold * abs(new):
            rate = self.session.current_learning_rate() * self.learning_rate_decay
            self.session.learning_rate = max(rate, self.min_learning_rate)
        return self.session.current_learning_rate()


class EarlyStopping:
    """
    Says when a score has not improved for long: called with it again and again, gives whether to stop.

    Ask :attr:`done` where an epoch begins, so that a run that has stopped does not go on when it is started again.

    :param patience: so many calls in a row without a new best score
    :param min_delta: a new best score is lower than the last best one by more than this
    :param name: in ``session.state``, where several watch several scores
    """

    def __init__(
        self,
        session: Session,
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        name: str = "early_stopping",
    ):
        if patience < 1:
            raise ValueError(f"EarlyStopping: patience is {patience}, expected at least 1")
        self.session, self.patience, self.min_delta, self.name = session, patience, min_delta, name

    def __call__(self, score: float) -> bool:
        score, state = _finite(score, "EarlyStopping"), self._state
        is_best = state["best"] is None or score < state["best"] - self.min_delta
        self.session.state[self.name] = {
            "best": score if is_best else state["best"],
            "without": 0 if is_best else state["without"] + 1,
        }
        return self.done

    @property
    def done(self) -> bool:
        """whether the patience is at its end"""
        return self._state["without"] >= self.patience

    @property
    def _state(self) -> dict[str, Any]:
        return self.session.state.get(self.name, {"best": None, "without": 0})


def _finite(score: float, what: str) -> float:
    if not math.isfinite(score):
        raise ValueError(f"{what}: the score is {float(score)}, expected a finite number")
    return float(score)


__all__ = ["EarlyStopping", "Newbob", "every_seconds", "every_steps"]
