"""
Dropout, layer norm, batch norm, masking and gating: one layer each in place of what RF composes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _returnn
from ._config_calls import is_traced
from ._graph import Graph, layer
from ._shapes import without


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
        {"from": _own_mask(source, drop_prob), **options},
        dims=source.dims,
        dtype=source.dtype,
        feature_dim=source.feature_dim,
    )


def _own_mask(source: Tensor, drop_prob: float) -> Tensor:
    """RETURNN shares the mask among all dropouts of one layer at one rate: a second one reads a copy of the layer"""
    seen = Graph.current.cache.setdefault(("dropout", drop_prob), set())
    if id(source.raw_tensor) not in seen:
        seen.add(id(source.raw_tensor))
        return source
    return layer(
        "copy",
        {"from": source},
        dims=source.dims,
        dtype=source.dtype,
        hint="undropped",
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
    for dim, size in sizes.items():
        if size is None:  # RF cannot use it on torch either
            raise ValueError(
                f"the lengths of {dim} are not known; let the operation make its own dim, or make it from another one, "
                f"such as dim // 2"
            )
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
