"""The mel filterbank in front of a model."""

from __future__ import annotations

from collections.abc import Callable

from returnn.tensor import Dim, Tensor

from ._config_calls import config_eval, is_traced
from ._shapes import without


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
