"""Operations that change dims, and those that pick elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn.tensor import Dim, Tensor

from . import _control_flow
from ._graph import Graph, layer, sub_output
from ._ops_common import given, like
from ._returnn import Backend, set_size, size_of
from ._shapes import dim_sources, one_or_list, replaced, union, without


class Shapes(Backend):
    """Operations that change dims, and those that pick elements."""

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
            {"from": source, "axis": axis, "dims": list(dims), **given(opts)},
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
            dims = replaced(source.dims, axis, dim)
            feature = dim if source.feature_dim == axis else source.feature_dim
            parts.append(
                sub_output(out, str(i), dims=dims, dtype=source.dtype, feature_dim=feature)
            )
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
        size = size_of(in_dim)
        if out_dim.dimension is None and size_of(out_dim) is None and size is not None:
            set_size(out_dim, size.copy())
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
        common = [dim for dim in index_dims if dim in source.dims and dim != axis]
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
        limits = given({"slice_start": start, "slice_end": end, "slice_step": step})
        return layer(
            "slice", {"from": source, "axis": axis, "out_dim": out_dim, **limits}, **kwargs
        )

    @staticmethod
    def flip_no_mask(source: Tensor, *, axis: Dim) -> Tensor:
        return like(source, "slice", {"axis": axis, "out_dim": axis, "slice_step": -1}, hint="flip")

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
        size = size_of(dim)
        dtype = dtype or (size.dtype if size is not None else "int32")
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
