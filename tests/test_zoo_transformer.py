"""
Transformer blocks against torch's own with the same parameters, each sequence alone there; the whole models against the
formulas of the paper.
"""

from __future__ import annotations

import math

import numpy
import pytest

from returnn_common import nn, testing, zoo
from returnn_common.zoo.decoder.transformer import make_trafo_dec_block, make_transformer_decoder
from returnn_common.zoo.encoder.transformer import make_trafo_enc_block, make_trafo_encoder
from returnn_common.zoo.segmental.transformer import Transformer, smoothed_cross_entropy

torch = pytest.importorskip("torch")

DIM, HEADS, FF, ENCODER = 12, 3, 7, 10
FRAMES, LABELS = (9, 4), (3, 5)


def noise(lengths, size):
    return numpy.random.RandomState(3).normal(size=(2, max(lengths), size)).astype("float32")


def tensor(name, lengths, dim):
    """:return: a template and the arrays of a batch"""
    template = nn.Tensor(name, [nn.batch_dim, nn.SpatialDim(f"{name}_time"), dim], "float32")
    data = {name: noise(lengths, dim.dimension), f"{name}:size1": numpy.array(lengths, "int32")}
    return template, data


def run(model_of, step, extern_data, data):
    """:return: the output, and the parameters as torch tensors"""
    with testing.torch_backend():
        model = model_of()
    parameters = testing.random_parameters(model)
    options = {"parameters": parameters, "task": "forward"}
    result = testing.run_torch(lambda: model, step, extern_data, data, **options)
    tensors = {path: torch.tensor(value) for path, value in parameters.items()}
    return result.values["out"], tensors


def torch_norm(peer, parameters, path):
    peer.eps = 1e-6  # RETURNN's
    peer.weight.data, peer.bias.data = parameters[f"{path}.scale"], parameters[f"{path}.bias"]


def torch_linear(peer, parameters, path):
    peer.weight.data = parameters[f"{path}.weight"].T
    peer.bias.data = parameters[f"{path}.bias"]


def by_head(value, num_parts):
    """ours has query, key and value side by side for each head, torch the heads side by side for each"""
    *rest, size = value.shape
    parts = value.reshape(*rest, HEADS, num_parts, size // HEADS // num_parts)
    return parts.transpose(-3, -2).reshape(*rest, size)


def torch_self_attention(peer, parameters, path):
    peer.in_proj_weight.data = by_head(parameters[f"{path}.qkv.weight"], 3).T
    peer.in_proj_bias.data = by_head(parameters[f"{path}.qkv.bias"], 3)
    torch_linear(peer.out_proj, parameters, f"{path}.proj")


def torch_cross_attention(peer, parameters, path):
    key, value = by_head(parameters[f"{path}.kv.weight"], 2).T.chunk(2)
    peer.q_proj_weight.data = parameters[f"{path}.q.weight"].T
    peer.k_proj_weight.data, peer.v_proj_weight.data = key, value
    biases = [parameters[f"{path}.q.bias"], by_head(parameters[f"{path}.kv.bias"], 2)]
    peer.in_proj_bias.data = torch.cat(biases)
    torch_linear(peer.out_proj, parameters, f"{path}.proj")


def torch_feed_forward(peer, parameters):
    torch_linear(peer.linear1, parameters, "ff.linear_in")
    torch_linear(peer.linear2, parameters, "ff.linear_out")


def test_encoder_block_equals_torch():
    dim = nn.FeatureDim("model", DIM)
    source, data = tensor("data", FRAMES, dim)

    def step(*, model, extern_data, **_):
        x = extern_data["data"]
        model(x, in_spatial_dim=x.dims[1])[0].mark_as_output("out", shape=x.dims)

    make = lambda: make_trafo_enc_block(dim, num_heads=HEADS, ff_dim=FF)  # noqa: E731
    out, parameters = run(make, step, {"data": source}, data)
    options = {"norm_first": True, "batch_first": True}
    peer = torch.nn.TransformerEncoderLayer(DIM, HEADS, FF, **options).eval()
    torch_self_attention(peer.self_attn, parameters, "self_att")
    torch_feed_forward(peer, parameters)
    torch_norm(peer.norm1, parameters, "self_att_norm")
    torch_norm(peer.norm2, parameters, "ff.norm")
    for i, length in enumerate(FRAMES):
        with torch.no_grad():
            expected = peer(torch.tensor(data["data"][i : i + 1, :length]))[0]
        numpy.testing.assert_allclose(out[i, :length], expected, rtol=1e-5, atol=1e-5)


def test_decoder_block_equals_torch():
    """With an encoder of another size, which torch's attention takes as `kdim` and `vdim`."""
    dim, encoder_dim = nn.FeatureDim("model", DIM), nn.FeatureDim("encoder", ENCODER)
    encoder, encoder_data = tensor("data", FRAMES, encoder_dim)
    source, data = tensor("source", LABELS, dim)
    data.update(encoder_data)

    def step(*, model, extern_data, **_):
        x, encoder = extern_data["source"], extern_data["data"]
        out, _ = model(
            x,
            spatial_dim=x.dims[1],
            state=model.default_initial_state(batch_dims=[nn.batch_dim]),
            encoder=model.transform_encoder(encoder, spatial_dim=encoder.dims[1]),
        )
        out.mark_as_output("out", shape=x.dims)

    make = lambda: make_trafo_dec_block(encoder_dim, dim, num_heads=HEADS, ff_dim=FF)  # noqa: E731
    out, parameters = run(make, step, {"data": encoder, "source": source}, data)
    peer = torch_decoder_block(parameters)
    for i, (frames, labels) in enumerate(zip(FRAMES, LABELS)):
        with torch.no_grad():
            expected = peer(
                torch.tensor(data["source"][i : i + 1, :labels]),
                torch.tensor(data["data"][i : i + 1, :frames]),
                tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(labels),
            )[0]
        numpy.testing.assert_allclose(out[i, :labels], expected, rtol=1e-5, atol=1e-5)


def torch_decoder_block(parameters):
    options = {"norm_first": True, "batch_first": True}
    peer = torch.nn.TransformerDecoderLayer(DIM, HEADS, FF, **options).eval()
    sizes = {"kdim": ENCODER, "vdim": ENCODER, "batch_first": True}
    peer.multihead_attn = torch.nn.MultiheadAttention(DIM, HEADS, **sizes).eval()
    torch_self_attention(peer.self_attn, parameters, "self_att")
    torch_cross_attention(peer.multihead_attn, parameters, "cross_att")
    torch_feed_forward(peer, parameters)
    for norm, path in (
        ("norm1", "self_att_norm"),
        ("norm2", "cross_att_norm"),
        ("norm3", "ff.norm"),
    ):
        torch_norm(getattr(peer, norm), parameters, path)
    return peer


def paper_positions(length, size):
    """sines, then cosines, of position / 10000^(i / (size / 2 - 1)), as in tensor2tensor and RETURNN"""
    half = size // 2
    out = numpy.zeros([length, size])
    for position in range(length):
        for i in range(half):
            angle = position * 10_000.0 ** (-i / (half - 1))
            out[position, i], out[position, half + i] = math.sin(angle), math.cos(angle)
    return out


def test_decoder_embeds_labels_and_positions():
    """Without its blocks: logits of the norm of sqrt(dim) * embedding + position."""
    target_dim, encoder_dim = nn.FeatureDim("labels", 6), nn.FeatureDim("encoder", ENCODER)
    encoder, data = tensor("data", FRAMES, encoder_dim)
    labels_time = nn.SpatialDim("labels_time")
    dims = [nn.batch_dim, labels_time]
    labels = nn.Tensor("classes", dims, "int32", sparse_dim=target_dim)
    data["classes"] = numpy.array([[1, 5, 0, 0, 0], [2, 2, 4, 0, 3]], "int32")
    data["classes:size1"] = numpy.array(LABELS, "int32")

    def step(*, model, extern_data, **_):
        del model.layers[0]
        state = nn.State(position=nn.zeros((), dtype="int32"))
        out, _ = model(extern_data["classes"], spatial_dim=labels_time, state=state, encoder={})
        out.mark_as_output("out", shape=[*dims, target_dim])

    options = {"num_layers": 1, "model_dim": 8, "num_heads": 2}
    make = lambda: make_transformer_decoder(encoder_dim, target_dim, **options)  # noqa: E731
    out, parameters = run(make, step, {"data": encoder, "classes": labels}, data)
    embedding = parameters["embedding.weight"].numpy()[data["classes"]]
    x = torch.tensor(8**0.5 * embedding + paper_positions(5, 8), dtype=torch.float32)
    norm, output = torch.nn.LayerNorm(8), torch.nn.Linear(8, 6)
    torch_norm(norm, parameters, "norm")
    torch_linear(output, parameters, "output")
    with torch.no_grad():
        expected = output(norm(x)).numpy()
    for i, length in enumerate(LABELS):
        numpy.testing.assert_allclose(out[i, :length], expected[i, :length], rtol=1e-5, atol=1e-5)


def test_losses_are_those_of_the_labels_and_the_end():
    """Label smoothing and padding against torch, on the logits for begin, y1, y2, ..."""
    target_dim = nn.FeatureDim("labels", 5)
    source, data = tensor("data", FRAMES, nn.FeatureDim("features", 7))
    labels_time = nn.SpatialDim("labels_time")
    dims = [nn.batch_dim, labels_time]
    targets = nn.Tensor("classes", dims, "int32", sparse_dim=target_dim)
    rows = [[1, 4, 0], [2, 2, 4, 0, 3]]
    data["classes"] = numpy.array([[1, 4, 0, 0, 0], [2, 2, 4, 0, 3]], "int32")
    data["classes:size1"] = numpy.array(LABELS, "int32")

    def step(*, model, extern_data, **_):
        source, targets = extern_data["data"], extern_data["classes"]
        seen = []
        model.decoder = spy(model.decoder, seen)
        losses = model.losses(
            source,
            in_spatial_dim=source.dims[1],
            targets=targets,
            targets_spatial_dim=targets.dims[1],
        )
        (labels, logits), (loss,) = seen[0], losses.values()
        loss.mark_as_output("out", shape=loss.dims)
        got.update(labels=labels.raw_tensor.numpy(), logits=logits.raw_tensor)

    got = {}
    make = lambda: zoo.get(  # noqa: E731
        "transformer", in_dim=source.dims[2], target_dim=target_dim, model_dim=8, num_heads=2
    )
    out, _ = run(make, step, {"data": source, "classes": targets}, data)
    for i, row in enumerate(rows):
        n = len(row) + 1
        assert got["labels"][i, :n].tolist() == [5, *row]  # 5 is begin and end
        expected = torch.nn.functional.cross_entropy(
            got["logits"][i, :n],
            torch.tensor([*row, 5]),
            label_smoothing=0.1,
            reduction="none",
        )
        numpy.testing.assert_allclose(out[i, :n], expected, rtol=1e-5, atol=1e-5)


def spy(decoder, seen):
    """:return: the decoder, which keeps labels and logits of each call in a list"""

    class Spy:
        def __getattr__(self, name):
            return getattr(decoder, name)

        def __call__(self, label, **options):
            logits, state = decoder(label, **options)
            seen.append((label, logits))
            return logits, state

    return Spy()


def test_no_smoothing_is_plain_cross_entropy():
    with testing.torch_backend():
        dim, frame_dim = nn.FeatureDim("labels", 5), nn.SpatialDim("frames", 3)
        raw = torch.tensor(noise((3,), 5)[0])
        logits = nn.Tensor("x", [frame_dim, dim], "float32", raw_tensor=raw, feature_dim=dim)
        classes = torch.tensor([4, 0, 2], dtype=torch.int32)
        target = nn.Tensor("y", [frame_dim], "int32", sparse_dim=dim, raw_tensor=classes)
        got = smoothed_cross_entropy(logits, target, smoothing=0.0).raw_tensor
    expected = torch.nn.functional.cross_entropy(raw, classes.long(), reduction="none")
    numpy.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_trafo_enc_block(10, num_heads=4), "10 is not a multiple of num_heads 4"),
        (lambda: make_trafo_encoder(out_dim=9), "expected an even size from 4 on, got 9"),
        (lambda: make_transformer_decoder(num_layers=0), "expected at least one layer, got 0"),
        (lambda: zoo.get("trafo_lm", num_layers=0), "expected at least one layer, got 0"),
        (
            lambda: Transformer(
                make_trafo_encoder(7, 8, num_layers=1, num_heads=2),
                make_transformer_decoder(8, 5, num_layers=1, model_dim=8, num_heads=2),
                nn.FeatureDim("labels", 5),
            ),
            "the decoder has 5 labels, expected 6",
        ),
    ],
)
def test_bad_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
