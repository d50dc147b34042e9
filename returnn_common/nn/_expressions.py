"""
Elementwise arithmetic as trees, so that several operations in a row become one layer.

``x + 0.5 * y`` is ``("add", x, ("mul", 0.5, y))``: a combine layer where that suffices, else one eval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from returnn.tensor import Dim, Tensor

from ._graph import layer

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
}
_LEVEL = {"add": 1, "sub": 1, "mul": 2, "truediv": 2, "floordiv": 2, "mod": 2, "pow": 3}
_CALLS = {
    "maximum": "tf.maximum",
    "minimum": "tf.minimum",
    "squared_difference": "tf.math.squared_difference",
    "logical_and": "tf.logical_and",
    "logical_or": "tf.logical_or",
    "logaddexp": "tf.experimental.numpy.logaddexp",
}
#: Functions of one argument that are part of a formula; what is an activation stays a layer or goes into a linear one.
UNARY = {name: f"tf.{name}" for name in ("exp", "sqrt", "square", "sin", "cos")} | {
    "rsqrt": "tf.math.rsqrt",
    "log": "tf.math.log",
    "neg": "-",
}


def expression(kind: str, *operands: Any, dims: Sequence[Dim], dtype: str, **kwargs: Any) -> Tensor:
    """the elementwise ``kind`` of tensors and numbers"""
    if kind not in _INFIX and kind not in _CALLS and kind not in UNARY:
        raise NotImplementedError(
            f"nn.combine: unknown kind {kind!r}, known are {sorted([*_INFIX, *_CALLS])}"
        )
    return layer("expr", {"expr": (kind, *operands)}, dims=dims, dtype=dtype, hint=kind, **kwargs)


def leaves(expr: Any) -> Iterator[Tensor]:
    """the tensors of an expression, each raw tensor once, in order of appearance"""
    seen: set[int] = set()
    for tensor in _all_leaves(expr):
        if id(tensor.raw_tensor) not in seen:
            seen.add(id(tensor.raw_tensor))
            yield tensor


def _all_leaves(expr: Any) -> Iterator[Tensor]:
    if isinstance(expr, Tensor):
        yield expr
    elif isinstance(expr, tuple):
        for operand in expr[1:]:
            yield from _all_leaves(operand)


def layer_options(expr: tuple) -> dict[str, Any]:
    """class and options of the layer: combine for one operation on tensors, activation for a function, else eval"""
    sources = list(leaves(expr))
    flat = _same_kind_chain(expr)
    extra = {"allow_broadcast_all_sources": True} if _needs_broadcast(sources) else {}
    if len(expr) == 2 and isinstance(expr[1], Tensor):
        return {"class": "activation", "activation": expr[0], "from": sources}
    if flat is not None and len(flat) == len(sources):
        return {"class": "combine", "kind": expr[0], "from": flat, **extra}
    source = sources if len(sources) > 1 else sources[0]
    return {"class": "eval", "from": source, "eval": _code(expr, sources), **extra}


def _needs_broadcast(sources: Sequence[Tensor]) -> bool:
    all_dims = {dim for tensor in sources for dim in tensor.dims}
    return all(len(set(tensor.dims)) < len(all_dims) for tensor in sources)


def _same_kind_chain(expr: tuple) -> list[Tensor] | None:
    if len(expr) != 3:
        return None
    operands: list[Any] = []
    for operand in expr[1:]:
        if isinstance(operand, tuple) and operand[0] == expr[0] and expr[0] in ("add", "mul"):
            operands += _same_kind_chain(operand) or [None]
        else:
            operands.append(operand)
    return operands if all(isinstance(operand, Tensor) for operand in operands) else None


def _code(expr: Any, sources: Sequence[Tensor], *, outer: str = "") -> str:
    if isinstance(expr, Tensor):
        return (
            f"source({next(i for i, t in enumerate(sources) if t.raw_tensor is expr.raw_tensor)})"
        )
    if not isinstance(expr, tuple):
        return _number(expr)
    kind, *operands = expr
    if kind == "neg":
        return f"-{_code(operands[0], sources, outer='pow')}"
    if kind in _INFIX:
        left, right = operands
        tighter = "pow" if kind in ("sub", "truediv", "floordiv", "mod", "pow") else kind
        parts = _code(left, sources, outer=kind), _code(right, sources, outer=tighter)
        code = f"{parts[0]} {_INFIX[kind]} {parts[1]}"
        return f"({code})" if _LEVEL[kind] < _LEVEL.get(outer, 0) else code
    name = UNARY.get(kind) or _CALLS[kind]
    return f"{name}({', '.join(_code(operand, sources) for operand in operands)})"


def _number(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return f"({value!r})" if isinstance(value, (int, float)) and value < 0 else repr(value)
