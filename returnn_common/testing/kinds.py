"""
How an object of each kind of model is called: inputs, a training step that checks what comes out, and a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

#: Frames, samples and labels of the sequences of a batch; the longest is not the first.
FRAMES, SAMPLES, LABELS = (14, 31, 1), (800, 2400, 160), (2, 3, 1)
DEFAULT_FEATURES = 8  # for what takes features of any size


def inputs(kind: str, model: Any) -> dict[str, Any]:
    """:return: the extern data of a model of this kind: tensor templates by name"""
    from .. import nn

    labels_dim = nn.SpatialDim("labels")
    if kind == "lm":
        return {"data": _labels("data", labels_dim, model.target_dim)}
    size = getattr(model, "encoder_dim" if kind == "decoder" else "in_dim", None)
    dims = [nn.batch_dim, nn.SpatialDim("time"), size or nn.FeatureDim("feature", DEFAULT_FEATURES)]
    data = {"data": nn.Tensor("data", dims, "float32")}
    if kind == "segmental" or (kind == "decoder" and takes_labels(model)):
        data["classes"] = _labels("classes", labels_dim, model.target_dim)
    elif kind == "decoder":
        dims = [nn.batch_dim, labels_dim, model.in_dim]
        data["source"] = nn.Tensor("source", dims, "float32")
    return data


def _labels(name: str, spatial_dim: Any, dim: Any) -> Any:
    from .. import nn

    return nn.Tensor(name, [nn.batch_dim, spatial_dim], "int32", sparse_dim=dim)


def takes_labels(model: Any) -> bool:
    """:return: whether a decoder takes labels, rather than features like a block of one"""
    return getattr(model, "target_dim", None) is not None


def batch(extern_data: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    """:return: three sequences with noise in their padding, lengths under ``NAME:size1``"""
    rng = numpy.random.RandomState(4)
    arrays = {}
    for name, tensor in extern_data.items():
        lengths = numpy.array(_lengths(name, tensor), "int32")
        shape = [len(lengths), max(lengths)]
        if tensor.sparse_dim is not None:
            arrays[name] = rng.randint(0, tensor.sparse_dim.dimension, shape).astype("int32")
        else:
            arrays[name] = rng.normal(size=[*shape, tensor.dims[-1].dimension]).astype("float32")
        arrays[f"{name}:size1"] = lengths
    return arrays


def _lengths(name: str, tensor: Any) -> tuple[int, ...]:
    if tensor.sparse_dim is not None or name == "source":
        return LABELS
    return SAMPLES if tensor.dims[-1].dimension == 1 else FRAMES


def alone(arrays: Mapping[str, numpy.ndarray], index: int) -> dict[str, numpy.ndarray]:
    """:return: one sequence of a batch, without padding"""
    one = {}
    for name in [name for name in arrays if ":" not in name]:
        length = arrays[f"{name}:size1"][index]
        one[name] = arrays[name][index : index + 1, :length]
        one[f"{name}:size1"] = arrays[f"{name}:size1"][index : index + 1]
    return one


# --- one training step for each kind


def step_of(kind: str) -> Callable[..., None]:
    """:return: a step function that calls the model as its kind says, checks the dims, and marks losses"""

    def step(*, model: Any, extern_data: Any, **_: Any) -> None:
        for name, loss in losses_of(kind, model, extern_data).items():
            loss.mark_as_loss(name)

    return step


def losses_of(kind: str, model: Any, extern_data: Any) -> dict[str, Any]:
    """:return: the losses of a model with losses, else one number for each frame; the dims are checked"""
    return _LOSSES[kind](model, extern_data)


def _of_encoder(model: Any, data: Any) -> dict[str, Any]:
    source = data["data"]
    out, spatial_dim = model(source, in_spatial_dim=source.dims[1])
    return {"probe": probe(out, [spatial_dim, model.out_dim])}


def _of_augmentation(model: Any, data: Any) -> dict[str, Any]:
    source = data["data"]
    return {"probe": probe(model(source, spatial_dim=source.dims[1]), source.dims[1:])}


def _of_segmental(model: Any, data: Any) -> dict[str, Any]:
    from .. import nn

    source, targets = data["data"], data["classes"]
    encoder, spatial_dim = model.encode(source, in_spatial_dim=source.dims[1])
    _check_dims(encoder, [spatial_dim, encoder.feature_dim])
    losses = model.losses(
        source,
        in_spatial_dim=source.dims[1],
        targets=targets,
        targets_spatial_dim=targets.dims[1],
    )
    assert losses, "losses(...) gives no loss"
    for name, loss in losses.items():
        assert nn.batch_dim in loss.dims and len(loss.dims) <= 2, f"loss {name} has {loss.dims}"
    return losses


def _of_decoder(model: Any, data: Any) -> dict[str, Any]:
    out, spatial_dim = whole_sequence("decoder", model, data)
    return {"probe": probe(out, [spatial_dim, model.out_dim])}


def _of_lm(model: Any, data: Any) -> dict[str, Any]:
    out, spatial_dim = whole_sequence("lm", model, data)
    return {"probe": probe(out, [spatial_dim, model.out_dim])}


_LOSSES = {
    "frontend": _of_encoder,
    "encoder": _of_encoder,
    "augmentation": _of_augmentation,
    "segmental": _of_segmental,
    "decoder": _of_decoder,
    "lm": _of_lm,
}
KINDS = tuple(_LOSSES)


def probe(out: Any, dims: list[Any]) -> Any:
    """:return: for each frame one number that every feature changes; the dims are checked before"""
    from .. import nn

    _check_dims(out, dims)
    weights = nn.cos(nn.range_over_dim(out.feature_dim, dtype="float32"))
    return nn.square(1.0 + nn.reduce_sum(out * weights, axis=out.feature_dim))


def _check_dims(out: Any, dims: list[Any]) -> None:
    from .. import nn

    expected = [nn.batch_dim, *dims]
    assert set(out.dims) == set(expected), f"the output has {list(out.dims)}, expected {expected}"
    assert out.feature_dim == dims[-1], f"the feature dim is {out.feature_dim}, not {dims[-1]}"


# --- decoders and language models, which have a state


def call_options(kind: str, model: Any, data: Any) -> tuple[Any, dict[str, Any]]:
    """:return: what a decoder or LM is called on, and the option `encoder` of a decoder"""
    if kind == "lm":
        return data["data"], {}
    encoder = data["data"]
    options = {"encoder": model.transform_encoder(encoder, spatial_dim=encoder.dims[1])}
    return data["classes" if takes_labels(model) else "source"], options


def whole_sequence(kind: str, model: Any, data: Any) -> tuple[Any, Any]:
    """:return: the output for all labels at once, and their spatial dim"""
    from .. import nn

    source, options = call_options(kind, model, data)
    state = model.default_initial_state(batch_dims=[nn.batch_dim], **options)
    out, _ = model(source, spatial_dim=source.dims[1], state=state, **options)
    return out, source.dims[1]


def step_by_step(kind: str, model: Any, data: Any) -> list[Any]:
    """:return: the outputs for one label after the other, as a search calls it"""
    from .. import nn

    source, options = call_options(kind, model, data)
    state = model.default_initial_state(batch_dims=[nn.batch_dim], **options)
    outs = []
    for i in range(max(LABELS)):
        frame = nn.gather(source, indices=i, axis=source.dims[1])
        out, state = model(frame, spatial_dim=nn.single_step_dim, state=state, **options)
        outs.append(out)
    return outs
