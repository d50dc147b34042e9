"""Operations on each element, and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._expressions import UNARY, expression
from ._graph import layer
from ._ops_common import is_number, like, python_number
from ._returnn import Backend, as_tensor
from ._shapes import union


class Elementwise(Backend):
    """Operations on each element, and gradients."""

    # --- elementwise

    @staticmethod
    def copy(tensor: Tensor) -> Tensor:
        return like(tensor, "copy")

    @staticmethod
    def cast(tensor: Tensor, dtype: str) -> Tensor:
        if tensor.dtype == dtype:
            return tensor
        return layer(
            "cast",
            {"from": tensor, "dtype": dtype},
            dims=tensor.dims,
            dtype=dtype,
            feature_dim=tensor.feature_dim,
        )

    @classmethod
    def combine(
        cls,
        a: Any,
        kind: str,
        b: Any,
        *,
        allow_broadcast_all_sources: bool | None = None,
        dim_order: Sequence[Dim] | None = None,
    ) -> Tensor:
        if is_number(a) or is_number(b):
            return _combine_with_number(a, kind, b)
        a, b = (as_tensor(value, cls) for value in (a, b))
        dims = union(a.dims, b.dims)
        _check_broadcast(a, b, dims, allow_broadcast_all_sources)
        return expression(
            kind,
            a,
            b,
            dims=dims,
            dtype=a.dtype,
            sparse_dim=a.sparse_dim or b.sparse_dim,
            feature_dim=_feature_dim(a, b),
        )

    @classmethod
    def compare(
        cls,
        a: Any,
        kind: str,
        b: Any,
        *,
        allow_broadcast_all_sources: bool | None = None,
        dim_order: Sequence[Dim] | None = None,
    ) -> Tensor:
        if is_number(b) and isinstance(a, Tensor):
            value = python_number(b, a.dtype)
            return layer(
                "compare",
                {"from": a, "kind": kind, "value": value},
                dims=a.dims,
                dtype="bool",
                hint=kind,
            )
        a, b = _same_dtype(cls, a, b)
        dims = union(a.dims, b.dims)
        _check_broadcast(a, b, dims, allow_broadcast_all_sources)
        extra = (
            {"allow_broadcast_all_sources": True}
            if len(dims) > max(len(a.dims), len(b.dims))
            else {}
        )
        return layer(
            "compare", {"from": [a, b], "kind": kind, **extra}, dims=dims, dtype="bool", hint=kind
        )

    @staticmethod
    def activation(tensor: Tensor, func: str) -> Tensor:
        if func in UNARY:
            return expression(
                func, tensor, dims=tensor.dims, dtype=tensor.dtype, feature_dim=tensor.feature_dim
            )
        dtype = "float32" if func == "abs" and tensor.dtype.startswith("complex") else tensor.dtype
        dtype = "bool" if func == "logical_not" else dtype
        return like(tensor, "activation", {"activation": func}, hint=func, dtype=dtype)

    @staticmethod
    def safe_log(tensor: Tensor, *, eps: float) -> Tensor:
        return like(
            tensor, "activation", {"activation": "safe_log", "opts": {"eps": eps}}, hint="log"
        )

    @staticmethod
    def is_finite(x: Tensor) -> Tensor:
        return like(x, "activation", {"activation": "is_finite"}, hint="is_finite", dtype="bool")

    @staticmethod
    def is_infinite(x: Tensor) -> Tensor:
        return like(
            x,
            "eval",
            {"eval": "tf.math.is_inf(source(0))", "out_type": {"dtype": "bool"}},
            hint="is_infinite",
            dtype="bool",
        )

    @staticmethod
    def is_neg_infinite(x: Tensor) -> Tensor:
        return rf.compare(x, "==", float("-inf"))

    @classmethod
    def where(
        cls, cond: Tensor, true_: Any, false_: Any, *, allow_broadcast_all_sources: bool = False
    ) -> Tensor:
        tensors = [value for value in (true_, false_) if isinstance(value, Tensor)]
        dtype = tensors[0].dtype if tensors else as_tensor(true_, cls).dtype
        true_, false_ = (
            v if isinstance(v, Tensor) else python_number(v, dtype) for v in (true_, false_)
        )
        return layer(
            "switch",
            {"condition": cond, "true_from": true_, "false_from": false_},
            dims=union(cond.dims, *(tensor.dims for tensor in tensors)),
            dtype=dtype,
            hint="where",
            sparse_dim=tensors[0].sparse_dim if tensors else None,
            feature_dim=_feature_dim(*tensors),
        )

    @classmethod
    def clip_by_value(
        cls,
        x: Tensor,
        clip_value_min: Any,
        clip_value_max: Any,
        *,
        allow_broadcast_all_sources: bool = False,
    ) -> Tensor:
        return rf.minimum(rf.maximum(x, clip_value_min), clip_value_max)

    @classmethod
    def lerp(
        cls, start: Tensor, end: Tensor, weight: Any, *, allow_broadcast_all_sources: bool = False
    ) -> Tensor:
        scaled = rf.combine(
            end - start, "mul", weight, allow_broadcast_all_sources=allow_broadcast_all_sources
        )
        return start + scaled

    # --- gradients

    @staticmethod
    def set_requires_gradient(tensor: Tensor) -> None:
        """TensorFlow finds out itself"""

    @staticmethod
    def gradient(y: Tensor, x: Tensor) -> Tensor:
        return layer(
            "gradient", {"y": y, "x": x}, dims=x.dims, dtype=x.dtype, feature_dim=x.feature_dim
        )

    @staticmethod
    def stop_gradient(tensor: Tensor) -> Tensor:
        return like(tensor, "scaled_grad", {"scale": 0}, hint="stop_gradient")

    @staticmethod
    def scaled_gradient(tensor: Tensor, scale: float | Tensor) -> Tensor:
        return like(tensor, "scaled_grad", {"scale": scale}, hint="scaled_gradient")

    @staticmethod
    def scaled_gradient_ext(
        x: Tensor,
        *,
        scale: float | Tensor = 1.0,
        shift: float | Tensor | None = None,
        scale_shift_by_sum_over_axis: Dim | None = None,
    ) -> Tensor:
        opts = {"shift": shift, "scale_shift_by_sum_over_axis": scale_shift_by_sum_over_axis}
        return like(x, "scaled_grad", {"scale": scale, **opts}, hint="scaled_gradient")


def _feature_dim(*sources: Any) -> Dim | None:
    for source in sources:
        if isinstance(source, Tensor) and source.feature_dim is not None:
            return source.feature_dim
    return None


def _check_broadcast(a: Tensor, b: Tensor, dims: Sequence[Dim], allow: bool | None) -> None:
    if allow or len(dims) in (len(a.dims), len(b.dims)) or not a.dims or not b.dims:
        return
    raise ValueError(
        f"neither operand has all dims of the result: {list(a.dims)} and {list(b.dims)} would give {list(dims)}. "
        f"If that is meant, write nn.combine_bc / nn.compare_bc, or pass allow_broadcast_all_sources=True."
    )


def _same_dtype(backend: Any, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    dtype = next((x.dtype for x in (a, b) if isinstance(x, Tensor)), None)

    def convert(x: Any) -> Tensor:
        return as_tensor(x, backend, dtype=dtype)

    return (
        a if isinstance(a, Tensor) else convert(a),
        b if isinstance(b, Tensor) else convert(b),
    )


def _is_neutral(value: Any, kind: str) -> bool:
    """whether ``x kind value`` is x"""
    neutral = {"add": 0, "sub": 0, "mul": 1, "truediv": 1, "pow": 1}
    return is_number(value) and kind in neutral and value == neutral[kind]


def _combine_with_number(a: Any, kind: str, b: Any) -> Tensor:
    tensor = a if isinstance(a, Tensor) else b
    # RF leaves these out, too, but not where its operators are native, which depends on the process
    if _is_neutral(b, kind) or (kind in ("add", "mul") and _is_neutral(a, kind)):
        return tensor
    operands = [x if isinstance(x, Tensor) else python_number(x, tensor.dtype) for x in (a, b)]
    return expression(
        kind,
        *operands,
        dims=tensor.dims,
        dtype=tensor.dtype,
        sparse_dim=tensor.sparse_dim,
        feature_dim=tensor.feature_dim,
    )
