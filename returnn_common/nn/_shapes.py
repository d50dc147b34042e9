"""What shape an operation gives: small functions on dims, and the sizes of dynamic dims as graph nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from returnn.tensor import Dim, Tensor, batch_dim

from ._graph import Graph, layer
from ._returnn import base_of, operation_of, set_size, size_of


def union(*sources: Iterable[Dim]) -> list[Dim]:
    """all dims of all sources, each once, the order of the longest source first"""
    ordered = sorted((list(source) for source in sources), key=len, reverse=True)
    dims: list[Dim] = []
    for source in ordered:
        dims += [dim for dim in source if not _contains(dims, dim)]
    return dims


def _contains(dims: Sequence[Dim], dim: Dim) -> bool:
    return any(dim == other and dim.match_priority == other.match_priority for other in dims)


def without(dims: Iterable[Dim], drop: Dim | Sequence[Dim]) -> list[Dim]:
    """``dims`` without ``drop``"""
    drop = [drop] if isinstance(drop, Dim) else drop
    return [dim for dim in dims if dim not in drop]


def replaced(dims: Iterable[Dim], old: Dim, new: Dim) -> list[Dim]:
    """``dims`` with ``new`` in the place of ``old``"""
    return [new if dim == old else dim for dim in dims]


def lengths_of(name: str, tensor: Tensor) -> Iterator[tuple[int, str, Dim]]:
    """(axis, key in a batch, dim) of each dim that has lengths: the key of those of ``NAME`` is ``NAME:sizeAXIS``"""
    for axis, dim in enumerate(tensor.dims):
        if dim.is_dynamic() and not dim.is_batch_dim():
            yield axis, f"{name}:size{axis}", dim


def one_or_list(axis: Dim | Sequence[Dim]) -> Dim | list[Dim]:
    """a single dim stays one, as in a net dict written by hand"""
    if isinstance(axis, Dim):
        return axis
    return axis[0] if len(axis) == 1 else list(axis)


def dim_sources(dims: Dim | Iterable[Dim]) -> list[Tensor]:
    """tensors which a layer must read so that RETURNN knows the sizes of ``dims``; none for static dims"""
    sources: list[Tensor] = []
    for dim in [dims] if isinstance(dims, Dim) else dims:
        for tensor in _sources_of(dim):
            if not any(tensor.raw_tensor is other.raw_tensor for other in sources):
                sources.append(tensor)
    return sources


def _sources_of(dim: Dim) -> list[Tensor]:
    graph = Graph.current
    if dim.is_batch_dim():
        return graph.dims.get(batch_dim, [])
    if dim.is_static():
        return []
    base = base_of(dim)
    if base in graph.dims:
        return graph.dims[base]
    size, operation = size_of(dim), operation_of(dim)
    if size is not None and size.raw_tensor is not None and not operation:
        return [define_dim(dim)]
    if operation:
        return dim_sources(operation.inputs)
    raise ValueError(f"the size of {dim} is not known: no tensor has this dim yet")


def define_dim(dim: Dim) -> Tensor:
    """a dim made of a length tensor (``Dim(lengths)``): the layer that declares it"""
    graph = Graph.current
    size = size_of(dim)
    assert size is not None
    graph.dims[base_of(dim)] = []  # ends the recursion: the range itself has the dim
    out = layer(
        "range_from_length",
        {"from": size.copy(), "dtype": size.dtype, "out_spatial_dim": dim},
        dims=[dim],
        dtype=size.dtype,
        hint=dim.name or "range",
    )
    graph.dims[base_of(dim)] = [out]
    graph.touched.append(dim)
    return out


def give_size(dim: Dim, source: Tensor) -> None:
    """let ``dim.get_size_tensor()`` and masks be made of graph nodes: the ``length`` layer of ``source``"""
    if dim.is_static():
        return
    graph = Graph.current
    dims = [] if dim.is_batch_dim() else [batch_dim]
    size = Tensor(f"{dim.name}_size", dims=dims, dtype="int32")
    with graph.inside(graph.root):
        node = layer(
            "length",
            {"from": source, "axis": dim},
            dims=dims,
            dtype="int32",
            hint=f"{dim.name}_size",
        )
    size.raw_tensor = node.raw_tensor
    set_size(dim, size)
    graph.touched.append(dim)
