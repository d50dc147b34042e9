"""Declared stages as step functions: the calls that were recorded in their bodies, run again on the data of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import returnn.frontend as rf

from ..nn._recorded import run_calls
from ..nn._recorded_refs import Run
from ..nn._stage import STORED, Stage, replayed


def step_of(stage: Stage, model: rf.Module) -> Callable:
    """
    A step function that does what the body of the stage did: marks its losses, and as outputs what it stores.

    Raises ValueError where the stage uses what ``model`` lacks, or what no call in the body has given.
    """
    calls = stage.recorded(model)

    def step(*, model: rf.Module, extern_data: Any) -> None:
        with replayed(stage, extern_data) as found:
            run_calls(calls, Run(extern_data.data))
        ctx = rf.get_run_ctx()
        _check_same(stage, "marks the losses", ctx.losses, stage.loss_names)
        _check_same(stage, "stores", found.stored, stage.stored)
        for name, tensor in found.stored.items():
            ctx.outputs.data[STORED + name] = tensor

    return step


def _check_same(stage: Stage, what: str, now: Iterable[str], declared: Iterable[str]) -> None:
    found, expected = (", ".join(names) or "nothing" for names in (now, declared))
    if found != expected:
        raise ValueError(f"{stage.line}on torch this stage {what} {found}, declared was {expected}")


__all__ = ["step_of"]
