"""Operations that are one layer with parameters: convolution, normalisation, recurrence; and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _lstm
from ._graph import layer
from ._ops_common import given, like
from ._returnn import Backend
from ._shapes import replaced, without


class Layers(Backend):
    """Operations that are one layer with parameters: convolution, normalisation, recurrence; and pooling."""

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
        return like(
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
        options = given({"strides": strides, "dilation_rate": dilation_rate, "groups": groups})
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
                "params": given({"W": filter, "bias": bias}),
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
        options = given({"strides": strides, "output_padding": output_padding, "bias": bias})
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
            out, out_spatial_dims = Layers.pool(
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
        return _lstm.lstm(source, **kwargs)
