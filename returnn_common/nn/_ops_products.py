"""Reductions, products, softmax, attention and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _attention, _ctc
from ._graph import layer
from ._ops_common import like
from ._returnn import Backend
from ._shapes import one_or_list, union, without


class Products(Backend):
    """Reductions, products, softmax, attention and losses."""

    @staticmethod
    def reduce(
        source: Tensor, *, mode: str, axis: Dim | Sequence[Dim], use_mask: bool = True
    ) -> Tensor:
        is_index = mode in ("argmax", "argmin")
        axes = [axis] if isinstance(axis, Dim) else list(axis)
        extra = {} if use_mask else {"use_time_mask": False}
        feature = None if source.feature_dim in axes else source.feature_dim
        return layer(
            "reduce",
            {"from": source, "mode": mode, "axis": one_or_list(axis), **extra},
            dims=without(source.dims, axes),
            dtype="int32" if is_index else source.dtype,
            hint=mode,
            sparse_dim=axes[0] if is_index else source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def cumsum(source: Tensor, *, spatial_dim: Dim) -> Tensor:
        return like(source, "cumsum", {"axis": spatial_dim})

    @staticmethod
    def matmul(
        a: Tensor, b: Tensor, *, reduce: Dim | Sequence[Dim], use_mask: bool = True
    ) -> Tensor:
        drop = [reduce] if isinstance(reduce, Dim) else list(reduce)
        for operand in (a, b):
            missing = [dim for dim in drop if dim not in operand.dims]
            if missing:
                raise ValueError(f"matmul: {missing[0]} is not among the dims {list(operand.dims)}")
        dims: list[Dim] = without_once(a.dims, drop)
        dims += [dim for dim in without_once(b.dims, drop) if dim not in dims]
        extra = {} if use_mask else {"use_mask": False}
        return layer(
            "dot",
            {"from": [a, b], "reduce": one_or_list(reduce), **extra},
            dims=dims,
            dtype=a.dtype,
            hint="matmul",
            feature_dim=_matmul_feature(a, b, dims),
        )

    @staticmethod
    def softmax(tensor: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
        return _softmax(tensor, axis=axis, use_mask=use_mask)

    @staticmethod
    def log_softmax(tensor: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
        return _softmax(tensor, axis=axis, use_mask=use_mask, log_space=True)

    @staticmethod
    def softmax_cross_entropy_with_logits(*, logits: Tensor, targets: Tensor, axis: Dim) -> Tensor:
        if not targets.sparse_dim:
            return -rf.matmul(targets, rf.log_softmax(logits, axis=axis), reduce=axis)
        dims = without(union(logits.dims, targets.dims), axis)
        return layer(
            "sparse_softmax_cross_entropy_with_logits",
            {"logits": logits, "targets": targets, "axis": axis},
            dims=dims,
            dtype=logits.dtype,
            hint="cross_entropy",
        )

    @staticmethod
    def ctc_loss(**kwargs: Any) -> Tensor:
        return _ctc.ctc_loss(**kwargs)

    @classmethod
    def scaled_dot_product_attention(
        cls, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any
    ) -> Tensor:
        return _attention.dot_attention(query, key, value, **kwargs)

    @classmethod
    def rel_pos_self_attention(
        cls, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor, **kwargs: Any
    ) -> Tensor:
        return _attention.rel_pos_self_attention(query, key, value, pos_emb, **kwargs)


def without_once(dims: Sequence[Dim], drop: Sequence[Dim]) -> list[Dim]:
    """``dims`` without ``drop``; where a dim stands twice (a square matrix), the one of higher match priority goes"""
    rest = list(dims)
    for dim in drop:
        rest.remove(max((d for d in rest if d == dim), key=lambda d: d.match_priority))
    return rest


def _matmul_feature(a: Tensor, b: Tensor, dims: Sequence[Dim]) -> Dim | None:
    features = [
        t.feature_dim for t in (a, b) if t.feature_dim is not None and t.feature_dim in dims
    ]
    return features[0] if len(features) == 1 else None


def _softmax(tensor: Tensor, *, axis: Dim, use_mask: bool, **options: Any) -> Tensor:
    if axis not in tensor.dims:
        raise ValueError(f"softmax: {axis} is not among the dims {list(tensor.dims)}")
    extra = {} if use_mask else {"use_time_mask": False}
    hint = "log_softmax" if options else "softmax"
    return like(tensor, "softmax_over_spatial", {"axis": axis, **options, **extra}, hint=hint)
