"""What the operations of the backend share."""

from __future__ import annotations

from typing import Any

import numpy
from returnn.tensor import Tensor

from ._graph import layer


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, numpy.number))


def python_number(value: Any, dtype: str) -> bool | int | float:
    """a scalar operand as RF understands it: of the type of the tensor operand"""
    value = value.item() if isinstance(value, numpy.number) else value
    if dtype == "bool":
        return bool(value)
    return int(value) if dtype.startswith(("int", "uint")) else float(value)


def like(
    source: Tensor,
    cls: str,
    options: dict[str, Any] | None = None,
    *,
    hint: str | None = None,
    dtype: str | None = None,
) -> Tensor:
    """a layer on ``source`` alone that keeps its dims"""
    return layer(
        cls,
        {"from": source, **(options or {})},
        dims=source.dims,
        dtype=dtype or source.dtype,
        hint=hint,
        sparse_dim=source.sparse_dim if dtype in (None, source.dtype) else None,
        feature_dim=source.feature_dim,
    )


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}
