"""Values that have tensors and dims in them: dicts, lists, tuples, and objects with attributes."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor


class Step(NamedTuple):
    """One step into a nested value."""

    key: Any
    is_attribute: bool = False


def tensors_and_dims(
    value: Any, path: tuple[Step, ...], seen: set[int]
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """all tensors and dims in a nested value, and the objects that have some as attributes"""
    if isinstance(value, (rf.Parameter, rf.Module)) or id(value) in seen:
        return
    if isinstance(value, (Tensor, Dim)):
        yield path, value
        return
    if isinstance(value, (dict, list, tuple)):
        items, is_attribute = items_of(value), False
    elif is_object(value):
        items, is_attribute = list(vars(value).items()), True
    else:
        return
    seen.add(id(value))
    inner = [
        found
        for key, item in items
        for found in tensors_and_dims(item, (*path, Step(key, is_attribute)), seen)
    ]
    if is_attribute and inner:
        yield path, value
    yield from inner


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """of a dict, list, tuple or set, with their keys or indices"""
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def rebuilt(like: Any, items: Sequence[tuple[Any, Any]]) -> Any:
    """a dict, list, tuple or set as ``like`` with these items"""
    if isinstance(like, dict):
        made = emptied(like)
        made.update(items)
        return made
    values = [value for _, value in items]
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def emptied(value: dict) -> dict:
    """a dict of the same type"""
    made = copy.copy(value)
    made.clear()
    return made


def mapped(value: Any, function: Callable) -> Any:
    """a dict, list or tuple of what ``function`` gives for its items"""
    return rebuilt(value, [(key, function(item)) for key, item in items_of(value)])


def contains(value: Any, ids: Mapping[int, Any]) -> bool:
    """whether it is one of these, by id, or has one in it"""
    if isinstance(value, (dict, list, tuple)):
        return any(contains(item, ids) for _, item in items_of(value))
    return id(value) in ids


def holds(value: Any) -> bool:
    """whether it is a tensor or dim, or has some in it"""
    if isinstance(value, (dict, list, tuple)):
        return any(holds(item) for _, item in items_of(value))
    return isinstance(value, (Tensor, Dim)) and not isinstance(value, rf.Parameter)


def is_object(value: Any) -> bool:
    """whether it may hold tensors as attributes"""
    others = (type, types.ModuleType, types.FunctionType, types.MethodType, functools.partial)
    return hasattr(value, "__dict__") and not isinstance(value, (rf.Module, rf.RunCtx, *others))
