"""Runs declared stages: the loop that :func:`nn.epoch_loop` and :func:`nn.step_loop` describe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..nn._stage import Stage
from ..nn.stages import EpochLoop, Stages, declared
from . import checkpoints
from ._engine import Average
from ._sources import batches_of, setting
from ._stores import Stores
from .logs import Log, averages
from .session import Session

_STATE = "stores"  # in session.state, while a checkpoint is saved


def run(
    session: Session,
    folder: str | os.PathLike = "checkpoints",
    *,
    stages: Stages | None = None,
    batch_size: int | None = None,
    on_epoch_end: Callable[[Session, Mapping[str, Any]], Any] | None = None,
) -> Log:
    """
    Run what was declared, and save after each epoch; goes on where it was.

    :param folder: of the checkpoints and of the log
    :param stages: by default what was declared last
    :param batch_size: of parts of datasets: frames with padding; by default that of the RETURNN config
    :param on_epoch_end: called with the session and the line of the log before the checkpoint is saved: to change the
        learning rate, remove old checkpoints, ...; where it gives True, the run ends behind this epoch
    :raises ValueError: nothing is declared, or a stage does not fit to the session
    """
    run = _Run(session, checked(stages or declared(), "training.run"), batch_size)
    run.begin(folder)
    log = Log(session, folder)
    for loop in run.epochs():
        results = dict(run.epoch(loop, log))
        line = log.epoch(**{name: losses for name, losses in results.items() if losses})
        is_last = on_epoch_end(session, line) if on_epoch_end else False
        run.save(folder, results)
        if is_last:
            break
    if session.rank == 0:
        print(f"trained: {checkpoints.last(folder)}, log: {log.file}", file=sys.stderr)
    return log


def checked(stages: Stages, function: str) -> Stages:
    """these stages, which are complete; what is declared next begins anew"""
    if stages.open:
        raise ValueError(f"{function} stands inside of nn.{stages.open[-1]}(); call it behind")
    if not stages.loops:
        raise ValueError(f"{function}: no nn.epoch_loop() is declared")
    stages.is_used = True
    return stages


class _Run:
    """One run of declared stages."""

    def __init__(self, session: Session, stages: Stages, batch_size: int | None):
        self.session, self.stages, self.batch_size = session, stages, batch_size
        self.steps = {stage: session.step(stage) for stage in stages.all}
        self.stores = Stores()

    def begin(self, folder: str | os.PathLike) -> None:
        """the newest checkpoint, if there is one, and the initial stage"""
        self.session.resume(folder)
        self.stores = Stores(self.session.state.pop(_STATE, None))
        if self.stages.init is not None:
            self.steps[self.stages.init]({"is_new_run": self.session.is_new_run})

    def epochs(self) -> Iterator[EpochLoop]:
        """for each epoch to come its loop"""
        last = 0
        for loop in self.stages.loops:
            last += setting("num_epochs", loop.num_epochs, "nn.epoch_loop()")
            for _ in self.session.epochs(last):
                yield loop

    def epoch(self, loop: EpochLoop, log: Log) -> Iterator[tuple[str, Mapping[str, Average]]]:
        """the averages of each step loop by its name, apart from those that the log has itself"""
        for stage in loop.parts:
            if stage.kind == "epoch":
                self.steps[stage]({"epoch_index": self.session.epoch})
                continue
            results = self.step_loop(stage, self.session.epoch)
            if stage.name == "train":
                for result in results:
                    log.step(result)
                continue
            yield stage.name, averages(results)

    def save(self, folder: str | os.PathLike, results: Mapping[str, Mapping[str, float]]) -> None:
        """a checkpoint with what is stored, and the losses as its metrics"""
        metrics = {f"{name}_{k}": v for name, losses in results.items() for k, v in losses.items()}
        self.session.state[_STATE] = self.stores.packed()
        self.session.save(folder, metrics=metrics)
        del self.session.state[_STATE]

    def step_loop(self, stage: Stage, epoch: int) -> Iterator[dict[str, Average]]:
        """the losses of each step"""
        batches = batches_of(stage, epoch, self.batch_size)
        if stage.update is not False:  # of several processes each has its share; all others see all
            batches = self.session.batches(batches)
        for index, batch in enumerate(batches):
            scalars = {"epoch_index": epoch, "step_index": index}
            result = self.steps[stage]({**batch, **scalars, **self.stores.get(stage, batch)})
            self.stores.put(stage, batch, result)
            yield {name: result[name] for name in stage.loss_names}


__all__ = ["checked", "run"]
