"""
Layers that stand for more than one RF operation: attention, dropout, normalisation, CTC, LSTM.

RF composes these from primitives. While a model is traced, the functions in :data:`REPLACED` take their place, so RF's
own modules lower as compactly as ours.
"""

from __future__ import annotations

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


# --- dropout, normalisation


def dropout(
    original: Callable,
    source: Tensor,
    drop_prob: Any,
    *,
    axis: Any = None,
    on_forward: bool = False,
) -> Tensor:
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
    else:  # the layer's own default shares the mask over batch and time
        options["dropout_noise_shape"] = {"*": None}
    if on_forward:
        options["dropout_on_forward"] = True
    return layer(
        "dropout",
        {"from": source, **options},
        dims=source.dims,
        dtype=source.dtype,
        feature_dim=source.feature_dim,
    )


def layer_norm(original: Callable, self: rf.LayerNorm, x: Tensor) -> Tensor:
    """``nn.LayerNorm`` over one dim with a bias as the layer_norm layer"""
    if not is_traced(x) or not isinstance(self.in_dim, Dim) or self.bias is None:
        return original(self, x)
    if self.in_dim not in x.dims:
        raise ValueError(f"{self}: {self.in_dim} is not among the dims {list(x.dims)} of its input")
    params = {"scale": self.scale, "bias": self.bias}
    epsilon = {} if self.eps == 1e-6 else {"epsilon": self.eps}
    return layer(
        "layer_norm",
        {"from": x, "in_dim": self.in_dim, **epsilon, "params": params},
        dims=x.dims,
        dtype=x.dtype,
        feature_dim=x.feature_dim,
    )


def batch_norm(original: Callable, self: rf.BatchNorm, source: Tensor) -> Tensor:
    """``nn.BatchNorm`` with running statistics as the batch_norm layer, masked or not"""
    if not is_traced(source) or self.running_mean is None:
        return original(self, source)
    if self.in_dim not in source.dims:
        raise ValueError(
            f"{self}: {self.in_dim} is not among the dims {list(source.dims)} of its input"
        )
    masked = any(dim.need_masking() for dim in without(source.dims, self.in_dim))
    if masked and self.use_mask is not None:
        masked = self.use_mask
    return _returnn.backend_of(source).batch_norm(
        source,
        in_dim=self.in_dim,
        running_mean=self.running_mean,
        running_variance=self.running_variance,
        gamma=self.gamma,
        beta=self.beta,
        epsilon=self.eps,
        momentum=self.momentum,
        affine=self.affine,
        use_mask=masked,
    )


def copy_masked(
    original: Callable, self: Tensor, mask_value: Any, *, dims: Any = None, **kwargs: Any
) -> Tensor:
    """``Tensor.copy_masked`` as one seq_len_mask layer per dim"""
    if not is_traced(self) or not isinstance(mask_value, (int, float)):
        return original(self, mask_value, dims=dims, **kwargs)
    dims = self.dims if dims is None else [d if isinstance(d, Dim) else self.dims[d] for d in dims]
    sizes: dict[Dim, Any] = {d: _returnn.size_of(d) for d in dims if d.need_masking()}
    wanted = {dim: size for dim, size in sizes.items() if set(size.dims) <= set(self.dims)}
    if any(not size.dims for size in wanted.values()):
        return original(self, mask_value, dims=dims, **kwargs)
    out = self
    for dim in wanted:
        out = _masked(out, dim, mask_value)
    return out


def _masked(x: Tensor, dim: Dim, value: float) -> Tensor:
    node = x.raw_tensor
    if node.cls == "seq_len_mask" and node.opts["axis"] == dim and node.opts["mask_value"] == value:
        return x
    return layer(
        "seq_len_mask",
        {
            "from": x,
            "axis": dim,
            "mask_value": float(value) if x.dtype.startswith("float") else value,
        },
        dims=x.dims,
        dtype=x.dtype,
        hint="masked",
        sparse_dim=x.sparse_dim,
        feature_dim=x.feature_dim,
    )


def gating(
    original: Callable,
    x: Tensor,
    *,
    axis: Dim | None = None,
    gate_func: Any = rf.sigmoid,
    act_func: Any = rf.identity,
    out_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """the gated linear unit over the feature dim as the gating layer"""
    axis = axis or x.feature_dim
    if (
        not is_traced(x)
        or gate_func is not rf.sigmoid
        or act_func is not rf.identity
        or axis != x.feature_dim
    ):
        return original(x, axis=axis, gate_func=gate_func, act_func=act_func, out_dim=out_dim)
    out_dim = out_dim or axis.div_left(2)
    dims = [out_dim if dim == axis else dim for dim in x.dims]
    out = layer(
        "gating",
        {"from": x, "activation": "identity", "gate_activation": "sigmoid", "out_dim": out_dim},
        dims=dims,
        dtype=x.dtype,
        feature_dim=out_dim,
    )
    return out, out_dim


# --- attention


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


# --- features


def mel_filterbank(
    original: Callable,
    x: Tensor,
    *,
    in_dim: Dim,
    out_dim: Dim,
    sampling_rate: float,
    fft_length: int | None = None,
    f_min: float | None = None,
    f_max: float | None = None,
) -> Tensor:
    """``nn.audio.mel_filterbank``: the filters are computed where the config is loaded, not written into it"""
    if not is_traced(x):
        return original(
            x,
            in_dim=in_dim,
            out_dim=out_dim,
            sampling_rate=sampling_rate,
            fft_length=fft_length,
            f_min=f_min,
            f_max=f_max,
        )
    dims = [*without(x.dims, in_dim), out_dim]
    options = {
        "sampling_rate": sampling_rate,
        "fft_length": fft_length or 2 * (in_dim.dimension - 1),
        "f_min": f_min or 0,
        "f_max": f_max or sampling_rate / 2,
        "bin_dim": in_dim,
    }
    return config_eval(
        "mel_filterbank", x, dims, hint="mel", feature_dim=out_dim, eval_locals=options
    )


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
        return _native_ctc_loss(
            logits,
            targets,
            logits_normalized,
            input_spatial_dim,
            targets_spatial_dim,
            blank_index,
            max_approx,
            label_loop,
        )
    dims = without(
        union(logits.dims, targets.dims),
        [input_spatial_dim, logits.feature_dim, targets_spatial_dim],
    )
    options = {
        "time_dim": input_spatial_dim,
        "labels_dim": targets_spatial_dim,
        "class_dim": logits.feature_dim,
        "blank": blank_index % logits.feature_dim.dimension,
    }
    return config_eval("ctc_loss", [logits, targets], dims, hint="ctc", eval_locals=options)


def _native_ctc_loss(
    logits: Tensor,
    targets: Tensor,
    normalized: bool,
    time_dim: Dim,
    labels_dim: Dim,
    blank: int,
    max_approx: bool,
    label_loop: bool,
) -> Tensor:
    """RETURNN's own CTC for the variants that TensorFlow lacks; it compiles a native op"""
    with_time = [
        layer(
            "reinterpret_data",
            {"from": x, "set_axes": {"T": dim}},
            dims=x.dims,
            dtype=x.dtype,
            hint="with_time",
            sparse_dim=x.sparse_dim,
            feature_dim=x.feature_dim,
        )
        for x, dim in ((logits, time_dim), (targets, labels_dim))
    ]
    return layer(
        "ctc_loss",
        {
            "logits": with_time[0],
            "targets": with_time[1],
            "logits_normalized": normalized,
            "blank_index": blank,
            "max_approx": max_approx,
            "label_loop": label_loop,
        },
        dims=[batch_dim],
        dtype="float32",
    )


def lstm(source: Tensor, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """RF's LSTM over a dim; see :mod:`._lstm`"""
    from ._lstm import lstm as rec_lstm

    return rec_lstm(source, **kwargs)


REPLACED: dict[tuple[Any, str], Callable] = {
    (rf, "dropout"): dropout,
    (rf, "gating"): gating,
    (Tensor, "copy_masked"): copy_masked,
    (rf.audio, "mel_filterbank"): mel_filterbank,
    (_returnn.mel, "mel_filterbank"): mel_filterbank,
    (rf.LayerNorm, "__call__"): layer_norm,
    (rf.BatchNorm, "__call__"): batch_norm,
    (_returnn.attention, "relative_positional_encoding"): relative_positional_encoding,
}
