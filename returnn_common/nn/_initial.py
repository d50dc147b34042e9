"""Initial values of parameters as the strings and numbers that RETURNN's layers take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._graph import Node

GLOROT = "glorot_uniform"


def initial_option(value: Any) -> Any:
    """a number, an array, or the string of an initialiser, from anything ``Parameter.initial`` may be"""
    if isinstance(value, Tensor):
        return _from_tensor(value)
    if isinstance(value, numpy.ndarray):
        return value.item() if value.ndim == 0 else value
    if isinstance(value, numpy.number):
        return value.item()
    if isinstance(value, (bool, int, float)):
        return value
    raise TypeError(
        f"Parameter.initial is {value!r} of type {type(value).__name__}; "
        f"expected a number, a numpy array, or an initialiser such as nn.init.Glorot()"
    )


def _from_tensor(value: Tensor) -> Any:
    raw = value.raw_tensor
    if not isinstance(raw, Node):
        return numpy.asarray(raw.detach().cpu() if hasattr(raw, "detach") else raw)
    if raw.cls == "constant":
        return initial_option(raw.opts["value"])
    if raw.cls == "random":
        return _random_string(raw.opts)
    raise TypeError(
        f"Parameter.initial is computed by the layer {raw.cls!r}; expected a number, a numpy array, "
        f"or an initialiser such as nn.init.Glorot()"
    )


def _random_string(opts: dict[str, Any]) -> str:
    if opts["distribution"] == "uniform":
        low, high = _uniform_limits(opts)
        return f"random_uniform_initializer({low!r}, {high!r})"
    name = {"normal": "random_normal", "truncated_normal": "truncated_normal"}[opts["distribution"]]
    return (
        f"{name}_initializer({float(opts.get('mean', 0.0))!r}, {float(opts.get('stddev', 1.0))!r})"
    )


def _uniform_limits(opts: dict[str, Any]) -> tuple[float, float]:
    if "bound" in opts:
        return -float(opts["bound"]), float(opts["bound"])
    return float(opts.get("minval", 0.0)), float(opts.get("maxval", 1.0))


def named(option: Any, dims: Sequence[Dim]) -> Any:
    """``glorot_uniform`` where ``option`` is that for a weight of these dims, else ``option`` itself"""
    if isinstance(option, str) and option == _random_string(
        {"distribution": "uniform", **_glorot_limits(dims)}
    ):
        return GLOROT
    return option


def _glorot_limits(dims: Sequence[Dim]) -> dict[str, float]:
    # Glorot & Bengio 2010, eq. 16; RF's Linear weight is [in, out], its filters are [out, in, k...]
    sizes = [dim.dimension for dim in dims]
    field = math.prod(sizes[2:])
    mean_fan = (
        (sizes[0] + sizes[-1]) * field / 2 if len(sizes) < 3 else (sizes[0] + sizes[1]) * field / 2
    )
    limit = math.sqrt(3.0 * (1.0 / max(1.0, mean_fan)))
    return {"minval": -limit, "maxval": limit}


def option_of(param: rf.Parameter) -> Any:
    """what ``param.initial`` is as an option; None where nothing was set (RETURNN then takes zeros)"""
    value = param.initial
    if isinstance(value, rf.init.ParamInit):
        value = value(dims=param.dims, dtype=param.dtype)
    return None if value is None else initial_option(value)
