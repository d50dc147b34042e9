"""
What the terminal shows while RETURNN runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .process import parse_step

# "dev: score 1.2 error None" (TensorFlow), "Epoch 3 evaluation: dev: 1.2" (torch), behind the steps of an epoch
_DEV = re.compile(r"dev: (?:score |ctc )?(?P<loss>nan|inf|\d[\w.+-]*)")


@contextmanager
def training_progress(console: Any, num_epochs: int) -> Iterator[Callable[[str], None]]:
    """
    A bar over all epochs with the loss and the remaining time, and a line after every epoch.

    :param console: of rich
    :param num_epochs: until the end
    :return: function to call with every line of RETURNN's log
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
    )
    with bar:
        yield _Follower(bar, bar.add_task("starting RETURNN", total=num_epochs), num_epochs)


class _Follower:
    def __init__(self, bar: Any, task: Any, num_epochs: int):
        self.bar, self.task, self.num_epochs = bar, task, num_epochs
        self.epoch, self.losses = 0, [0.0]

    def __call__(self, line: str) -> None:
        step = parse_step(line)
        if step:
            if step.epoch != self.epoch:
                self.epoch, self.losses = step.epoch, []
            self.losses.append(step.loss)
            text = f"epoch {step.epoch}/{self.num_epochs}, step {step.step}, loss {step.loss:.3f}"
            self.bar.update(self.task, completed=step.epoch - 1 + step.complete, description=text)
            return
        dev = _DEV.search(line)
        if dev and self.epoch:
            self.bar.console.print(
                f"epoch {self.epoch:2d}/{self.num_epochs}  loss per character: train {self._mean():.3f},"
                f" dev {float(dev['loss']):.3f}"
            )

    def _mean(self) -> float:
        return sum(self.losses) / len(self.losses)
