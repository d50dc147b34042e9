"""What the modules of a model are called with, and in which order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """The first call of a module: when, and the dims of its first tensor in and out."""

    order: int
    source: tuple[Any, ...]
    out: tuple[Any, ...]


@contextlib.contextmanager
def recorded(model: Any) -> Iterator[dict[str, Call]]:
    """The calls of the modules by path, which is filled while this is entered."""
    calls: dict[str, Call] = {}
    # Instances, not classes: RETURNN compares the methods of its classes.
    before = {path: type(module) for path, module in model.named_modules()}
    modules = {path: module for path, module in model.named_modules() if callable(module)}
    for path, module in modules.items():
        module.__class__ = _recording(before[path], path, calls)
    try:
        yield calls
    finally:
        for path, module in modules.items():
            module.__class__ = before[path]


def _recording(cls: type, path: str, calls: dict[str, Call]) -> type:
    """:return: a class like `cls` that notes its first call"""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = path not in calls
        order = len(calls)
        if first:
            calls[path] = Call(order, (), ())  # the modules inside come later
        out = cls.__call__(self, *args, **kwargs)
        if first:
            calls[path] = Call(order, _first_dims([*args, *kwargs.values()]), _first_dims(out))
        return out

    return type(cls.__name__, (cls,), {"__call__": __call__})


def _first_dims(value: Any) -> tuple[Any, ...]:
    """:return: the dims of the first tensor in it"""
    from .. import nn

    if isinstance(value, nn.Tensor):
        return value.dims
    for item in value if isinstance(value, (list, tuple)) else []:
        if dims := _first_dims(item):
            return dims
    return ()


def output_of(kind: str, model: Any, data: Any) -> Any:
    """:return: what a model gives in training; the sum of its losses, where it has them"""
    from ..testing import kinds

    source = data["data"]
    if kind in ("decoder", "lm"):
        return kinds.whole_sequence(kind, model, data)[0]
    if kind == "augmentation":
        return model(source, spatial_dim=source.dims[1])
    if kind != "segmental":
        return model(source, in_spatial_dim=source.dims[1])[0]
    targets = {"targets": data["classes"], "targets_spatial_dim": data["classes"].dims[1]}
    return sum(model.losses(source, in_spatial_dim=source.dims[1], **targets).values())
