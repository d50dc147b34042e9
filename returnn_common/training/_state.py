"""Nested dicts and lists of numbers, strings and arrays as JSON beside a dict of arrays; and random generators."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy

_ARRAY = "__array__"


def split(value: Any, arrays: dict[str, numpy.ndarray], name: str) -> Any:
    """``value`` with the arrays in it moved to ``arrays``, under names that begin with ``name``"""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind in "OUSV":
            raise TypeError(
                f"{name} is an array of type {array.dtype}, which a checkpoint cannot hold"
            )
        arrays[name] = array
        return {_ARRAY: name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{name} has the key {key!r}, expected strings as keys")
        return {key: split(item, arrays, f"{name}/{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [split(item, arrays, f"{name}/{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold; "
        f"expected numbers, strings, arrays, and dicts and lists of these"
    )


def join(value: Any, arrays: Mapping[str, numpy.ndarray]) -> Any:
    """what :func:`split` has split; tuples are lists"""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: join(item, arrays) for key, item in value.items()}
    return [join(item, arrays) for item in value] if isinstance(value, list) else value


def get_random_states() -> dict[str, Any]:
    """of the global generators of Python and numpy"""
    version, numbers, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = numpy.random.get_state(legacy=True)
    return {
        "python": [version, numpy.array(numbers, dtype="int64"), gauss],
        "numpy": [kind, keys, place, has_gauss, cached],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    numpy.random.set_state(tuple(states["numpy"]))


__all__ = ["get_random_states", "join", "set_random_states", "split"]
