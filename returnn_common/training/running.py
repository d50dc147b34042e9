"""Runs declared stages: the loop that :func:`nn.epoch_loop` and :func:`nn.step_loop` describe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from ..nn._stage import Stage
from ..nn.stages import EpochLoop, Stages, declared
from . import checkpoints
from ._engine import Average
from ._sources import batches_of, setting
from ._stores import Stores
from .logs import Log, averages
from .session import Session, Step

_STATE = "stores"  # in session.state, while a checkpoint is saved


def run(
    session: Session,
    folder: str | os.PathLike = "checkpoints",
    *,
    stages: Stages | None = None,
    batch_size: int | None = None,
) -> Log:
    """
    Run what was declared, and save after each epoch; goes on where it was.

    :param folder: of the checkpoints and of the log
    :param stages: by default what was declared last
    :param batch_size: of parts of datasets: frames with padding; by default that of the RETURNN config
    :raises ValueError: nothing is declared, or a stage does not fit to the session
    """
    stages = checked(stages or declared(), "training.run")
    run = _Run(session, {stage: session.step(stage) for stage in stages.all}, batch_size)
    session.resume(folder)
    run.stores = Stores(session.state.pop(_STATE, None))
    if stages.init is not None:
        run.steps[stages.init]({"is_new_run": session.is_new_run})
    log = Log(session, folder)
    last = 0
    for loop in stages.loops:
        last += setting("num_epochs", loop.num_epochs, "nn.epoch_loop()")
        for epoch in session.epochs(last):
            results = dict(run.epoch(loop, epoch, log))
            log.epoch(**{name: losses for name, losses in results.items() if losses})
            session.state[_STATE] = run.stores.packed()
            session.save(folder, metrics=_metrics(results))
            del session.state[_STATE]
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


def _metrics(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{name}_{k}": v for name, losses in results.items() for k, v in losses.items()}


class _Run:
    """One run of declared stages."""

    def __init__(self, session: Session, steps: dict[Stage, Step], batch_size: int | None):
        self.session, self.steps, self.batch_size = session, steps, batch_size
        self.stores = Stores()

    def epoch(
        self, loop: EpochLoop, epoch: int, log: Log
    ) -> Iterator[tuple[str, Mapping[str, Average]]]:
        """the averages of each step loop by its name, apart from those that the log has itself"""
        for stage in loop.parts:
            if stage.kind == "epoch":
                self.steps[stage]({"epoch_index": epoch})
                continue
            results = self.step_loop(stage, epoch)
            if stage.name == "train":
                for result in results:
                    log.step(result)
                continue
            yield stage.name, averages(results)

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
