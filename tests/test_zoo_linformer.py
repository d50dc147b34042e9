"""
The linformer's attention against its formula in numpy, and the longest input.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing, zoo
from returnn_common.zoo.encoder.linformer import LinformerAttention

tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch")

LENGTHS, DIM, HEADS, POSITIONS, MAX_LENGTH = (7, 3), 6, 2, 4, 8


def attention_step(*, model, extern_data, **_):
    source = extern_data["data"]
    out = model(source, spatial_dim=source.dims[1])
    out.mark_as_output("out", shape=source.dims)


def case(lengths, size):
    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("model", size)]
    raw = numpy.random.RandomState(3).normal(size=(len(lengths), max(lengths), size))
    batch = {"data": raw.astype("float32"), "data:size1": numpy.array(lengths, "int32")}
    return {"data": nn.Tensor("data", dims, "float32")}, batch


def reference(parameters, x):
    """softmax(q (E k)^T / sqrt(d)) F v for each head, with as many rows of E and F as there are frames"""

    def linear(name):
        return x @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]

    size, heads = DIM // HEADS, []
    keys = parameters["project_keys.weight"][: len(x)].T @ linear("key")
    values = parameters["project_values.weight"][: len(x)].T @ linear("value")
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        scores = numpy.exp(linear("query")[:, part] @ keys[:, part].T / size**0.5)
        heads.append(scores / scores.sum(-1, keepdims=True) @ values[:, part])
    out = numpy.concatenate(heads, axis=-1)
    return out @ parameters["proj.weight"] + parameters["proj.bias"]


def test_attention_equals_its_formula():
    """Each sequence alone in numpy, so the padding takes no part."""
    data, batch = case(LENGTHS, DIM)
    with testing.torch_backend():
        model = LinformerAttention(
            data["data"].dims[2],
            num_heads=nn.SpatialDim("heads", HEADS),
            length_dim=nn.SpatialDim("max_length", MAX_LENGTH),
            positions=nn.SpatialDim("positions", POSITIONS),
        )
    parameters = testing.random_parameters(model)
    options = {"parameters": parameters, "task": "forward"}
    out = testing.run_torch(lambda: model, attention_step, data, batch, **options).values["out"]
    for i, length in enumerate(LENGTHS):
        expected = reference(parameters, batch["data"][i, :length])
        numpy.testing.assert_allclose(out[i, :length], expected, rtol=1e-5, atol=1e-5)


def encoder_step(*, model, extern_data, **_):
    source = extern_data["data"]
    out, spatial_dim = model(source, in_spatial_dim=source.dims[1])
    out.mark_as_output("out", shape=[nn.batch_dim, spatial_dim, model.out_dim])


def test_longer_input_is_an_error():
    """Of 4 * 8 frames 8 are left, which is allowed; of one more 9."""
    within, batch = case((5, 32), 7)
    options = {"out_dim": 8, "num_layers": 1, "num_heads": 2, "max_length": 8}
    model = zoo.get("linformer", in_dim=within["data"].dims[2], **options)
    lowered = nn.lower(model, encoder_step, within, task="forward")
    assert testing.run_layers(lowered, batch).values["out"].shape == (2, 8, 8)
    _, batch = case((5, 33), 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than the max_length 8"):
        testing.run_layers(lowered, batch)
