"""
Initial values of all parameters, drawn with numpy: the same on both backends, on every machine.

Each parameter has random numbers of its own, from the seed and its name, so that a new parameter
does not change the others.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy
import returnn.frontend as rf

from ..nn import _returnn
from ..nn._backend import LayersBackend
from ..nn._graph import Node
from ..nn._initial import initial_option

_RANDOM = ("distribution", "bound", "minval", "maxval", "mean", "stddev")


def initial_values(model: rf.Module, *, seed: int) -> dict[str, numpy.ndarray]:
    """``{path: value}`` as ``Parameter.initial`` says, zeros where nothing is said"""
    return {
        path: _initial_value(param, numpy.random.default_rng([seed, zlib.crc32(path.encode())]))
        for path, param in model.named_parameters()
    }


def _initial_value(param: rf.Parameter, rng: numpy.random.Generator) -> numpy.ndarray:
    shape = [dim.dimension for dim in param.dims]
    option = initial_of(param)
    if isinstance(option, dict):
        return _random(option, shape, rng).astype(param.dtype)
    return numpy.array(numpy.broadcast_to(option, shape), dtype=param.dtype)


def initial_of(param: rf.Parameter) -> Any:
    """a number, an array, or the options of ``nn.random`` that say how it is drawn"""
    value = param.initial
    if isinstance(value, rf.init.ParamInit):
        with _returnn.selected(LayersBackend):  # where a random tensor says how it is drawn
            value = value(dims=param.dims, dtype=param.dtype)
    raw = getattr(value, "raw_tensor", None)
    if isinstance(raw, Node) and raw.cls == "random":
        return {key: raw.opts[key] for key in _RANDOM if key in raw.opts}
    return 0 if value is None else initial_option(value)


def _random(opts: dict[str, Any], shape: list[int], rng: numpy.random.Generator) -> numpy.ndarray:
    if opts["distribution"] == "uniform":
        bound = opts.get("bound", 1.0)
        low = opts.get("minval", -bound if "bound" in opts else 0.0)
        return rng.uniform(low, opts.get("maxval", bound), size=shape)
    draw = rng.standard_normal(size=shape)
    if opts["distribution"] == "truncated_normal":
        while (
            outside := numpy.abs(draw) > 2
        ).any():  # as TensorFlow: within two standard deviations
            draw[outside] = rng.standard_normal(size=int(outside.sum()))
    return draw * opts.get("stddev", 1.0) + opts.get("mean", 0.0)


__all__ = ["initial_of", "initial_values"]
