"""
Layers that stand for more than one RF operation: attention, dropout, normalisation, CTC, LSTM.

RF composes these from primitives. While a model is traced, the functions in :data:`REPLACED` take their place, so RF's
own modules lower as compactly as ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim

from . import _returnn
from ._graph import Graph, Node, layer
from ._shapes import dim_sources, union, without


class ConfigFunction:
    """A function that the config text defines, by its name in :mod:`._config_functions`."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


def is_traced(tensor: Any) -> bool:
    """whether the tensor is a layer to be; the replacements leave all others to RF"""
    return isinstance(tensor, Tensor) and isinstance(tensor.raw_tensor, Node)


# --- dropout, normalisation


def dropout(original: Callable, source: Tensor, drop_prob: Any, *, axis: Any = None, on_forward: bool = False) -> Tensor:
    """``nn.dropout`` as the dropout layer"""
    if not is_traced(source) or not isinstance(drop_prob, (int, float)):
        return original(source, drop_prob, axis=axis, on_forward=on_forward)
    if not 0 <= drop_prob < 1:
        raise ValueError(f"dropout probability {drop_prob}, expected a number in [0, 1)")
    if drop_prob == 0:
        return source
    options: dict[str, Any] = {"dropout": drop_prob}
    if axis is not None and axis is not False:
        axes = [axis] if isinstance(axis, Dim) else list(axis)
        missing = [dim for dim in axes if dim not in source.dims]
        if missing:
            raise ValueError(f"dropout axis {missing[0]} is not among the dims {list(source.dims)}")
        options["dropout_axis"] = axes[0] if len(axes) == 1 else axes
    if on_forward:
        options["dropout_on_forward"] = True
    return layer("dropout", dims=source.dims, dtype=source.dtype, feature_dim=source.feature_dim,
                 **{"from": source, **options})  # fmt: skip


def layer_norm(original: Callable, self: rf.LayerNorm, x: Tensor) -> Tensor:
    """``nn.LayerNorm`` over one dim with a bias as the layer_norm layer"""
    if not is_traced(x) or not isinstance(self.in_dim, Dim) or self.bias is None:
        return original(self, x)
    if self.in_dim not in x.dims:
        raise ValueError(f"{self}: {self.in_dim} is not among the dims {list(x.dims)} of its input")
    params = {"scale": self.scale, "bias": self.bias}
    epsilon = {} if self.eps == 1e-6 else {"epsilon": self.eps}
    return layer("layer_norm", dims=x.dims, dtype=x.dtype, feature_dim=x.feature_dim,
                 **{"from": x, "in_dim": self.in_dim, **epsilon, "params": params})  # fmt: skip


def batch_norm(original: Callable, self: rf.BatchNorm, source: Tensor) -> Tensor:
    """``nn.BatchNorm`` with running statistics as the batch_norm layer, masked or not"""
    if not is_traced(source) or self.running_mean is None:
        return original(self, source)
    if self.in_dim not in source.dims:
        raise ValueError(f"{self}: {self.in_dim} is not among the dims {list(source.dims)} of its input")
    masked = any(dim.need_masking() for dim in without(source.dims, self.in_dim))
    if masked and self.use_mask is not None:
        masked = self.use_mask
    return source._raw_backend.batch_norm(
        source, in_dim=self.in_dim, running_mean=self.running_mean, running_variance=self.running_variance,
        gamma=self.gamma, beta=self.beta, epsilon=self.eps, momentum=self.momentum, affine=self.affine,
        use_mask=masked)  # fmt: skip


def gating(
    original: Callable, x: Tensor, *, axis: Dim | None = None, gate_func: Any = rf.sigmoid, act_func: Any = rf.identity,
    out_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:  # fmt: skip
    """the gated linear unit over the feature dim as the gating layer"""
    axis = axis or x.feature_dim
    if not is_traced(x) or gate_func is not rf.sigmoid or act_func is not rf.identity or axis != x.feature_dim:
        return original(x, axis=axis, gate_func=gate_func, act_func=act_func, out_dim=out_dim)
    out_dim = out_dim or axis.div_left(2)
    dims = [out_dim if dim == axis else dim for dim in x.dims]
    out = layer("gating", dims=dims, dtype=x.dtype, feature_dim=out_dim,
                **{"from": x, "activation": "identity", "gate_activation": "sigmoid", "out_dim": out_dim})  # fmt: skip
    return out, out_dim


# --- attention


def relative_positional_encoding(
    original: Callable, *, query_spatial_dim: Dim, key_value_spatial_dim: Dim, feat_dim: Dim, query_offset: int = 0,
    **options: Any,
) -> tuple[Tensor, Dim]:  # fmt: skip
    """
    Sinusoids of the distances 1-T .. T-1 (Transformer-XL, https://arxiv.org/abs/1901.02860), ``[2*T-1, feat_dim]``,
    once per length and feature dim.
    """
    same = query_spatial_dim == key_value_spatial_dim and query_spatial_dim.is_dynamic() and not query_offset
    if not isinstance(rf.zeros((), dtype="int32").raw_tensor, Node) or not same:
        return original(query_spatial_dim=query_spatial_dim, key_value_spatial_dim=key_value_spatial_dim,
                        feat_dim=feat_dim, query_offset=query_offset, **options)  # fmt: skip
    graph = Graph.current
    key = ("relative_positional_encoding", query_spatial_dim, feat_dim)
    if key not in graph.cache:
        with graph.inside(graph.root):
            graph.cache[key] = _sinusoids_of_distances(query_spatial_dim, feat_dim)
    return graph.cache[key]


def _sinusoids_of_distances(time_dim: Dim, feat_dim: Dim) -> tuple[Tensor, Dim]:
    distance_dim = time_dim + time_dim - 1
    position = layer("range_in_axis", {"from": dim_sources(time_dim), "axis": distance_dim, "dtype": "float32"},
                     dims=[distance_dim], dtype="float32", hint="distance")  # fmt: skip
    rate = -2.0 * math.log(1e4) / feat_dim.dimension
    half = feat_dim.dimension // 2
    code = (
        f"(lambda angle: tf.sin(tf.concat([angle, angle + {math.pi / 2!r}], axis=-1)))("
        f"(source(0, auto_convert=False) - (tf.shape(source(0, auto_convert=False))[0] - 1) / 2)[:, None]"
        f" * tf.exp(tf.range({half}, dtype=tf.float32) * {rate!r}))"
    ).replace("(tf.shape(source(0, auto_convert=False))[0] - 1) / 2",
              "tf.cast((tf.shape(source(0, auto_convert=False))[0] - 1) // 2, tf.float32)")  # fmt: skip
    emb = layer("eval", dims=[distance_dim, feat_dim], dtype="float32", hint="rel_pos_enc", feature_dim=feat_dim,
                **{"from": position, "eval": code,
                   "out_type": {"dims": [distance_dim, feat_dim], "dtype": "float32", "feature_dim": feat_dim}})  # fmt: skip
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
    scores = _rel_pos_scores(query, key, pos_emb, pos_bias_u, pos_bias_v, qk_feat_dim=qk_feat_dim,
                             dims=(query_spatial_dim, kv_spatial_dim, pos_emb_spatial_dim))  # fmt: skip
    weights = layer("softmax_over_spatial", dims=scores.dims, dtype=scores.dtype, hint="weights",
                    **{"from": scores, "axis": kv_spatial_dim, "energy_factor": qk_feat_dim.dimension**-0.5})  # fmt: skip
    axis = kv_spatial_dim if att_dropout_broadcast else None
    weights = rf.dropout(weights, att_dropout, axis=axis)
    att = rf.matmul(weights, value, reduce=kv_spatial_dim, use_mask=False)
    if v_feat_dim in att.dims:
        att.feature_dim = v_feat_dim
    return att


def _rel_pos_scores(
    query: Tensor, key: Tensor, pos_emb: Tensor, bias_u: Tensor | None, bias_v: Tensor | None, *, qk_feat_dim: Dim,
    dims: Sequence[Dim],
) -> Tensor:  # fmt: skip
    """
    (q + u) k over all pairs, plus (q + v) p over all distances moved so that row i starts at distance -i:
    pad one column, read the same memory with rows one longer, and every row is shifted by one more.
    """
    query_dim, kv_dim, distance_dim = dims
    outer = without(query.dims, [query_dim, qk_feat_dim])
    per_head = without(pos_emb.dims, [distance_dim, qk_feat_dim])
    letters = {dim: chr(ord("a") + i) for i, dim in enumerate(outer)}
    rows, heads = "".join(letters.values()), "".join(letters[dim] for dim in per_head)
    sources = {"q": (query, [*outer, query_dim, qk_feat_dim]), "k": (key, [*outer, kv_dim, qk_feat_dim]),
               "p": (pos_emb, [*per_head, distance_dim, qk_feat_dim])}  # fmt: skip
    for name, bias in (("u", bias_u), ("v", bias_v)):
        if bias is not None:
            sources[name] = (bias, _bias_order(bias, outer, query_dim, qk_feat_dim))
    options = {"rows": rows, "heads": heads, "order": {name: order for name, (_, order) in sources.items()}}
    out = [*outer, query_dim, kv_dim]
    return layer("eval", dims=out, dtype="float32", hint="scores",
                 **{"from": [tensor for tensor, _ in sources.values()], "eval": ConfigFunction("rel_pos_scores"),
                    "eval_locals": options, "out_type": {"dims": out, "dtype": "float32", "feature_dim": None}})  # fmt: skip


def _bias_order(bias: Tensor, outer: Sequence[Dim], query_dim: Dim, feat_dim: Dim) -> list[Any]:
    return [dim for dim in [*outer, query_dim, feat_dim] if dim in bias.dims]


# --- CTC, cross-entropy


def ctc_loss(
    *,
    logits: Tensor,
    logits_normalized: bool = False,
    targets: Tensor,
    input_spatial_dim: Dim,
    targets_spatial_dim: Dim,
    blank_index: int,
    max_approx: bool = False,
    use_native_op: bool | None = None,
    label_loop: bool = True,
) -> Tensor:
    """the CTC loss per sequence ``[B]``; log-probabilities are logits, too, so ``logits_normalized`` changes nothing"""
    if max_approx or not label_loop:
        return _native_ctc_loss(logits, targets, logits_normalized, input_spatial_dim, targets_spatial_dim,
                                blank_index, max_approx, label_loop)  # fmt: skip
    dims = without(union(logits.dims, targets.dims), [input_spatial_dim, logits.feature_dim, targets_spatial_dim])
    options = {"time_dim": input_spatial_dim, "labels_dim": targets_spatial_dim, "class_dim": logits.feature_dim,
               "blank": blank_index % logits.feature_dim.dimension}  # fmt: skip
    return layer("eval", dims=dims, dtype="float32", hint="ctc",
                 **{"from": [logits, targets], "eval": ConfigFunction("ctc_loss"), "eval_locals": options,
                    "out_type": {"dims": dims, "dtype": "float32", "feature_dim": None, "sparse_dim": None}})  # fmt: skip


def _native_ctc_loss(
    logits: Tensor, targets: Tensor, normalized: bool, time_dim: Dim, labels_dim: Dim, blank: int, max_approx: bool,
    label_loop: bool,
) -> Tensor:  # fmt: skip
    """RETURNN's own CTC for the variants that TensorFlow lacks; it compiles a native op"""
    with_time = [
        layer("reinterpret_data", dims=x.dims, dtype=x.dtype, hint="with_time", sparse_dim=x.sparse_dim,
              feature_dim=x.feature_dim, **{"from": x, "set_axes": {"T": dim}})
        for x, dim in ((logits, time_dim), (targets, labels_dim))
    ]  # fmt: skip
    return layer("ctc_loss", dims=[batch_dim], dtype="float32", logits=with_time[0], targets=with_time[1],
                 logits_normalized=normalized, blank_index=blank, max_approx=max_approx, label_loop=label_loop)  # fmt: skip


def lstm(source: Tensor, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """RF's LSTM over a dim; see :mod:`._lstm`"""
    from ._lstm import lstm as rec_lstm

    return rec_lstm(source, **kwargs)


REPLACED: dict[tuple[Any, str], Callable] = {
    (rf, "dropout"): dropout,
    (rf, "gating"): gating,
    (rf.LayerNorm, "__call__"): layer_norm,
    (rf.BatchNorm, "__call__"): batch_norm,
    (_returnn.attention, "relative_positional_encoding"): relative_positional_encoding,
}
