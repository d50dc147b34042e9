"""A model that knows its own training: what belongs to which stage. What runs it is :func:`training.fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import returnn.frontend as rf

from ..hints import near_misses

#: Names of other frameworks for ours.
_OTHER_NAMES = {
    "configure_optimizers": "Session(optimizer=...)",
    "on_train_epoch_end": "on_epoch_end",
    "on_train_epoch_start": "on_epoch_begin",
    "test_step": "valid_step",
    "training_step": "train_step",
    "validation_step": "valid_step",
}


class RootModule(rf.Module):
    """
    The base of a whole model with its steps; override what you want, :func:`training.fit` calls it.

    The steps mark losses or outputs, as any step function does. The hooks are plain Python, called
    with the session that runs: nothing happens in them by default.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name in _OTHER_NAMES:
                raise TypeError(
                    f"{cls.__name__} defines {name}, which nothing calls; use {_OTHER_NAMES[name]}"
                )
            if name.startswith("on_") and name not in _HOOKS:
                raise TypeError(
                    f"{cls.__name__} defines {name}, which nothing calls"
                    f"{near_misses(name, _HOOKS)}; hooks are {', '.join(_HOOKS)}"
                )

    def train_step(self, *, extern_data: Any) -> None:
        """mark the losses of training"""
        raise NotImplementedError(f"{type(self).__name__} does not define train_step")

    def valid_step(self, *, extern_data: Any) -> None:
        """mark the losses of validation: those of training by default; runs without dropout and update"""
        self.train_step(extern_data=extern_data)

    def forward_step(self, *, extern_data: Any) -> None:
        """mark outputs; ``session.step(training.step_of(model.forward_step), update=False)`` runs it"""
        raise NotImplementedError(f"{type(self).__name__} does not define forward_step")

    def init_new_run(self, session: Any) -> None:
        """before the first epoch of a new run: load initial values, ...; not in a continued one"""

    def on_epoch_begin(self, session: Any) -> None:
        """before the batches of an epoch, also of one that is continued inside"""

    def on_step_end(self, session: Any, result: Mapping[str, float]) -> None:
        """behind each training step, with what it gave"""

    def on_epoch_end(self, session: Any, line: Mapping[str, Any]) -> None:
        """behind training and validation, with the line of the log, before the checkpoint is saved"""


_HOOKS = tuple(name for name in vars(RootModule) if name.startswith("on_"))

__all__ = ["RootModule"]
