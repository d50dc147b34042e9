"""Tensors as such: what a raw tensor is, parameters, constants, random numbers, control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _control_flow
from ._graph import Node, layer
from ._initial import initial_option
from ._ops_common import is_number, python_number
from ._returnn import Backend
from ._shapes import dim_sources


class Values(Backend):
    """Tensors as such: what a raw tensor is, parameters, constants, random numbers, control flow."""

    # --- what a raw tensor is

    @staticmethod
    def executing_eagerly() -> bool:
        return False

    @staticmethod
    def should_pickle_tensor(raw_tensor: Node) -> bool:
        return False

    @staticmethod
    def get_dtype_name_raw(raw_tensor: Node) -> str:
        return raw_tensor.dtype

    @staticmethod
    def as_dtype_raw(dtype_name: str) -> str:
        return dtype_name

    @staticmethod
    def get_ndim_raw(raw_tensor: Node) -> int:
        return len(raw_tensor.dims)

    @staticmethod
    def get_known_shape_raw(raw_tensor: Node) -> tuple[int | None, ...]:
        return tuple(dim.dimension for dim in raw_tensor.dims)

    @staticmethod
    def set_known_shape_raw(raw_tensor: Node, shape: tuple[int | None, ...]) -> None:
        pass

    @staticmethod
    def get_device(x: Tensor) -> str | None:
        return None

    @staticmethod
    def copy_to_device(x: Tensor, device: str | None) -> Tensor:
        return x

    @staticmethod
    def runtime_sanity_checks(tensor: Tensor) -> None:
        return None

    @staticmethod
    def is_valid_in_current_graph(tensor: Tensor) -> bool:
        return True

    @staticmethod
    def format_graph_output(raw_tensor: Node, *, max_depth: int | None = None) -> str:
        return repr(raw_tensor)

    @staticmethod
    def set_random_seed(seed: int) -> None:
        """the config option ``random_seed`` decides, nothing is drawn while tracing"""

    @staticmethod
    def get_random_state() -> dict[str, bytes]:
        return {}

    @staticmethod
    def set_random_state(state: dict[str, bytes]) -> None:
        pass

    @staticmethod
    def name_scope_raw(name: str) -> Any:
        import contextlib

        return contextlib.nullcontext()

    # --- control flow

    @staticmethod
    def cond(pred: Tensor, true_fn: Callable, false_fn: Callable) -> Any:
        return _control_flow.cond(pred, true_fn, false_fn)

    @staticmethod
    def while_loop(cond: Callable, body: Callable, initial: Any) -> Any:
        return _control_flow.while_loop(cond, body, initial)

    @staticmethod
    def assert_(condition: Tensor, message: str, *, stop: bool = True) -> None:
        raise NotImplementedError(
            "nn.assert_ has no RETURNN layer; check the values in the data or in the forward output"
        )

    # --- parameters

    @staticmethod
    def create_parameter_raw(tensor: rf.Parameter, *, device: str | None = None) -> Node:
        return Node("variable", {}, dims=tensor.dims, dtype=tensor.dtype)

    @staticmethod
    def set_parameter_initial_value(param: rf.Parameter, value: Any) -> None:
        param.raw_tensor.opts.pop("init", None)
        if value is not None:
            param.raw_tensor.opts["init"] = initial_option(value)

    @staticmethod
    def set_parameter_trainable(param: rf.Parameter, trainable: bool) -> None:
        param.raw_tensor.opts.pop("trainable", None)
        if not trainable:
            param.raw_tensor.opts["trainable"] = False

    @staticmethod
    def parameter_assign(param: rf.Parameter, value: Tensor, *, op: str = "assign") -> None:
        _control_flow.assign(param, value, op=op)

    # --- constants and random numbers

    @staticmethod
    def convert_to_tensor(
        value: Any,
        *,
        dims: Sequence[Dim],
        dtype: str,
        sparse_dim: Dim | None = None,
        feature_dim: Dim | None = None,
        device: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return _constant(
            value, dims=dims, dtype=dtype, sparse_dim=sparse_dim, feature_dim=feature_dim, hint=name
        )

    @staticmethod
    def full(
        dims: Sequence[Dim],
        fill_value: Any,
        *,
        dtype: str,
        device: str | None = None,
        sparse_dim: Dim | None = None,
        feature_dim: Dim | None = None,
        **_: Any,
    ) -> Tensor:
        if isinstance(fill_value, Tensor):
            zeros = _constant(0, dims=dims, dtype=dtype, sparse_dim=None, feature_dim=feature_dim)
            return rf.combine_bc(zeros, "add", fill_value)
        return _constant(
            fill_value,
            dims=dims,
            dtype=dtype,
            sparse_dim=sparse_dim,
            feature_dim=feature_dim,
            hint="full",
        )

    @staticmethod
    def random(
        *,
        dims: Sequence[Dim],
        dtype: str,
        device: str | None = None,
        sparse_dim: Dim | None = None,
        feature_dim: Dim | None = None,
        distribution: str,
        out: Tensor | None = None,
        like: Any = None,
        **options: Any,
    ) -> Tensor:
        options = {key: value for key, value in options.items() if value is not None}
        sources = dim_sources(dims)
        if sources:
            options["shape_deps"] = sources
        opts = {
            "shape": list(dims),
            "distribution": distribution,
            **options,
            **_type(dtype, sparse_dim),
            "stop_grad": True,
        }
        return layer(
            "random", opts, dims=dims, dtype=dtype, sparse_dim=sparse_dim, feature_dim=feature_dim
        )


def _type(dtype: str, sparse_dim: Dim | None) -> dict[str, Any]:
    return {"dtype": dtype, **({"sparse_dim": sparse_dim} if sparse_dim is not None else {})}


def _constant(
    value: Any,
    *,
    dims: Sequence[Dim],
    dtype: str,
    sparse_dim: Dim | None,
    feature_dim: Dim | None,
    hint: str | None = None,
) -> Tensor:
    value = value.item() if isinstance(value, numpy.ndarray) and value.ndim == 0 else value
    value = python_number(value, dtype) if is_number(value) else value
    options = {"value": value, "shape": list(dims), **_type(dtype, sparse_dim)}
    sources = dim_sources(dims)
    if sources:
        options["shape_deps"] = sources
    return layer(
        "constant",
        options,
        dims=dims,
        dtype=dtype,
        hint=hint or "constant",
        sparse_dim=sparse_dim,
        feature_dim=feature_dim,
    )
