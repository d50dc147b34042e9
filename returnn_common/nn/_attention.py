"""Self-attention as dot products and softmax, with relative positions: as few layers as RETURNN allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._config_calls import config_eval
from ._graph import Graph, Node, layer
from ._shapes import dim_sources, union, without


def relative_positional_encoding(
    original: Callable,
    *,
    query_spatial_dim: Dim,
    key_value_spatial_dim: Dim,
    feat_dim: Dim,
    query_offset: int = 0,
    **options: Any,
) -> tuple[Tensor, Dim]:
    """
    Sinusoids of the distances 1-T .. T-1 (Transformer-XL, https://arxiv.org/abs/1901.02860), ``[2*T-1, feat_dim]``,
    once per length and feature dim.
    """
    same = (
        query_spatial_dim == key_value_spatial_dim
        and query_spatial_dim.is_dynamic()
        and not query_offset
    )
    if not isinstance(rf.zeros((), dtype="int32").raw_tensor, Node) or not same:
        return original(
            query_spatial_dim=query_spatial_dim,
            key_value_spatial_dim=key_value_spatial_dim,
            feat_dim=feat_dim,
            query_offset=query_offset,
            **options,
        )
    graph = Graph.current
    key = ("relative_positional_encoding", query_spatial_dim, feat_dim)
    if key not in graph.cache:
        with graph.inside(graph.root):
            graph.cache[key] = _sinusoids_of_distances(query_spatial_dim, feat_dim)
    return graph.cache[key]


def _sinusoids_of_distances(time_dim: Dim, feat_dim: Dim) -> tuple[Tensor, Dim]:
    distance_dim = time_dim + time_dim - 1
    position = layer(
        "range_in_axis",
        {"from": dim_sources(time_dim), "axis": distance_dim, "dtype": "float32"},
        dims=[distance_dim],
        dtype="float32",
        hint="distance",
    )
    dims = [distance_dim, feat_dim]
    emb = config_eval(
        "distance_encoding", position, dims, hint="distance_encoding", feature_dim=feat_dim
    )
    return emb, distance_dim


def rel_pos_self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    pos_bias_u: Tensor | None,
    pos_bias_v: Tensor | None,
    att_dropout: float = 0.0,
    att_dropout_broadcast: bool,
    v_feat_dim: Dim,
    qk_feat_dim: Dim,
    kv_spatial_dim: Dim,
    query_spatial_dim: Dim,
    pos_emb_spatial_dim: Dim,
) -> Tensor:
    """self-attention with relative positions (https://arxiv.org/abs/1901.02860, section 3.3): four layers"""
    biases = [bias for bias in (pos_bias_u, pos_bias_v) if bias is not None]
    if len(biases) == 1:
        raise NotImplementedError(
            "relative attention with one of the two position biases: give both or none"
        )
    outer = without(query.dims, [query_spatial_dim, qk_feat_dim])
    dims = [*outer, query_spatial_dim, kv_spatial_dim]
    positions, split = _before_split(pos_emb, pos_emb_spatial_dim)
    sources = [query, key, positions, *biases]
    scores = config_eval("rel_pos_scores", sources, dims, hint="scores", eval_locals=split)
    return _attend(
        scores,
        value,
        scale=qk_feat_dim.dimension**-0.5,
        dropout=att_dropout,
        dropout_axis=kv_spatial_dim if att_dropout_broadcast else None,
        dims=(query_spatial_dim, kv_spatial_dim, v_feat_dim),
    )


def _before_split(pos_emb: Tensor, distance_dim: Dim) -> tuple[Tensor, dict[str, Any]]:
    """the encoding before its split into heads, which the scores do themselves in fewer ops"""
    node = pos_emb.raw_tensor
    source = node.opts["from"] if node.cls == "split_dims" else None
    if source is None or list(source.dims) != [distance_dim, node.opts["axis"]]:
        return pos_emb, {}
    return source, {"split": list(node.opts["dims"])}


def dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_mask: Tensor | None = None,
    att_dropout: float = 0.0,
    att_dropout_broadcast: bool = False,
    v_feat_dim: Dim,
    qk_feat_dim: Dim,
    kv_spatial_dim: Dim,
    query_spatial_dim: Dim,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """
    scaled dot-product attention (https://arxiv.org/abs/1706.03762, section 3.2.1); causal: no
    position after its own
    """
    if kv_spatial_dim == query_spatial_dim:
        kv_dim = Dim(None, name=f"{kv_spatial_dim.name}_kv")
        key, value = (
            rf.replace_dim(x, in_dim=kv_spatial_dim, out_dim=kv_dim)[0] for x in (key, value)
        )
        kv_spatial_dim = kv_dim
    scores = rf.matmul(query, key, reduce=qk_feat_dim)
    if is_causal:
        past = rf.compare_bc(
            rf.range_over_dim(kv_spatial_dim), "<=", rf.range_over_dim(query_spatial_dim)
        )
        scores = rf.where(past, scores, float("-inf"))
    if attention_mask is not None and attention_mask.dtype == "bool":
        scores = rf.where(attention_mask, scores, float("-inf"))
    scale = qk_feat_dim.dimension**-0.5 if scale is None else scale
    if attention_mask is not None and attention_mask.dtype != "bool":
        scores, scale = scores * scale + attention_mask, 1.0
    return _attend(
        scores,
        value,
        scale=scale,
        dropout=att_dropout,
        dropout_axis=kv_spatial_dim if att_dropout_broadcast else None,
        dims=(query_spatial_dim, kv_spatial_dim, v_feat_dim),
    )


def _attend(
    scores: Tensor,
    value: Tensor,
    *,
    scale: float,
    dropout: float,
    dropout_axis: Dim | None,
    dims: tuple[Dim, Dim, Dim],
) -> Tensor:
    """
    softmax(scale * scores) over the key dim, times the values; batch and time first, so heads can
    be merged in place
    """
    query_dim, kv_dim, v_feat_dim = dims
    weights = layer(
        "softmax_over_spatial",
        {"from": scores, "axis": kv_dim, **({"energy_factor": scale} if scale != 1 else {})},
        dims=scores.dims,
        dtype=scores.dtype,
        hint="weights",
    )
    weights = rf.dropout(weights, dropout, axis=dropout_axis)
    rest = union(without(weights.dims, kv_dim), without(value.dims, kv_dim))
    first = [dim for dim in rest if dim.is_batch_dim() or dim == query_dim]
    out = [
        *sorted(first, key=lambda dim: not dim.is_batch_dim()),
        *without(rest, [*first, v_feat_dim]),
        v_feat_dim,
    ]
    return config_eval("einsum", [weights, value], out, hint="att", feature_dim=v_feat_dim)
