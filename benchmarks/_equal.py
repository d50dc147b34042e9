"""Whether our conformer computes the same on layers and on torch, with the same parameters."""

from __future__ import annotations

import functools
from typing import Any

import _models
import numpy

LENGTHS = (_models.FRAMES, 350)
BARS = {"outputs": 1e-4, "gradients": 1e-4, "padding, layers": 1e-5, "padding, torch": 1e-5}
FLOOR = 1e-6  # of gradients, absolute: a bias before batch norm has none


def differences(*, num_layers: int = 6) -> dict[str, float]:
    """:return: the largest differences, relative to the largest entry of each array"""
    from returnn_common import nn, testing

    get_model = functools.partial(_models.our_conformer, num_layers=num_layers, dropout=0.0)
    data = _models.batch(LENGTHS)
    model = get_model()
    options = {"parameters": testing.random_parameters(model, scale=0.05)}
    runners = {
        "layers": functools.partial(
            testing.run_layers,
            nn.lower(model, _models.output_step, _models.extern_data(), task="forward"),
            **options,
        ),
        "torch": functools.partial(
            testing.run_torch,
            get_model,
            _models.output_step,
            _models.extern_data(),
            task="forward",
            **options,
        ),
    }
    outputs = {backend: rows(run(data)) for backend, run in runners.items()}
    found = {"outputs": max(map(relative, outputs["layers"], outputs["torch"]))}
    found["gradients"] = gradient_difference(get_model, data, options)
    short = {"data": data["data"][1:, : LENGTHS[1]], "data:size1": data["data:size1"][1:]}
    for backend, run in runners.items():
        found[f"padding, {backend}"] = relative(outputs[backend][1], rows(run(short))[0])
    return found


def gradient_difference(get_model: Any, data: dict[str, Any], options: dict[str, Any]) -> float:
    """:return: the largest difference of the gradients in training, batch norm with the statistics of the batch"""
    from returnn_common import nn, testing

    options = {**options, "train": True, "gradients": True}
    lowered = nn.lower(get_model(), _models.step, _models.extern_data())
    layers = testing.run_layers(lowered, data, **options).gradients
    torch = testing.run_torch(
        get_model, _models.step, _models.extern_data(), data, **options
    ).gradients
    return max(relative(layers[path], torch[path], floor=FLOOR) for path in layers)


def rows(result: Any) -> list[numpy.ndarray]:
    """:return: the output of each sequence without its padding"""
    (lengths,) = [size for size in result.lengths["out"] if size is not None]
    return [row[:length] for row, length in zip(result.values["out"], lengths, strict=True)]


def relative(ours: numpy.ndarray, theirs: numpy.ndarray, *, floor: float = 0.0) -> float:
    difference = numpy.abs(ours.astype("float64") - theirs).max()
    return max(0.0, float(difference) - floor) / (float(numpy.abs(theirs).max()) or 1.0)
