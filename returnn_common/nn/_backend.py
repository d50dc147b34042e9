"""
The RF backend whose tensors are layers to be.

Every method says which RETURNN layer an RF operation is, and which dims the result has. Nothing here needs TensorFlow:
the shapes follow from the named dims alone, and RETURNN checks them when it constructs the net.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _control_flow, _formulas
from ._expressions import UNARY, expression
from ._graph import Graph, Node, layer, sub_output
from ._initial import initial_option
from ._returnn import Backend
from ._shapes import dim_sources, one_or_list, replaced, union, without


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, numpy.number))


def _python_number(value: Any, dtype: str) -> bool | int | float:
    """a scalar operand as RF understands it: of the type of the tensor operand"""
    value = value.item() if isinstance(value, numpy.number) else value
    if dtype == "bool":
        return bool(value)
    return int(value) if dtype.startswith(("int", "uint")) else float(value)


def _feature_dim(*sources: Any) -> Dim | None:
    for source in sources:
        if isinstance(source, Tensor) and source.feature_dim is not None:
            return source.feature_dim
    return None


def _like(
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


def _check_broadcast(a: Tensor, b: Tensor, dims: Sequence[Dim], allow: bool | None) -> None:
    if allow or len(dims) in (len(a.dims), len(b.dims)) or not a.dims or not b.dims:
        return
    raise ValueError(
        f"neither operand has all dims of the result: {list(a.dims)} and {list(b.dims)} would give {list(dims)}. "
        f"If that is meant, write nn.combine_bc / nn.compare_bc, or pass allow_broadcast_all_sources=True."
    )


class LayersBackend(Backend):
    """RF operations as RETURNN layers."""

    name = "tensorflow-net-dict"
    RawTensorType = Node
    is_tensorflow = False  # in RF's sense: raw tensors are no TensorFlow objects
    is_backend_raw_tensor_dim_tag_independent = False

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

    # --- elementwise

    @staticmethod
    def copy(tensor: Tensor) -> Tensor:
        return _like(tensor, "copy")

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
        if _is_number(a) or _is_number(b):
            return _combine_with_number(a, kind, b)
        a, b = (rf.convert_to_tensor(value, _backend=cls) for value in (a, b))
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
        if _is_number(b) and isinstance(a, Tensor):
            value = _python_number(b, a.dtype)
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
        return _like(tensor, "activation", {"activation": func}, hint=func, dtype=dtype)

    @staticmethod
    def safe_log(tensor: Tensor, *, eps: float) -> Tensor:
        return _like(
            tensor, "activation", {"activation": "safe_log", "opts": {"eps": eps}}, hint="log"
        )

    @staticmethod
    def is_finite(x: Tensor) -> Tensor:
        return _like(x, "activation", {"activation": "is_finite"}, hint="is_finite", dtype="bool")

    @staticmethod
    def is_infinite(x: Tensor) -> Tensor:
        return _like(
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
        dtype = tensors[0].dtype if tensors else rf.convert_to_tensor(true_, _backend=cls).dtype
        true_, false_ = (
            v if isinstance(v, Tensor) else _python_number(v, dtype) for v in (true_, false_)
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
        return _like(tensor, "scaled_grad", {"scale": 0}, hint="stop_gradient")

    @staticmethod
    def scaled_gradient(tensor: Tensor, scale: float | Tensor) -> Tensor:
        return _like(tensor, "scaled_grad", {"scale": scale}, hint="scaled_gradient")

    @staticmethod
    def scaled_gradient_ext(
        x: Tensor,
        *,
        scale: float | Tensor = 1.0,
        shift: float | Tensor | None = None,
        scale_shift_by_sum_over_axis: Dim | None = None,
    ) -> Tensor:
        opts = {"shift": shift, "scale_shift_by_sum_over_axis": scale_shift_by_sum_over_axis}
        return _like(x, "scaled_grad", {"scale": scale, **opts}, hint="scaled_gradient")

    # --- shapes

    @staticmethod
    def make_output_tensor(tensor: Tensor, dims: Sequence[Dim], *, name: str) -> Tensor:
        return layer(
            "transpose",
            {"from": tensor, "perm": list(dims)},
            dims=dims,
            dtype=tensor.dtype,
            hint=name,
            sparse_dim=tensor.sparse_dim,
            feature_dim=tensor.feature_dim,
        )

    @staticmethod
    def merge_dims(source: Tensor, *, dims: Sequence[Dim], out_dim: Dim) -> Tensor:
        rest = list(source.dims)
        position = min(rest.index(dim) for dim in dims)
        kept = [dim for dim in rest[:position] if dim not in dims]
        out = [*kept, out_dim, *(dim for dim in rest[position:] if dim not in dims)]
        feature = out_dim if source.feature_dim in dims else source.feature_dim
        return layer(
            "merge_dims",
            {"from": source, "axes": list(dims), "out_dim": out_dim},
            dims=out,
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def split_dims(
        source: Tensor,
        *,
        axis: Dim,
        dims: Sequence[Dim],
        pad_to_multiples: bool | None = None,
        pad_value: int | float | None = None,
    ) -> Tensor:
        at = source.dims.index(axis)
        opts = {"pad_to_multiples": pad_to_multiples, "pad_value": pad_value}
        feature = dims[-1] if source.feature_dim == axis else source.feature_dim
        return layer(
            "split_dims",
            {"from": source, "axis": axis, "dims": list(dims), **_given(opts)},
            dims=[*source.dims[:at], *dims, *source.dims[at + 1 :]],
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def reshape(source: Tensor, in_dims: Sequence[Dim], out_dims: Sequence[Dim]) -> Tensor:
        dims = [*without(source.dims, in_dims), *out_dims]
        deps = dim_sources(out_dims)
        return layer(
            "reshape",
            {
                "from": source,
                "in_dims": list(in_dims),
                "out_dims": list(out_dims),
                "extra_deps": deps,
            },
            dims=dims,
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
        )

    @staticmethod
    def split(source: Tensor, *, axis: Dim, out_dims: Sequence[Dim]) -> tuple[Tensor, ...]:
        out = layer(
            "split",
            {"from": source, "axis": axis, "out_dims": list(out_dims)},
            dims=replaced(source.dims, axis, out_dims[0]),
            dtype=source.dtype,
        )
        parts = []
        for i, dim in enumerate(out_dims):
            part = sub_output(
                out, str(i), dims=replaced(source.dims, axis, dim), dtype=source.dtype
            )
            if source.feature_dim is not None:
                part.feature_dim = dim if source.feature_dim == axis else source.feature_dim
            parts.append(part)
        return tuple(parts)

    @staticmethod
    def expand_dim(source: Tensor, dim: Dim) -> Tensor:
        kind = "spatial" if source.feature_dim is not None or dim.dimension is None else "feature"
        return layer(
            "expand_dims",
            {"from": source, "axis": kind, "dim": dim},
            dims=[*source.dims, dim],
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=source.feature_dim,
        )

    @staticmethod
    def squeeze(source: Tensor, axis: Dim) -> Tensor:
        feature = None if source.feature_dim == axis else source.feature_dim
        return layer(
            "squeeze",
            {"from": source, "axis": axis},
            dims=without(source.dims, axis),
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def concat(*sources: tuple[Tensor, Dim], allow_broadcast: bool = False, out_dim: Dim) -> Tensor:
        first, axis = sources[0]
        dims = union(
            replaced(first.dims, axis, out_dim), *(without(t.dims, dim) for t, dim in sources[1:])
        )
        extra = {"allow_broadcast": True} if allow_broadcast else {}
        feature = out_dim if first.feature_dim == axis else first.feature_dim
        return layer(
            "concat",
            {"from": [tuple(source) for source in sources], "out_dim": out_dim, **extra},
            dims=dims,
            dtype=first.dtype,
            sparse_dim=first.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def pad(
        source: Tensor,
        *,
        axes: Sequence[Dim],
        padding: Sequence[tuple[Any, Any]],
        out_dims: Sequence[Dim],
        handle_dynamic_dims: bool,
        mode: str = "constant",
        value: Any = None,
    ) -> Tensor:
        dims = list(source.dims)
        feature = source.feature_dim
        for axis, out_dim in zip(axes, out_dims):
            dims = replaced(dims, axis, out_dim)
            feature = out_dim if feature == axis else feature
        opts = {
            "mode": mode,
            "value": value if value is not None else 0,
            "handle_dynamic_dims": handle_dynamic_dims,
        }
        return layer(
            "pad",
            {
                "from": source,
                "axes": list(axes),
                "padding": [tuple(p) for p in padding],
                "out_dims": list(out_dims),
                **opts,
            },
            dims=dims,
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def replace_dim(source: Tensor, *, in_dim: Dim, out_dim: Dim) -> Tensor:
        if in_dim not in source.dims:
            raise ValueError(f"replace_dim: {in_dim} is not among the dims {list(source.dims)}")
        if (
            out_dim.dimension is None
            and out_dim.dyn_size_ext is None
            and in_dim.dyn_size_ext is not None
        ):
            out_dim.dyn_size_ext = in_dim.dyn_size_ext.copy()
            Graph.current.touched.append(out_dim)
        out = layer(
            "reinterpret_data",
            {"from": source, "set_dim_tags": {in_dim: out_dim}},
            dims=replaced(source.dims, in_dim, out_dim),
            dtype=source.dtype,
            hint="renamed",
            sparse_dim=source.sparse_dim,
            feature_dim=out_dim if source.feature_dim == in_dim else source.feature_dim,
        )
        return out

    @staticmethod
    def set_sparse_dim(source: Tensor, sparse_dim: Dim) -> Tensor:
        return layer(
            "reinterpret_data",
            {"from": source, "set_sparse": True, "set_sparse_dim": sparse_dim},
            dims=source.dims,
            dtype=source.dtype,
            hint="labels",
            sparse_dim=sparse_dim,
        )

    # --- indexing

    @staticmethod
    def gather(
        source: Tensor, *, indices: Tensor | int, axis: Dim, clip_to_valid: bool = False
    ) -> Tensor:
        extra = {"clip_to_valid": True} if clip_to_valid else {}
        index_dims = list(indices.dims) if isinstance(indices, Tensor) else []
        common = [dim for dim in index_dims if dim in source.dims]
        at = source.dims.index(axis)
        new = without(index_dims, common)
        dims = [*source.dims[:at], *new, *source.dims[at + 1 :]]
        feature = None if source.feature_dim == axis else source.feature_dim
        return layer(
            "gather",
            {"from": source, "position": indices, "axis": axis, **extra},
            dims=dims,
            dtype=source.dtype,
            sparse_dim=source.sparse_dim,
            feature_dim=feature,
        )

    @staticmethod
    def slice(
        source: Tensor,
        *,
        axis: Dim,
        start: int | Tensor | None = None,
        end: int | Tensor | None = None,
        step: int | Tensor | None = None,
        size: int | Tensor | Dim | None = None,
        out_dim: Dim,
    ) -> Tensor:
        feature = out_dim if source.feature_dim == axis else source.feature_dim
        dims = replaced(source.dims, axis, out_dim)
        kwargs: dict[str, Any] = {
            "dims": dims,
            "dtype": source.dtype,
            "sparse_dim": source.sparse_dim,
            "feature_dim": feature,
        }
        if size is not None or isinstance(start, Tensor):
            if end is not None or step is not None:
                raise NotImplementedError(
                    "nn.slice: a dynamic start or size goes without end and step"
                )
            return layer(
                "slice_nd",
                {
                    "from": source,
                    "axis": axis,
                    "start": start,
                    "size": size,
                    "out_spatial_dim": out_dim,
                },
                hint="slice",
                **kwargs,
            )
        if any(isinstance(value, Tensor) for value in (end, step)):
            raise NotImplementedError(
                "nn.slice: end and step must be numbers, or give a size instead"
            )
        limits = _given({"slice_start": start, "slice_end": end, "slice_step": step})
        return layer(
            "slice", {"from": source, "axis": axis, "out_dim": out_dim, **limits}, **kwargs
        )

    @staticmethod
    def flip_no_mask(source: Tensor, *, axis: Dim) -> Tensor:
        return _like(
            source, "slice", {"axis": axis, "out_dim": axis, "slice_step": -1}, hint="flip"
        )

    @staticmethod
    def masked_select(
        tensor: Tensor, *, mask: Tensor, dims: Sequence[Dim], out_dim: Dim | None = None
    ) -> tuple[Tensor, Dim]:
        if set(mask.dims) != set(dims):
            return _control_flow.masked_select_subset(tensor, mask=mask, dims=dims, out_dim=out_dim)
        out_dim = out_dim or Dim(None, name="mask")
        rest = without(tensor.dims, dims)
        out = layer(
            "boolean_mask",
            {"from": tensor, "mask": mask, "dims": list(dims), "out_dim": out_dim},
            dims=[out_dim, *rest],
            dtype=tensor.dtype,
            sparse_dim=tensor.sparse_dim,
            feature_dim=tensor.feature_dim,
        )
        return out, out_dim

    @staticmethod
    def top_k(
        source: Tensor,
        *,
        axis: Dim | Sequence[Dim],
        k: int | Tensor,
        k_dim: Dim | None = None,
        sorted: bool = True,
    ) -> tuple[Tensor, Tensor | Sequence[Tensor], Dim]:
        k_dim = k_dim or Dim(k, name="k")
        axes = [axis] if isinstance(axis, Dim) else list(axis)
        dims = [*without(source.dims, axes), k_dim]
        values = layer(
            "top_k",
            {"from": source, "axis": one_or_list(axis), "k": k, "k_dim": k_dim, "sorted": sorted},
            dims=dims,
            dtype=source.dtype,
        )
        names = ["indices"] if isinstance(axis, Dim) else [f"indices{i}" for i in range(len(axes))]
        indices = [
            sub_output(values, name, dims=dims, dtype="int32", sparse_dim=one)
            for name, one in zip(names, axes)
        ]
        return values, indices[0] if isinstance(axis, Dim) else indices, k_dim

    @staticmethod
    def range_over_dim(dim: Dim, *, dtype: str | None = None, device: str | None = None) -> Tensor:
        dtype = dtype or (dim.dyn_size_ext.dtype if dim.dyn_size_ext is not None else "int32")
        sources = dim_sources(dim)
        if (
            len(sources) == 1
            and sources[0].raw_tensor.cls == "range_from_length"
            and sources[0].dtype == dtype
        ):
            return sources[0]
        is_index = dtype.startswith(("int", "uint"))
        extra = {"sparse": True} if is_index else {}
        return layer(
            "range_in_axis",
            {"from": sources, "axis": dim, "dtype": dtype, **extra},
            dims=[dim],
            dtype=dtype,
            hint=f"{dim.name}_range",
            sparse_dim=dim if is_index else None,
        )

    # --- reductions and products

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
        return _like(source, "cumsum", {"axis": spatial_dim})

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
        return _formulas.ctc_loss(**kwargs)

    @classmethod
    def scaled_dot_product_attention(
        cls, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any
    ) -> Tensor:
        return _formulas.dot_attention(query, key, value, **kwargs)

    @classmethod
    def rel_pos_self_attention(
        cls, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor, **kwargs: Any
    ) -> Tensor:
        return _formulas.rel_pos_self_attention(query, key, value, pos_emb, **kwargs)

    # --- layers with parameters

    @staticmethod
    def batch_norm(
        source: Tensor,
        *,
        in_dim: Dim | Sequence[Dim],
        running_mean: Tensor,
        running_variance: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        epsilon: float,
        momentum: float,
        affine: bool,
        use_mask: bool,
    ) -> Tensor:
        params = {
            "v2_mean": running_mean,
            "v2_variance": running_variance,
            "v2_gamma": gamma,
            "v2_beta": beta,
        }
        defaults = {"use_shift": True, "use_std": True, "momentum": 0.1, "epsilon": 1e-3}
        options = {"use_shift": affine, "use_std": affine, "momentum": momentum, "epsilon": epsilon}
        options = {key: value for key, value in options.items() if value != defaults[key]}
        named = {f"batch_norm/{name}": param for name, param in params.items() if param is not None}
        return _like(
            source,
            "batch_norm",
            {"in_dim": in_dim, "masked_time": use_mask, "params": named, **options},
        )

    @staticmethod
    def conv(
        source: Tensor,
        *,
        in_dim: Dim,
        out_dim: Dim,
        in_spatial_dims: Sequence[Dim],
        out_spatial_dims: Sequence[Dim] | None = None,
        filter: Tensor,
        filter_size: Sequence[Dim],
        padding: str | int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        dilation_rate: int | Sequence[int] | None = None,
        groups: int | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Dim]]:
        sizes = [dim.dimension for dim in filter_size]
        if not out_spatial_dims:
            out_spatial_dims = rf.make_conv_out_spatial_dims(
                in_spatial_dims,
                filter_size=sizes,
                strides=strides or 1,
                dilation_rate=dilation_rate or 1,
                padding=padding,
                description_prefix="conv",
            )
        dims = [*without(source.dims, [in_dim, *in_spatial_dims]), *out_spatial_dims, out_dim]
        options = _given({"strides": strides, "dilation_rate": dilation_rate, "groups": groups})
        if options.get("groups") == 1:
            options.pop("groups")
        out = layer(
            "conv",
            {
                "from": source,
                "in_dim": in_dim,
                "in_spatial_dims": list(in_spatial_dims),
                "out_dim": out_dim,
                "out_spatial_dims": list(out_spatial_dims),
                "filter_size": sizes,
                "padding": padding,
                **options,
                **({} if bias is not None else {"with_bias": False}),
                "params": _given({"W": filter, "bias": bias}),
                "filter_dims": list(filter_size),
            },
            dims=dims,
            dtype=source.dtype,
            feature_dim=out_dim,
        )
        return out, out_spatial_dims

    @staticmethod
    def transposed_conv(
        source: Tensor,
        *,
        in_dim: Dim,
        out_dim: Dim,
        in_spatial_dims: Sequence[Dim],
        out_spatial_dims: Sequence[Dim] | None = None,
        filter: Tensor,
        filter_size: Sequence[Dim],
        padding: str,
        remove_padding: Sequence[int] | int = 0,
        output_padding: Any = None,
        strides: Sequence[int] | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Dim]]:
        if not out_spatial_dims:
            out_spatial_dims = [Dim(None, name=f"{dim.name}_up") for dim in in_spatial_dims]
        options = _given({"strides": strides, "output_padding": output_padding, "bias": bias})
        if remove_padding:
            options["remove_padding"] = remove_padding
        dims = [*without(source.dims, [in_dim, *in_spatial_dims]), *out_spatial_dims, out_dim]
        out = layer(
            "transposed_conv",
            {
                "from": source,
                "in_dim": in_dim,
                "in_spatial_dims": list(in_spatial_dims),
                "out_dim": out_dim,
                "out_spatial_dims": list(out_spatial_dims),
                "filter_size": [d.dimension for d in filter_size],
                "filter_perm": [*filter_size, out_dim, in_dim],
                "padding": padding,
                "filter": filter,
                "with_bias": bias is not None,
                **options,
            },
            dims=dims,
            dtype=source.dtype,
            feature_dim=out_dim,
        )
        return out, out_spatial_dims

    @staticmethod
    def pool(
        source: Tensor,
        *,
        mode: str,
        pool_size: Sequence[int],
        padding: str | int | Sequence[int] = "valid",
        dilation_rate: Sequence[int] | int = 1,
        strides: Sequence[int],
        in_spatial_dims: Sequence[Dim],
        out_spatial_dims: Sequence[Dim] | None = None,
    ) -> tuple[Tensor, Sequence[Dim]]:
        if out_spatial_dims is None:
            out_spatial_dims = rf.make_conv_out_spatial_dims(
                in_spatial_dims,
                filter_size=pool_size,
                strides=strides,
                dilation_rate=dilation_rate,
                padding=padding,
                description_prefix="pool",
            )
        others = [
            dim for dim in source.dims if dim not in in_spatial_dims and not dim.is_batch_dim()
        ]
        if not others:
            one = Dim(1, name="one")
            out, out_spatial_dims = LayersBackend.pool(
                rf.expand_dim(source, dim=one),
                mode=mode,
                pool_size=pool_size,
                padding=padding,
                strides=strides,
                dilation_rate=dilation_rate,
                in_spatial_dims=in_spatial_dims,
                out_spatial_dims=out_spatial_dims,
            )
            return rf.squeeze(out, axis=one), out_spatial_dims
        in_dim = source.feature_dim if source.feature_dim in others else others[-1]
        dims = list(source.dims)
        for old, new in zip(in_spatial_dims, out_spatial_dims):
            dims = replaced(dims, old, new)
        out = layer(
            "pool",
            {
                "from": source,
                "mode": mode,
                "pool_size": list(pool_size),
                "padding": padding,
                "strides": strides,
                "in_spatial_dims": list(in_spatial_dims),
                "out_spatial_dims": list(out_spatial_dims),
                "in_dim": in_dim,
                **({"dilation_rate": dilation_rate} if dilation_rate != 1 else {}),
            },
            dims=dims,
            dtype=source.dtype,
            feature_dim=source.feature_dim,
        )
        return out, out_spatial_dims

    @staticmethod
    def stft(
        x: Tensor,
        *,
        in_spatial_dim: Dim,
        frame_step: int,
        frame_length: int,
        fft_length: int,
        window_use_frame_length: bool = True,
        align_window_left: bool = True,
        window_enforce_even: bool = True,
        out_spatial_dim: Dim,
        out_dim: Dim,
    ) -> Tensor:
        if not (window_use_frame_length and align_window_left and window_enforce_even):
            raise NotImplementedError(
                "nn.stft: RETURNN's layer knows only the default window options"
            )
        dims = [*replaced(x.dims, in_spatial_dim, out_spatial_dim), out_dim]
        return layer(
            "stft",
            {
                "from": x,
                "in_spatial_dims": [in_spatial_dim],
                "out_spatial_dims": [out_spatial_dim],
                "out_dim": out_dim,
                "frame_shift": frame_step,
                "frame_size": frame_length,
                "fft_size": fft_length,
            },
            dims=dims,
            dtype="complex64",
            feature_dim=out_dim,
        )

    @staticmethod
    def lstm(source: Tensor, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return _formulas.lstm(source, **kwargs)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


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


def _type(dtype: str, sparse_dim: Dim | None) -> dict[str, Any]:
    return {"dtype": dtype, **({"sparse_dim": sparse_dim} if sparse_dim is not None else {})}


def _same_dtype(backend: Any, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    dtype = next((x.dtype for x in (a, b) if isinstance(x, Tensor)), None)

    def convert(x: Any) -> Tensor:
        return rf.convert_to_tensor(x, dtype=dtype, _backend=backend)

    return (
        a if isinstance(a, Tensor) else convert(a),
        b if isinstance(b, Tensor) else convert(b),
    )


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
    value = _python_number(value, dtype) if _is_number(value) else value
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


def _combine_with_number(a: Any, kind: str, b: Any) -> Tensor:
    tensor = a if isinstance(a, Tensor) else b
    operands = [x if isinstance(x, Tensor) else _python_number(x, tensor.dtype) for x in (a, b)]
    return expression(
        kind,
        *operands,
        dims=tensor.dims,
        dtype=tensor.dtype,
        sparse_dim=tensor.sparse_dim,
        feature_dim=tensor.feature_dim,
    )


def _softmax(tensor: Tensor, *, axis: Dim, use_mask: bool, **options: Any) -> Tensor:
    if axis not in tensor.dims:
        raise ValueError(f"softmax: {axis} is not among the dims {list(tensor.dims)}")
    extra = {} if use_mask else {"use_time_mask": False}
    hint = "log_softmax" if options else "softmax"
    return _like(tensor, "softmax_over_spatial", {"axis": axis, **options, **extra}, hint=hint)
