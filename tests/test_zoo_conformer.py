"""
The parts of the conformer against plain torch and numpy with the same parameters, and against i6_models.
"""

from __future__ import annotations

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from returnn_common import nn, testing
from returnn_common.zoo._feed_forward import FeedForward
from returnn_common.zoo.encoder import conformer
from returnn_common.zoo.frontend.conv_subsampling import TIME_STRIDES, make_conv_subsampling

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def torch_backend():
    with testing.torch_backend():
        rf.set_random_seed(1)
        rf.init_forward_step_run_ctx(step=0, epoch=1)
        with torch.no_grad():
            yield


def batch(arrays, feature_dim):
    """:return: the sequences `[T, F]` as one padded tensor, noise in the padding, and its dim"""
    lengths = torch.tensor([len(array) for array in arrays], dtype=torch.int32)
    batch_dim = Dim(len(arrays), name="batch")
    time_dim = Dim(Tensor("time", [batch_dim], "int32", raw_tensor=lengths), name="time")
    raw = numpy.random.RandomState(5).randn(len(arrays), max(lengths), feature_dim.dimension) * 9
    for row, array in zip(raw, arrays, strict=True):
        row[: len(array)] = array
    raw = torch.tensor(raw, dtype=torch.float32)
    dims = [batch_dim, time_dim, feature_dim]
    return Tensor("source", dims, "float32", raw_tensor=raw, feature_dim=feature_dim), time_dim


def sequences(out, time_dim):
    """:return: the outputs without their padding, in the layout `[T, F]`"""
    batch_dim = next(d for d in out.dims if d not in (time_dim, out.feature_dim))
    raw = out.copy_transpose([batch_dim, time_dim, out.feature_dim]).raw_tensor
    return [row[:n].numpy() for row, n in zip(raw, time_dim.dyn_size, strict=True)]


def noise(*lengths, size):
    rng = numpy.random.RandomState(3)
    return [rng.randn(length, size).astype("float32") for length in lengths]


def randomize(module):
    """Biases, scales and running statistics start at 0 and 1, which would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    for name, param in module.named_parameters():
        raw = param.raw_tensor
        values = torch.rand(raw.shape, generator=generator)
        param.raw_tensor.data[:] = values + 0.5 if "variance" in name else values - 0.5


def raw(param):
    return param.raw_tensor.detach()


def linear(module, x):
    return x @ raw(module.weight) + raw(module.bias)


def layer_norm(module, x):
    return torch.nn.functional.layer_norm(
        x, x.shape[-1:], raw(module.scale), raw(module.bias), 1e-6
    )


def feed_forward(module, x):
    x = linear(module.linear_in, layer_norm(module.norm, x))
    return linear(module.linear_out, torch.nn.functional.silu(x))


def convolution(module, x):
    x = torch.nn.functional.glu(linear(module.linear_in, layer_norm(module.norm, x)))
    conv = module.depthwise_conv
    x = torch.nn.functional.conv1d(
        x.T[None], raw(conv.filter), raw(conv.bias), padding="same", groups=x.shape[1]
    )[0].T
    x = (x - raw(module.conv_norm.running_mean)) / torch.sqrt(
        raw(module.conv_norm.running_variance) + 1e-3
    )
    x = x * raw(module.conv_norm.gamma) + raw(module.conv_norm.beta)
    return linear(module.linear_out, torch.nn.functional.silu(x))


def self_attention(module, x):
    """Transformer-XL, equation in section 3.3: one pair of positions i, j at a time"""
    att, x = module.att, layer_norm(module.norm, x)
    num_heads, size = raw(att.pos_bias_u).shape
    q, k, v = linear(att.qkv, x).reshape(len(x), num_heads, 3, size).unbind(2)
    frequencies = 10_000.0 ** (-2 * torch.arange(x.shape[1] // 2) / x.shape[1])
    scores = torch.zeros(num_heads, len(x), len(x))
    for i in range(len(x)):
        for j in range(len(x)):
            angle = (j - i) * frequencies
            position = torch.cat([angle.sin(), angle.cos()]) @ raw(att.linear_pos.weight)
            position = position.reshape(num_heads, size)
            content = (q[i] + raw(att.pos_bias_u)) * k[j]
            scores[:, i, j] = (content + (q[i] + raw(att.pos_bias_v)) * position).sum(-1)
    weights = (scores / size**0.5).softmax(-1)
    return linear(att.proj, torch.einsum("hij,jhd->ihd", weights, v).flatten(1))


def block(module, x):
    x = x + feed_forward(module.ff1, x) / 2
    x = x + self_attention(module.self_att, x)
    x = x + convolution(module.conv, x)
    x = x + feed_forward(module.ff2, x) / 2
    return layer_norm(module.norm, x)


def tiny_block(**options):
    module = conformer.make_conformer_block(12, num_heads=3, ff_dim=7, kernel_size=5, **options)
    randomize(module)
    return module


@pytest.mark.parametrize(
    ("part", "reference"),
    [
        (lambda m, x, time: m.ff1(x), lambda m, x: feed_forward(m.ff1, x)),
        (
            lambda m, x, time: m.self_att(x, spatial_dim=time),
            lambda m, x: self_attention(m.self_att, x),
        ),
        (lambda m, x, time: m.conv(x, spatial_dim=time), lambda m, x: convolution(m.conv, x)),
        (lambda m, x, time: m(x, in_spatial_dim=time)[0], block),
    ],
    ids=["feed-forward", "self-attention", "convolution", "block"],
)
def test_block_against_plain_torch(part, reference):
    """In a padded batch: the reference sees each sequence alone."""
    module = tiny_block()
    arrays = noise(9, 1, 4, size=12)
    x, time_dim = batch(arrays, module.in_dim)
    for got, array in zip(sequences(part(module, x, time_dim), time_dim), arrays, strict=True):
        numpy.testing.assert_allclose(
            got, reference(module, torch.tensor(array)), rtol=1e-5, atol=1e-5
        )


def test_block_against_i6_models():
    peer = i6_block(module := tiny_block())
    arrays = noise(9, 4, size=12)
    x, time_dim = batch(arrays, module.in_dim)
    out, _ = module(x, in_spatial_dim=time_dim)
    for got, array in zip(sequences(out, time_dim), arrays, strict=True):
        expected = peer(torch.tensor(array)[None], torch.ones(1, len(array)).bool())[0]
        numpy.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def i6_block(module):
    """:return: a block of i6_models with the parameters of ours"""
    assemblies = pytest.importorskip("i6_models.assemblies.conformer.conformer_rel_pos_v1")
    parts = pytest.importorskip("i6_models.parts.conformer")
    no_dropout = {"dropout": 0.0, "dropout_broadcast_axes": None}
    silu = torch.nn.functional.silu
    config = assemblies.ConformerRelPosBlockV1Config(
        ff_cfg=parts.ConformerPositionwiseFeedForwardV2Config(
            input_dim=12, hidden_dim=7, activation=silu, **no_dropout
        ),
        mhsa_cfg=parts.ConformerMHSARelPosV1Config(
            input_dim=12,
            num_att_heads=3,
            with_bias=True,
            att_weights_dropout=0.0,
            learnable_pos_emb=False,
            rel_pos_clip=None,
            with_linear_pos=True,
            with_pos_bias=True,
            separate_pos_emb_per_head=True,
            pos_emb_dropout=0.0,
            **no_dropout,
        ),
        conv_cfg=parts.ConformerConvolutionV2Config(
            channels=12,
            kernel_size=5,
            activation=silu,
            norm=torch.nn.BatchNorm1d(12, eps=1e-3),
            **no_dropout,
        ),
    )
    peer = assemblies.ConformerRelPosBlockV1(config).eval()
    for part in peer.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 1e-6
    ff1, att, conv, ff2 = peer.module_list
    copy_norm(peer.final_layer_norm, module.norm)
    for target, source in ((ff1, module.ff1), (ff2, module.ff2)):
        copy_norm(target.layer_norm, source.norm)
        copy_linear(target.linear_ff, source.linear_in)
        copy_linear(target.linear_out, source.linear_out)
    copy_convolution(conv, module.conv)
    copy_attention(att, module.self_att)
    return peer


def copy_norm(target, source):
    target.weight.data, target.bias.data = raw(source.scale), raw(source.bias)


def copy_linear(target, source):
    target.weight.data, target.bias.data = raw(source.weight).T, raw(source.bias)


def copy_convolution(target, source):
    copy_norm(target.layer_norm, source.norm)
    copy_linear(target.pointwise_conv1, source.linear_in)
    copy_linear(target.pointwise_conv2, source.linear_out)
    conv, norm = source.depthwise_conv, source.conv_norm
    target.depthwise_conv.weight.data, target.depthwise_conv.bias.data = (
        raw(conv.filter),
        raw(conv.bias),
    )
    target.norm.weight.data, target.norm.bias.data = raw(norm.gamma), raw(norm.beta)
    target.norm.running_mean = raw(norm.running_mean)
    target.norm.running_var = raw(norm.running_variance)


def copy_attention(target, source):
    """Ours has q, k, v side by side for each head, sines before cosines, and j - i for i - j."""
    copy_norm(target.layernorm, source.norm)
    copy_linear(target.out_proj, source.att.proj)
    weight, bias = raw(source.att.qkv.weight), raw(source.att.qkv.bias)
    target.qkv_proj.weight.data = weight.reshape(12, 3, 3, 4).transpose(1, 2).reshape(12, 36).T
    target.qkv_proj.bias.data = bias.reshape(3, 3, 4).transpose(0, 1).flatten()
    sines, cosines = raw(source.att.linear_pos.weight).chunk(2)
    target.linear_pos.weight.data = torch.stack([-sines, cosines], dim=1).flatten(0, 1).T
    target.pos_bias_u.data = raw(source.att.pos_bias_u)
    target.pos_bias_v.data = raw(source.att.pos_bias_v)


@pytest.mark.parametrize("factor", TIME_STRIDES)
def test_conv_subsampling_against_plain_torch(factor):
    module = make_conv_subsampling(7, 5, factor=factor, channels=(2, 3, 4))
    randomize(module)
    arrays = noise(30, 19, 1, 6, size=7)
    x, time_dim = batch(arrays, module.in_dim)
    out, out_dim = module(x, in_spatial_dim=time_dim)
    assert out.feature_dim == module.out_dim
    for got, array in zip(sequences(out, out_dim), arrays, strict=True):
        expected = torch.tensor(array)[None, None]
        for layer in module.layers:
            conv = layer.conv
            expected = torch.nn.functional.conv2d(
                expected, raw(conv.filter), raw(conv.bias), stride=conv.strides, padding=1
            ).relu()
        expected = linear(module.linear, expected[0].permute(1, 2, 0).flatten(1))
        assert len(expected) == -(-len(array) // factor)
        numpy.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("conv_norm", [nn.BatchNorm, nn.LayerNorm])
def test_short_sequence_alone_equals_itself_in_a_batch(conv_norm):
    dim = nn.FeatureDim("model", 8)
    layers = [
        conformer.make_conformer_block(dim, num_heads=2, kernel_size=5, conv_norm=conv_norm)
        for _ in range(2)
    ]
    encoder = conformer.Conformer(make_conv_subsampling(7, dim, factor=6), layers, dropout=0.1)
    randomize(encoder)
    arrays = noise(30, 19, 1, size=7)
    x, time_dim = batch(arrays, encoder.in_dim)
    out, out_dim = encoder(x, in_spatial_dim=time_dim)
    for got, array in zip(sequences(out, out_dim), arrays, strict=True):
        x, time_dim = batch([array], encoder.in_dim)
        alone, alone_dim = encoder(x, in_spatial_dim=time_dim)
        (expected,) = sequences(alone, alone_dim)
        numpy.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_batch_norm_ignores_the_padding():
    """In training its statistics are those of the real frames, whatever lies behind them."""
    rf.init_train_step_run_ctx(train_flag=True, step=0, epoch=1)
    module = tiny_block(dropout=0.0)
    arrays = noise(9, 4, size=12)
    x, time_dim = batch(arrays, module.in_dim)
    outs = []
    for padding in (0.0, 100.0):
        x.raw_tensor[1, 4:] = padding
        outs.append(numpy.concatenate(sequences(module(x, in_spatial_dim=time_dim)[0], time_dim)))
    numpy.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-5)


def test_dropout_is_drawn_for_each_element():
    """Also in the training of a whole block: no two frames of a constant input stay equal."""
    module = FeedForward(dim := nn.FeatureDim("x", 40), dim, dropout=0.5)
    randomize(module)
    x, _ = batch([numpy.ones([6, 40])] * 3, dim)
    rf.init_train_step_run_ctx(train_flag=True, step=0, epoch=1)
    dropped = module(x).raw_tensor.reshape(18, 40) == 0
    assert 0.4 < dropped.float().mean() < 0.6
    assert len(torch.unique(dropped, dim=0)) == 18


def test_sizes_of_the_paper():
    """Table 1 of the paper has 10.3 million parameters for (S), with a decoder of one LSTM."""
    encoder = conformer.make_conformer(80, 144, num_layers=16, num_heads=4)
    params = {n: p for n, p in encoder.named_parameters() if "running" not in n}
    block_size = 2 * (2 * 144 * 576 + 576 + 144) + 5 * 2 * 144  # feed-forwards, layer norms
    block_size += 5 * 144 * 144 + 4 * 144 + 2 * 144  # attention
    block_size += 3 * 144 * 144 + 3 * 144 + 31 * 144 + 144 + 2 * 144  # convolution
    got = sum(raw(p).numel() for n, p in params.items() if n.startswith("layers."))
    assert got == 16 * block_size
    assert 8e6 < sum(raw(p).numel() for p in params.values()) < 10.3e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 10, "num_heads": 4}, "10 is not a multiple of num_heads 4"),
        ({"dim": 0}, "positive size, got 0"),
    ],
)
def test_bad_block_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        conformer.make_conformer_block(**options)


def test_bad_size_type():
    with pytest.raises(TypeError, match="expected an int or a Dim, got '512'"):
        conformer.make_conformer_block("512")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 5}, "factor must be one of"),
        ({"channels": (1, 2)}, "three convolutions"),
    ],
)
def test_bad_subsampling(options, message):
    with pytest.raises(ValueError, match=message):
        make_conv_subsampling(7, 5, **options)


def test_wrong_input_is_named():
    encoder = conformer.make_conformer(7, 8, num_layers=1, num_heads=2)
    other_dim = nn.FeatureDim("other", 9)
    x, time_dim = batch(noise(3, size=9), other_dim)
    with pytest.raises(ValueError, match=r"has no in_dim .*in_dim.* it has the dims .*other"):
        encoder(x, in_spatial_dim=time_dim)
