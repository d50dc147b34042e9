"""
Computation on some frames of a sequence only: select them, compute, and spread the result over all frames again.

On layers the computation is RETURNN's ``masked_computation``; an LSTM over the labels of an alignment without its
blanks (the predictor of a transducer) is the usual case.
"""

from __future__ import annotations

from collections.abc import Callable

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim

from ._config_calls import config_eval, is_traced
from ._graph import Graph, Node, Region, add_node, layer
from ._recording import recorded


@recorded
def select_frames(source: Tensor, mask: Tensor, *, spatial_dim: Dim) -> tuple[Tensor, Dim]:
    """
    the frames ``[B, out_spatial_dim, ..]`` of ``source`` where ``mask`` ``[B, spatial_dim]`` is
    true, and that dim
    """
    if spatial_dim.is_dynamic():
        valid = rf.compare_bc(rf.range_over_dim(spatial_dim), "<", spatial_dim.get_size_tensor())
        mask = rf.logical_and(mask, valid)
    if not is_traced(source):
        return rf.masked_select(source, mask=mask, dims=[spatial_dim])
    length = rf.reduce_sum(rf.cast(mask, "int32"), axis=spatial_dim)
    out_dim = Dim(length, name=f"{spatial_dim.name}_selected")
    dims = _replaced(source, spatial_dim, out_dim)
    sources = [source, mask, rf.range_over_dim(out_dim)]
    out = config_eval("select_frames", sources, dims, hint="selected", like=source)
    out.feature_dim = source.feature_dim
    return out, out_dim


@recorded
def masked_computation(
    body: Callable[[Tensor, Dim], Tensor], source: Tensor, mask: Tensor, *, spatial_dim: Dim
) -> tuple[Tensor, Dim]:
    """
    ``body(selected, out_spatial_dim)`` on the frames ``selected`` ``[B, out_spatial_dim, ..]`` of
    ``source`` ``[B, spatial_dim, ..]`` where ``mask`` ``[B, spatial_dim]`` is true, and that dim.

    ``body`` gives ``[B, out_spatial_dim, ..]``. :func:`unmask` spreads it over all frames again.
    Inside a loop there are no frames to select: keep the state with ``nn.where(mask, new, old)``.
    """
    _check_mask("masked_computation", source, mask, spatial_dim)
    if not is_traced(source):
        selected, out_dim = select_frames(source, mask, spatial_dim=spatial_dim)
        return _checked_output(body(selected, out_dim), out_dim), out_dim
    out_dim = Dim(None, name=f"{spatial_dim.name}_selected")
    graph = Graph.current
    with graph.inside(Region(graph.region, kind="masked")) as region:
        data = Node("data", {}, dims=_replaced(source, spatial_dim, out_dim), dtype=source.dtype)
        data.name = "data"
        inner = _checked_output(body(add_node(data, **_marks(source)), out_dim), out_dim)
        output = Node("copy", {"from": inner}, dims=inner.dims, dtype=inner.dtype)
        output.name = "output"
        add_node(output)
    out = layer(
        "masked_computation",
        {
            "from": source,
            "mask": _over_time(mask, spatial_dim),
            "in_spatial_dim": spatial_dim,
            "out_spatial_dim": out_dim,
            "unit": {"class": "subnetwork", "from": "data", "subnetwork": region},
        },
        dims=inner.dims,
        dtype=inner.dtype,
        hint="masked",
        **_marks(inner),
    )
    return out, out_dim


@recorded
def unmask(source: Tensor, mask: Tensor, *, in_spatial_dim: Dim, spatial_dim: Dim) -> Tensor:
    """
    ``[B, spatial_dim, ..]``: at each frame what ``source`` ``[B, in_spatial_dim, ..]`` has for the
    last frame so far where ``mask`` ``[B, spatial_dim]`` is true, and zero before the first.
    """
    _check_mask("unmask", source, mask, spatial_dim, source_dim=in_spatial_dim)
    index = rf.cumsum(rf.cast(mask, "int32"), spatial_dim=spatial_dim) - 1
    frames = rf.gather(source, indices=rf.relu(index), axis=in_spatial_dim, clip_to_valid=True)
    return rf.where(index >= 0, frames, rf.zeros((), dtype=source.dtype))


def _check_mask(
    who: str, source: Tensor, mask: Tensor, dim: Dim, *, source_dim: Dim | None = None
) -> None:
    for what, tensor, wanted in (("source", source, source_dim or dim), ("mask", mask, dim)):
        if wanted not in tensor.dims:
            raise ValueError(f"nn.{who}: the {what} {list(tensor.dims)} has no dim {wanted}")
    if mask.dtype != "bool":
        raise ValueError(f"nn.{who}: the mask is {mask.dtype}, expected bool")


def _checked_output(out: Tensor, dim: Dim) -> Tensor:
    if not isinstance(out, Tensor) or dim not in out.dims:
        raise ValueError(
            f"nn.masked_computation: the body gives {out}, expected a tensor with the dim {dim}"
        )
    return out


def _over_time(mask: Tensor, dim: Dim) -> Tensor:
    """the mask, its axis marked as time, which is how the layer finds it"""
    options = {"from": mask, "set_axes": {"T": dim}}
    return layer("reinterpret_data", options, dims=mask.dims, dtype=mask.dtype, hint="mask")


def _replaced(tensor: Tensor, dim: Dim, by: Dim) -> list[Dim]:
    """dims with the batch dim first, then `by`, as the layer gives them"""
    return [batch_dim, by, *(other for other in tensor.dims if other not in (batch_dim, dim))]


def _marks(tensor: Tensor) -> dict[str, Dim | None]:
    return {"sparse_dim": tensor.sparse_dim, "feature_dim": tensor.feature_dim}
