"""Dims as text: ``[B, time/4, 512]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..nn._returnn import base_of, operation_of

_LONG = 2**12 * 3**4 * 5**3 * 7  # frames, divisible by all factors that occur


def dims_as_text(dims: Iterable[Any], *, known: Mapping[Any, str] | None = None) -> str:
    """
    :param known: names of dims, which are used for all that are equal to them
    :return: the sizes of static dims, the names of dynamic ones, batch first and features last
    """
    names = {base_of(dim): name for dim, name in (known or {}).items()}
    ordered = sorted(dims, key=_place)
    return f"[{', '.join(_as_text(dim, names) for dim in ordered)}]" if ordered else ""


def _place(dim: Any) -> int:
    if dim.is_batch_dim():
        return 0
    return 1 if dim.is_dynamic() else 2


def _as_text(dim: Any, names: dict[Any, str]) -> str:
    if dim.is_batch_dim():
        return "B"
    if dim.dimension is not None:
        return str(dim.dimension)
    name, length = _followed(dim, _LONG, names)
    if name is None or not length:
        return str(dim.name or "?")
    if length * round(_LONG / length) == _LONG:
        factor = round(_LONG / length)
        return name if factor == 1 else f"{name}/{factor}"
    return f"{name}{length - _LONG:+d}" if abs(length - _LONG) < _LONG // 10 else f"~{name}"


def _followed(dim: Any, length: int, names: dict[Any, str]) -> tuple[str | None, int]:
    """:return: the dim that this one is computed from, and its length where that one has `length`"""
    operation = operation_of(base_of(dim))
    if dim.dimension is not None:
        return None, dim.dimension
    if operation is None:
        return names.get(base_of(dim), str(base_of(dim).name)), length
    pairs = [_followed(operand, length, names) for operand in operation.inputs]
    name = next((name for name, _ in pairs if name), None)
    return name, _computed(operation.kind, [value for _, value in pairs])


def _computed(kind: str, values: list[int]) -> int:
    first, *rest = values
    for value in rest:
        if kind == "add":
            first += value
        elif kind == "sub":
            first -= value
        elif kind == "mul":
            first *= value
        elif kind.startswith("ceildiv"):
            first = -(-first // value)
        else:
            first //= value
    return first
