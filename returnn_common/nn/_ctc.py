"""The CTC loss, by the op that the device has."""

from __future__ import annotations

from returnn.tensor import Dim, Tensor, batch_dim

from ._config_calls import config_eval
from ._graph import layer
from ._shapes import union, without


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
