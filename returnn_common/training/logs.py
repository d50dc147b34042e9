"""What a training prints and writes down: one line of progress, one JSON line an epoch, a learning curve."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import whole_file, write_text
from ._engine import Average
from ._learning_curve import learning_curve
from .session import Session


def averages(results: Iterable[Mapping[str, Average]]) -> dict[str, Average]:
    """the average of each loss over many results, weighted by their frames"""
    sums: dict[str, list[float]] = {}
    for result in results:
        _add(sums, result)
    return _averages(sums)


def _add(sums: dict[str, list[float]], result: Mapping[str, Average]) -> None:
    for name, value in result.items():
        if not isinstance(value, Average):
            raise TypeError(f"{name!r} is a {type(value).__name__}, expected the average of a loss")
        before = sums.get(name, [0.0, 0.0])
        sums[name] = [before[0] + value * value.frames, before[1] + value.frames]


def _averages(sums: Mapping[str, list[float]]) -> dict[str, Average]:
    return {name: Average(total, frames) for name, (total, frames) in sums.items()}


class Log:
    """
    The log of a session, in a folder: ``log.jsonl`` has one line an epoch.

    The averages so far are in ``session.state["log"]``, so that a run that is continued inside of an epoch has those of
    the whole epoch. Of several processes, the first one prints and writes.
    """

    def __init__(self, session: Session, folder: str | os.PathLike = "log"):
        self.session, self.file = session, Path(folder) / "log.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        self._shown = 0.0

    def step(self, result: Mapping[str, Average]) -> None:
        """count what a training step gave; on a terminal, show the averages of the epoch so far"""
        sums = self.session.state.setdefault("log", {})
        _add(sums, result)
        if self.session.rank == 0 and sys.stderr.isatty() and time.monotonic() > self._shown + 0.5:
            self._shown = time.monotonic()
            text = f"epoch {self.session.epoch}, step {self.session.global_train_step}: "
            print(f"\r{text}{_text(_averages(sums))}\033[K", end="", file=sys.stderr, flush=True)

    def epoch(self, **others: Mapping[str, float]) -> dict[str, Any]:
        """
        Print and write the line of the epoch: the averages of its training steps as ``train``, and ``others``, such as
        ``dev=averages(...)``. A line of the same epoch, by a run that was killed, is replaced.

        :return: what was written; the same in all processes, as all must call it
        """
        session = self.session
        parts = {"train": _averages(session.state.pop("log", {})), **others}
        line: dict[str, Any] = {
            "epoch": session.epoch,
            "global_train_step": session.global_train_step,
            "learning_rate": session.current_learning_rate(),
            "seconds": round(time.monotonic() - self._started, 3),
            **{
                part: {name: float(value) for name, value in values.items()}
                for part, values in parts.items()
            },
        }
        line = session._ranks.on_first(lambda: self._write(line, parts), "Log.epoch")
        self._started = time.monotonic()
        return line

    def _write(
        self, line: dict[str, Any], parts: Mapping[str, Mapping[str, float]]
    ) -> dict[str, Any]:
        lines = [other for other in self.lines() if other["epoch"] < line["epoch"]] + [line]
        write_text(self.file, "".join(json.dumps(one) + "\n" for one in lines))
        shown = "; ".join(f"{part}: {_text(values)}" for part, values in parts.items() if values)
        start = "\r\033[K" if sys.stderr.isatty() else ""  # in place of the averages so far
        print(
            f"{start}epoch {line['epoch']}, step {line['global_train_step']}: {shown}",
            file=sys.stderr,
        )
        return line

    def lines(self) -> list[dict[str, Any]]:
        """what was written, oldest first"""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def plot(self, name: str = "learning_curve.png") -> Path:
        """draw losses and learning rate over the epochs into a PNG file beside the log; needs matplotlib"""
        path = self.file.with_name(name)
        self.session._ranks.on_first(lambda: self._draw(path), "Log.plot")
        return path

    def _draw(self, path: Path) -> None:
        figure = learning_curve(self.lines())
        with whole_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=100, metadata={"Software": None})


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())


__all__ = ["Log", "averages"]
