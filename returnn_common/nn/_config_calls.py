"""Layers that call a function which the config text defines (:mod:`._config_functions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn.tensor import Dim, Tensor

from ._graph import Node, layer


class ConfigFunction:
    """A function that the config text defines, by its name in :mod:`._config_functions`."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


class ConfigCall(ConfigFunction):
    """What such a function gives, called without arguments where the config is loaded."""

    def __repr__(self) -> str:
        return f"{self.name}()"


def out_type(
    dims: Sequence[Dim], *, feature_dim: Dim | None = None, dtype: str = "float32"
) -> dict[str, Any]:
    """
    The result of an eval layer, in RETURNN's older form (``dim_tags``), which its loss layers want.

    That form has a time axis: the first dynamic dim, since RETURNN would else take the next dim
    that some later layer adds.
    """
    dynamic = [i for i, dim in enumerate(dims) if dim.is_dynamic() and not dim.is_batch_dim()]
    return {
        "dim_tags": list(dims),
        "dtype": dtype,
        "sparse_dim": None,
        "feature_dim_axis": None if feature_dim is None else list(dims).index(feature_dim),
        "time_dim_axis": dynamic[0] if dynamic else None,
    }


def config_eval(
    name: str,
    sources: Tensor | list[Tensor],
    dims: Sequence[Dim],
    *,
    hint: str,
    feature_dim: Dim | None = None,
    eval_locals: dict[str, Any] | None = None,
    like: Tensor | None = None,
) -> Tensor:
    """
    An eval layer that calls the config function ``name``, with ``eval_locals`` as its arguments.

    The result is float32, or of the dtype and sparse dim of ``like``.
    """
    dtype, sparse_dim = ("float32", None) if like is None else (like.dtype, like.sparse_dim)
    kind = {**out_type(dims, feature_dim=feature_dim, dtype=dtype), "sparse_dim": sparse_dim}
    arguments = {"eval_locals": eval_locals} if eval_locals else {}
    return layer(
        "eval",
        {"from": sources, "eval": ConfigFunction(name), **arguments, "out_type": kind},
        dims=dims,
        dtype=dtype,
        hint=hint,
        sparse_dim=sparse_dim,
        feature_dim=feature_dim,
    )


def is_traced(tensor: Any) -> bool:
    """whether the tensor is a layer to be; the replacements leave all others to RF"""
    return isinstance(tensor, Tensor) and isinstance(tensor.raw_tensor, Node)
