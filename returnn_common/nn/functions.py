"""Functions of RF in the forms that people write, and those that RF lacks. Each runs on both backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _control_flow
from ._config_calls import config_eval, is_traced
from ._masked import masked_computation, select_frames, unmask
from ._names import any_feature_dim, resolve_dim
from ._recording import recorded

#: Tensors that a loss function named; ``mark_as_loss`` without a name takes it.
_LOSS_NAMES = ("cross_entropy", "ctc")


@recorded
def dropout(
    source: Tensor,
    dropout: float,
    *,
    axis: Dim | Sequence[Dim] | None = None,
    on_forward: bool = False,
) -> Tensor:
    """
    ``source`` with elements set to zero with probability ``dropout`` while training, and the rest
    scaled by 1/(1-dropout) (https://jmlr.org/papers/v15/srivastava14a.html).

    ``axis`` are the dims over which masks are drawn independently; over all other dims one mask is
    shared. None draws each element independently. ``nn.any_feature_dim`` is the feature dim of
    ``source``: one mask for all frames and sequences. ``on_forward`` applies it outside of
    training, too.
    """
    if not isinstance(source, Tensor):
        raise TypeError(f"nn.dropout: the source is a {type(source).__name__}, expected a tensor")
    if isinstance(dropout, (int, float)) and not 0 <= dropout < 1:
        raise ValueError(f"nn.dropout: dropout is {dropout}, expected a probability in [0, 1)")
    if axis is not None:
        axis = (
            resolve_dim(source, axis)
            if isinstance(axis, Dim)
            else [resolve_dim(source, dim) for dim in axis]
        )
    return rf.dropout(source, dropout, axis=axis, on_forward=on_forward)


@recorded
def cross_entropy(
    estimated: Tensor, target: Tensor, *, axis: Dim | None = None, estimated_type: str = "logits"
) -> Tensor:
    """
    The cross-entropy of ``target`` (labels ``[..]`` or probabilities ``[.., axis]``) under
    ``estimated`` ``[.., axis]``, per frame ``[..]``.

    ``axis`` is the dim of the classes, by default the target's sparse dim. ``estimated_type`` is
    ``logits``, ``log-probs`` or ``probs``. Raises ValueError where ``estimated`` lacks ``axis``.
    """
    axis = axis or target.sparse_dim
    if axis is None:
        raise ValueError(
            f"nn.cross_entropy: the target {target} holds no labels (no sparse dim); give axis="
        )
    if axis not in estimated.dims:
        raise ValueError(
            f"nn.cross_entropy: {axis} is not among the dims {list(estimated.dims)} of the estimate"
        )
    kinds = ("logits", "log-probs", "probs")
    if estimated_type not in kinds:
        raise ValueError(
            f"nn.cross_entropy: unknown estimated_type {estimated_type!r}, expected one of {', '.join(kinds)}"
        )
    loss = rf.cross_entropy(
        estimated=estimated, target=target, axis=axis, estimated_type=estimated_type
    )
    loss.name = "cross_entropy"
    return loss


@recorded
def ctc_loss(
    *,
    logits: Tensor,
    targets: Tensor,
    input_spatial_dim: Dim,
    targets_spatial_dim: Dim,
    blank_index: int,
) -> Tensor:
    """
    The CTC loss per sequence ``[B]`` (https://doi.org/10.1145/1143844.1143891).

    ``logits`` are ``[B, input_spatial_dim, classes]``, normalised or not, ``targets`` labels ``[B,
    targets_spatial_dim]``; an empty target is -sum log p(blank). A target that does not fit into
    the frames has loss 0 and no gradient. ``blank_index`` -1 is the last class.
    """
    _check_ctc(logits, targets, input_spatial_dim, targets_spatial_dim, blank_index)
    loss = rf.ctc_loss(
        logits=logits,
        targets=targets,
        input_spatial_dim=input_spatial_dim,
        targets_spatial_dim=targets_spatial_dim,
        blank_index=blank_index % logits.feature_dim.dimension,
    )
    loss.name = "ctc"
    return loss


def _check_ctc(logits: Tensor, targets: Tensor, time_dim: Dim, labels_dim: Dim, blank: int) -> None:
    for what, tensor, dim in (("logits", logits, time_dim), ("targets", targets, labels_dim)):
        if dim not in tensor.dims:
            raise ValueError(
                f"nn.ctc_loss: {dim} is not among the dims {list(tensor.dims)} of the {what}"
            )
    if logits.feature_dim is None or targets.sparse_dim is None:
        raise ValueError(
            "nn.ctc_loss: the logits need a feature dim (the classes) and the targets a sparse dim (the labels)"
        )
    num_classes = logits.feature_dim.dimension
    if not -num_classes <= blank < num_classes:
        raise ValueError(
            f"nn.ctc_loss: blank_index {blank} is outside the {num_classes} classes of the logits"
        )


@recorded
def ctc_greedy_decode(
    logits: Tensor, *, in_spatial_dim: Dim, blank_index: int, target_dim: Dim | None = None
) -> tuple[Tensor, Dim]:
    """
    The best label of each frame with repeats joined and blanks removed: labels ``[B, out_spatial_dim]`` and that dim.

    ``target_dim`` is the sparse dim of the labels, by default the classes of ``logits`` with the blank.
    """
    classes = logits.feature_dim
    if classes is None or in_spatial_dim not in logits.dims:
        raise ValueError(
            f"nn.ctc_greedy_decode: logits {list(logits.dims)} need a feature dim and the dim {in_spatial_dim}"
        )
    blank = blank_index % classes.dimension
    best = rf.reduce_argmax(logits, axis=classes)
    before = rf.shift_right(best, axis=in_spatial_dim, pad_value=blank)
    keep = rf.logical_and(best != before, best != blank)
    labels, out_spatial_dim = select_frames(best, keep, spatial_dim=in_spatial_dim)
    if target_dim is not None:
        labels = rf.set_sparse_dim(labels, target_dim)
    return labels, out_spatial_dim


@recorded
def check_length(source: Tensor, *, spatial_dim: Dim, max_length: int) -> Tensor:
    """
    ``source`` itself; when it runs, an error where a sequence has more than ``max_length`` frames of ``spatial_dim``.

    The error is ValueError on torch, and an InvalidArgumentError of TensorFlow on layers.
    """
    if is_traced(source):
        out = config_eval(
            "check_length",
            source,
            source.dims,
            hint="checked",
            feature_dim=source.feature_dim,
            eval_locals={"axis": spatial_dim, "max_length": max_length},
        )
        return out
    longest = int(spatial_dim.get_dim_value())
    if longest > max_length:
        raise ValueError(f"{spatial_dim}: a sequence of {longest} is longer than {max_length}")
    return source


@recorded
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    *,
    spatial_dim: Dim,
    xs: Any = None,
    initial: Any = None,
) -> tuple[Any, Any]:
    """
    Outputs ``[spatial_dim, ..]`` and the last state of ``y, state = body(x, state)`` over all frames ``x`` of ``xs``.

    ``xs``, ``initial`` and what ``body`` gives are tensors or nested structures of tensors. On layers it is one rec
    layer; over a dim of fixed size the body is written out for every frame.
    """
    traced = is_traced_structure(xs) or is_traced_structure(initial)
    if traced and spatial_dim.is_dynamic():
        return _control_flow.scan(spatial_dim=spatial_dim, xs=xs, initial=initial, body=body)
    return _frame_by_frame(body, spatial_dim=spatial_dim, xs=xs, initial=initial)


def is_traced_structure(value: Any) -> bool:
    """whether any tensor in a nested structure is a layer to be"""
    import tree

    return any(is_traced(item) for item in tree.flatten(value))


def _frame_by_frame(body: Callable, *, spatial_dim: Dim, xs: Any, initial: Any) -> tuple[Any, Any]:
    import tree

    def frame(i: int) -> Any:
        return tree.map_structure(lambda x: rf.gather(x, indices=i, axis=spatial_dim), xs)

    state, frames = initial, []
    for i in range(int(spatial_dim.get_dim_value())):
        y, new_state = body(frame(i), state)
        state = _inside_only(new_state, state, i, spatial_dim=spatial_dim)
        frames.append(y)
    stacked = tree.map_structure(lambda *ys: rf.stack(ys, out_dim=spatial_dim)[0], *frames)
    return stacked, state


def _inside_only(new_state: Any, state: Any, i: int, *, spatial_dim: Dim) -> Any:
    """the new state for sequences that have a frame ``i``, else the old one"""
    import tree

    if not spatial_dim.is_dynamic():
        return new_state
    size = spatial_dim.get_size_tensor()
    inside = rf.convert_to_tensor(i, dtype=size.dtype) < size
    return tree.map_structure(lambda new, old: rf.where(inside, new, old), new_state, state)


def combine(original: Callable, a: Any, kind: str, b: Any, **kwargs: Any) -> Tensor:
    """``rf.combine``, which gives b for 0 - b (seen in RETURNN 1.20261022)"""
    if isinstance(a, (int, float)) and a == 0 and kind in ("-", "sub") and isinstance(b, Tensor):
        return rf.neg(b)
    return original(a, kind, b, **kwargs)


def truth_value(original: Callable, self: Tensor) -> bool:
    """``Tensor.__bool__``, which says what to do instead while a step is traced"""
    if is_traced(self):
        raise TypeError(
            f"{self} has no truth value yet: Python's if, while, and, or, not cannot use it; "
            f"branch with nn.cond, choose with nn.where, combine with nn.logical_and, ..."
        )
    return original(self)


def mark_as_loss(original: Callable, self: Tensor, name: str | None = None, **kwargs: Any) -> None:
    """``Tensor.mark_as_loss`` with an optional name: that of the loss function, else ``loss``, numbered from 1 on"""
    taken = rf.get_run_ctx().losses
    if any(other.loss is self for other in taken.values()):
        raise ValueError(f"the loss {self.name!r} is marked twice")
    base = name or (self.name if self.name in _LOSS_NAMES else "loss")
    unique, i = base, 0
    while name is None and unique in taken:
        i += 1
        unique = f"{base}_{i}"
    if unique in taken:
        raise ValueError(f"a loss named {unique!r} is marked already; give this one another name")
    original(self, unique, **kwargs)


__all__ = [
    "any_feature_dim",
    "check_length",
    "cross_entropy",
    "ctc_greedy_decode",
    "ctc_loss",
    "dropout",
    "masked_computation",
    "scan",
    "select_frames",
    "unmask",
]
