"""The loop of a :class:`nn.RootModule`: read it, and copy it where you want another one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..nn.root_module import RootModule
from .logs import Log
from .session import Session

_Data = Callable[[int], Iterable[Mapping[str, Any]]]


def fit(
    session: Session,
    train: _Data,
    *,
    valid: _Data | None = None,
    num_epochs: int = 10,
    folder: str | os.PathLike = "checkpoints",
) -> Log:
    """
    Train the model of a session, an :class:`nn.RootModule`, and save it after each epoch; goes on where it was.

    :param train: gives the batches of an epoch by its number, 1 for the first
    :param valid: the same for validation
    :param folder: of the checkpoints and of the log
    """
    model = session.model
    if not isinstance(model, RootModule):
        raise TypeError(
            f"training.fit: the model is a {type(model).__name__}, expected an nn.RootModule"
        )
    train_step = session.step(step_of(model.train_step))
    valid_step = session.step(step_of(model.valid_step), update=False) if valid else None
    if not session.resume(folder):
        model.init_new_run(session)
    log = Log(session, folder)
    for epoch in session.epochs(num_epochs):
        model.on_epoch_begin(session)
        for batch in session.batches(train(epoch)):
            result = train_step(batch)
            log.step(result)
            model.on_step_end(session, result)
        others = {}
        if valid and valid_step:
            others["valid"] = session.averages(valid_step, valid(epoch))
        line = log.epoch(**others)
        model.on_epoch_end(session, line)
        session.save(folder, metrics={f"valid_{k}": v for k, v in others.get("valid", {}).items()})
    return log


def step_of(method: Callable) -> Callable:
    """a step function for :meth:`Session.step` from a step method of a :class:`nn.RootModule`"""

    @functools.wraps(method)
    def step(*, model: RootModule, extern_data: Any, **_: Any) -> None:
        getattr(model, method.__name__)(extern_data=extern_data)

    return step


__all__ = ["fit", "step_of"]
