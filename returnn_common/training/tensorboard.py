"""The numbers of a training for TensorBoard, on both backends; written with tensorboardX, which loads no TensorFlow."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .session import Session

_FLUSH_SECONDS = 5  # TensorBoard looks for new events as often
_X_AXIS = "global_train_step"


class TensorBoard:
    """
    Writes losses over the updates of a session, for ``tensorboard --logdir FOLDER``.

    Each part of the data is a run of its own, so that ``train`` and ``dev`` are two curves in one diagram. Of what a
    killed run wrote behind its last checkpoint, TensorBoard shows nothing once the run is continued.

    :raises ImportError: tensorboardX is not installed, with the command that installs it
    """

    def __init__(self, session: Session, folder: str | os.PathLike = "log/tensorboard"):
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"TensorBoard needs tensorboardX: pip install tensorboardX ({error})"
            ) from error
        self.session, self.folder = session, Path(folder)
        self._writers: dict[str, Any] = {}

    def write(self, line: Mapping[str, Any]) -> None:
        """
        Write the numbers of a line of a log, what :meth:`Log.epoch` gives, or of parts such as ``{"train": result}``,
        at the session's step. Numbers of no part, such as the learning rate, stand with those of ``train``.

        :raises TypeError: a value is no number, and no dict of numbers by name
        """
        values = {
            (part, name): value
            for part, named in _by_part(line).items()
            for name, value in named.items()
        }
        for (part, name), value in values.items():
            if not isinstance(value, numbers.Real):
                raise TypeError(
                    f"TensorBoard.write: {name!r} of {part!r} is a {type(value).__name__}, expected a number"
                )
        if self.session.rank == 0:
            for (part, name), value in values.items():
                step = self.session.global_train_step
                self._writer(part).add_scalar(name, float(value), step)

    def _writer(self, part: str) -> Any:
        from tensorboardX import SummaryWriter

        if part not in self._writers:
            self._writers[part] = SummaryWriter(
                str(self.folder / part),
                flush_secs=_FLUSH_SECONDS,
                purge_step=self.session.first_train_step + 1,
            )
        return self._writers[part]

    def close(self) -> None:
        """write what is left; done at the end of the process, too"""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _by_part(line: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {"train": {}}
    for name, value in line.items():
        if isinstance(value, Mapping):
            parts.setdefault(name, {}).update(value)
        elif name != _X_AXIS:
            parts["train"][name] = value
    return parts


__all__ = ["TensorBoard"]
