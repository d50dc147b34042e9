"""Whether our conformer computes the same on layers and on torch, with the same parameters."""

from __future__ import annotations

import functools
from typing import Any

import _models
import numpy

LENGTHS = (_models.FRAMES, 350)
BARS = {
    "outputs": 1e-4,
    "gradients": 1e-4,
    "gradients, joined": 1e-4,
    "padding, layers": 1e-5,
    "padding, torch": 1e-5,
}
FLOOR = 1e-6  # of gradients where all of them together have the norm 1: a bias before batch norm has none


def differences(*, num_layers: int = 6) -> dict[str, float]:
    """:return: by the names in `BARS`, the largest differences, relative to the largest entry of each array"""
    get_model = functools.partial(_models.our_conformer, num_layers=num_layers, dropout=0.0)
    options = {"parameters": random_parameters(get_model())}
    data = _models.batch(LENGTHS)
    short = {"data": data["data"][1:, : LENGTHS[1]], "data:size1": data["data:size1"][1:]}
    together, alone = (run(get_model, batch, "forward", options) for batch in (data, short))
    outputs = {backend: rows(result) for backend, result in together.items()}
    gradients = {
        backend: result.gradients
        for backend, result in run(get_model, data, "train", {**options, "train": True, "gradients": True}).items()
    }  # fmt: skip
    ours, theirs = gradients["layers"], gradients["torch"]
    joined = [numpy.concatenate([g[path].ravel() for path in ours]) for g in (ours, theirs)]
    norm = float(numpy.linalg.norm(joined[1]))
    return {
        "outputs": max(map(relative, outputs["layers"], outputs["torch"])),
        "gradients": max(
            relative(ours[path], theirs[path], least=FLOOR * norm / BARS["gradients"])
            for path in ours
        ),
        "gradients, joined": relative(*joined),
        **{f"padding, {key}": relative(outputs[key][1], rows(alone[key])[0]) for key in alone},
    }


def run(get_model: Any, data: dict[str, Any], task: str, options: dict[str, Any]) -> dict[str, Any]:
    """:return: the results on both backends; in training, batch norm has the statistics of the batch"""
    from returnn_common import nn, testing

    step = _models.step if task == "train" else _models.output_step
    lowered = nn.lower(get_model(), step, _models.extern_data(), task=task)
    return {
        "layers": testing.run_layers(lowered, data, **options),
        "torch": testing.run_torch(get_model, step, _models.extern_data(), data, task=task, **options),
    }  # fmt: skip


def random_parameters(model: Any) -> dict[str, numpy.ndarray]:
    """:return: values that keep signals at their size, as at the begin of a training, and differ from all defaults"""
    rng = numpy.random.RandomState(1)
    values = {}
    for path, parameter in model.named_parameters():
        shape = [dim.dimension for dim in parameter.dims]
        is_scale = path.endswith(("scale", "gamma", "variance"))
        is_matrix = len(shape) > 1 and not path.endswith(("pos_bias_u", "pos_bias_v"))
        fan_in = numpy.prod(shape) / _out_size(path, shape) if is_matrix else 100
        values[path] = (float(is_scale) + rng.randn(*shape) / numpy.sqrt(fan_in)).astype("float32")
    return values


def _out_size(path: str, shape: list[int]) -> int:
    """:return: the size of the axis of what comes out: the first of a convolution's filter, else the last"""
    return shape[0] if path.endswith("filter") else shape[-1]


def rows(result: Any) -> list[numpy.ndarray]:
    """:return: the output of each sequence without its padding"""
    (lengths,) = [size for size in result.lengths["out"] if size is not None]
    return [row[:length] for row, length in zip(result.values["out"], lengths, strict=True)]


def relative(ours: numpy.ndarray, theirs: numpy.ndarray, *, least: float = 1e-30) -> float:
    """:return: the largest difference over the largest entry, or over `least` where that is more"""
    difference = numpy.abs(ours.astype("float64") - theirs).max()
    return float(difference) / max(float(numpy.abs(theirs).max()), least)
