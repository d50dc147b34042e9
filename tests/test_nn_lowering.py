"""The lowering: README's programs, compactness, equality with torch, and the cases that broke others."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy
import pytest

from returnn_common import nn, testing

FEAT, HIDDEN, CLASSES = 7, 5, 4


@pytest.fixture
def dims():
    class Dims:
        time = nn.SpatialDim("time")
        feat = nn.FeatureDim("feat", FEAT)
        hidden = nn.FeatureDim("hidden", HIDDEN)
        classes = nn.FeatureDim("classes", CLASSES)

    Dims.data = {"data": nn.Tensor("data", [nn.batch_dim, Dims.time, Dims.feat], "float32")}
    Dims.labelled = {
        **Dims.data,
        "classes": nn.Tensor(
            "classes", [nn.batch_dim, Dims.time], "int32", sparse_dim=Dims.classes
        ),
    }
    return Dims


def batch(lengths=(6, 4, 1), *, seed=1, **labels):
    """frames [B, T, FEAT], and for each keyword labels [B, T] below its value"""
    rng = numpy.random.RandomState(seed)
    lengths = numpy.array(lengths, dtype="int32")
    shape = (len(lengths), max(lengths))
    data = {"data": rng.normal(size=(*shape, FEAT)).astype("float32"), "data:size1": lengths}
    for name, size in labels.items():
        data[name] = rng.randint(0, size, shape).astype("int32")
        data[f"{name}:size1"] = lengths
    return data


def squared(tensor, dim):
    return nn.reduce_sum(nn.square(tensor), axis=dim)


class Block(nn.Module):
    def __init__(self, dim, hidden, dropout=0.1):
        super().__init__()
        self.layer_norm = nn.LayerNorm(dim)
        self.linear_hidden = nn.Linear(dim, hidden)
        self.linear_out = nn.Linear(hidden, dim)
        self.dropout = dropout

    def __call__(self, x):
        y = self.linear_out(nn.sigmoid(self.linear_hidden(self.layer_norm(x))))
        return x + nn.dropout(y, dropout=self.dropout, axis=nn.any_feature_dim)


class Repeated(nn.Module):
    """one block applied several times, or several blocks in turn"""

    def __init__(self, blocks, order):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.order = order

    def __call__(self, x):
        for i in self.order:
            x = self.blocks[i](x)
        return x


def output_step(get_out):
    def step(*, model, extern_data, **_):
        out = get_out(model, extern_data)
        out.mark_as_loss("loss")

    return step


# --- compactness and names


def test_block_is_one_layer_per_part(dims):
    model = Block(dims.feat, dims.hidden)
    net = nn.lower(
        model, output_step(lambda m, d: squared(m(d["data"]), dims.feat)), dims.data
    ).network
    assert {name: layer["class"] for name, layer in net.items()} == {
        "layer_norm": "layer_norm",
        "linear_hidden": "linear",
        "linear_out": "linear",
        "dropout": "dropout",
        "square": "eval",  # of x + y
        "sum": "reduce",
        "loss": "reinterpret_data",
    }
    assert net["linear_hidden"]["activation"] == "sigmoid"


def test_shared_block_has_one_set_of_parameters(dims):
    step = output_step(lambda m, d: squared(m(d["data"]), dims.feat))
    separate = nn.lower(
        Repeated([Block(dims.feat, dims.hidden) for _ in range(3)], [0, 1, 2]), step, dims.data
    )
    shared = nn.lower(Repeated([Block(dims.feat, dims.hidden)], [0, 0, 0]), step, dims.data)
    assert len(separate.parameters) == 3 * 6
    assert len(shared.parameters) == 6
    for order, num in (([0, 1, 2], 3), ([0, 0, 0], 1)):
        testing.assert_backends_agree(
            lambda num=num, order=order: Repeated([Block(dims.feat, dims.hidden) for _ in range(num)], order),
            step, dims.data, batch(),
        )  # fmt: skip


def test_parameter_names_follow_the_attributes(dims):
    model = Repeated([Block(dims.feat, dims.hidden)], [0])
    lowered = nn.lower(model, output_step(lambda m, d: squared(m(d["data"]), dims.feat)), dims.data)
    assert lowered.parameters["blocks.0.linear_out.weight"].name == "blocks/0/linear_out/W"
    assert lowered.parameters["blocks.0.layer_norm.scale"].name == "blocks/0/layer_norm/scale"
    assert set(lowered.parameters) == {path for path, _ in model.named_parameters()}


def test_deep_copies_start_different(dims):
    block = Block(dims.feat, dims.hidden)
    model = Repeated([block, copy.deepcopy(block)], [0, 1])
    lowered = nn.lower(model, output_step(lambda m, d: squared(m(d["data"]), dims.feat)), dims.data)
    with testing.layers_session(lowered) as (net, session):
        values = {var.op.name: session.run(var) for var in net.get_params_list()}
    first, second = values["blocks/0/linear_out/W"], values["blocks/1/linear_out/W"]
    assert not numpy.allclose(first, second)
    limit = numpy.sqrt(6 / (FEAT + HIDDEN))  # Glorot & Bengio 2010
    assert numpy.abs(first).max() <= limit and numpy.abs(first).max() > 0.5 * limit


# --- equality with numpy and torch


def test_square_linear_multiplies_along_the_right_axis(dims):
    model = nn.Linear(dims.feat, dims.feat)
    lowered = nn.lower(model, lambda *, model, extern_data, **_: model(extern_data["data"]).mark_as_output(
        "out", shape=[nn.batch_dim, dims.time, dims.feat]), dims.data, task="forward")  # fmt: skip
    data, parameters = batch(), testing.random_parameters(model)
    result = testing.run_layers(lowered, data, parameters=parameters)
    expected = data["data"] @ parameters["weight"] + parameters["bias"]
    numpy.testing.assert_allclose(result.values["out"], expected, rtol=1e-5, atol=1e-6)


def test_weights_used_outside_of_their_module(dims):
    """tied: the embedding's weight, transposed, gives the logits"""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(dims.classes, dims.feat)
            self.bias = nn.Parameter([dims.classes])

        def __call__(self, labels, x):
            y = self.embedding(labels) + x
            return nn.matmul(y, self.embedding.weight, reduce=dims.feat) + self.bias

    def step(*, model, extern_data, **_):
        logits = model(extern_data["classes"], extern_data["data"])
        nn.cross_entropy(logits, extern_data["classes"]).mark_as_loss()

    lowered = nn.lower(Tied(), step, dims.labelled)
    assert lowered.parameters["embedding.weight"].name == "embedding/weight/param"
    testing.assert_backends_agree(Tied, step, dims.labelled, batch(classes=CLASSES))


def test_embedding_is_one_layer(dims):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(dims.classes, dims.feat)

    step = output_step(lambda m, d: squared(m.embedding(d["classes"]) - d["data"], dims.feat))
    net = nn.lower(Model(), step, dims.labelled).network
    assert [layer["class"] for layer in net.values()].count("linear") == 1 and "gather" not in str(
        net
    )
    testing.assert_backends_agree(Model, step, dims.labelled, batch(classes=CLASSES))


def test_weight_noise_leaves_the_parameter_where_it_is(dims):
    """a weight that is changed before use cannot be owned by the linear layer, but keeps its path"""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(dims.feat, dims.hidden)

        def __call__(self, x):
            weight = self.linear.weight * 0.5
            return nn.matmul(x, weight, reduce=dims.feat) + self.linear.bias

    step = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    assert set(nn.lower(Noisy(), step, dims.data).parameters) == {"linear.weight", "linear.bias"}
    testing.assert_backends_agree(Noisy, step, dims.data, batch())


def test_frozen_parameters_are_not_trained(dims):
    model = nn.Linear(dims.feat, dims.hidden)
    model.weight.trainable = False
    step = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    lowered = nn.lower(model, step, dims.data)
    with testing.layers_session(lowered, train=True) as (net, _):
        trained = {var.op.name for var in net.get_trainable_params()}
    assert trained == {lowered.parameters["bias"].name}


@pytest.mark.parametrize(
    "initial, low, high",
    [(0.25, 0.25, 0.25), (nn.init.Normal(0.1), -0.2, 0.2), (nn.init.VarianceScaling(), -1.1, 1.1)],
)
def test_initial_values(dims, initial, low, high):
    model = nn.Linear(dims.feat, dims.hidden)
    model.weight.initial = initial
    lowered = nn.lower(
        model, output_step(lambda m, d: squared(m(d["data"]), dims.hidden)), dims.data
    )
    with testing.layers_session(lowered) as (net, session):
        (weight,) = (
            session.run(var)
            for var in net.get_params_list()
            if var.op.name == lowered.parameters["weight"].name
        )
    assert weight.min() >= low - 1e-6 and weight.max() <= high + 1e-6
    assert low == high or weight.std() > 0.05


def test_initial_arrays(dims):
    """of every parameter that a layer owns, in the layer's own axes"""

    class Owners(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(dims.feat, dims.hidden)
            self.conv = nn.Conv1d(dims.hidden, nn.FeatureDim("conv", 5), 3, padding="same")
            self.norm = nn.LayerNorm(self.conv.out_dim)
            self.batch_norm = nn.BatchNorm(self.conv.out_dim)

        def __call__(self, x):
            x, _ = self.conv(self.linear(x), in_spatial_dim=dims.time)
            return self.batch_norm(self.norm(x))

    model = Owners()
    values = testing.random_parameters(model)
    for path, param in model.named_parameters():
        param.initial = values[path]
    step = output_step(lambda m, d: squared(m(d["data"]), model.conv.out_dim))
    lowered = nn.lower(model, step, dims.data)
    with testing.layers_session(lowered) as (net, session):
        got = {var.op.name: session.run(var) for var in net.get_params_list()}
    got = lowered.from_tensorflow(got)
    assert got.keys() == values.keys() and len(got) == 10
    for path, value in values.items():
        numpy.testing.assert_array_equal(got[path], value, err_msg=path)


@pytest.mark.parametrize("strides", [1, 2, 3])
def test_padded_batch_through_strided_convolutions(dims, strides):
    """19 frames alone give what they give beside 30 frames"""

    class Convs(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv1d(
                dims.feat, dims.hidden, filter_size=4, strides=strides, padding="same"
            )
            self.second = nn.Conv1d(
                dims.hidden, dims.feat, filter_size=3, strides=2, padding="same"
            )

        def __call__(self, x):
            y, time_dim = self.first(x, in_spatial_dim=dims.time)
            return self.second(nn.relu(y), in_spatial_dim=time_dim)

    def step(*, model, extern_data, **_):
        y, time_dim = model(extern_data["data"])
        y.mark_as_output("out", shape=[nn.batch_dim, time_dim, dims.feat])

    model = Convs()
    lowered, parameters = (
        nn.lower(model, step, dims.data, task="forward"),
        testing.random_parameters(model),
    )
    both = batch((30, 19))
    alone = {"data": both["data"][1:, :19], "data:size1": both["data:size1"][1:]}
    together = testing.run_layers(lowered, both, parameters=parameters)
    single = testing.run_layers(lowered, alone, parameters=parameters)
    num_frames = int(single.lengths["out"][1][0])
    assert together.lengths["out"][1].tolist()[1] == num_frames
    numpy.testing.assert_allclose(
        together.values["out"][1, :num_frames], single.values["out"][0], rtol=1e-5, atol=1e-6
    )
    testing.assert_backends_agree(Convs, step, dims.data, both, task="forward")


def test_convolution_is_one_layer_and_maps_its_filter(dims):
    one = nn.FeatureDim("one", 1)

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(one, dims.hidden, filter_size=(3, 2), padding="same")

        def __call__(self, x):
            y, _ = self.conv(nn.expand_dim(x, dim=one), in_spatial_dims=[dims.time, dims.feat])
            return nn.relu(y)

    def step(*, model, extern_data, **_):
        nn.reduce_sum(
            nn.square(model(extern_data["data"])), axis=[dims.hidden, dims.feat]
        ).mark_as_loss()

    lowered = nn.lower(Conv(), step, dims.data)
    assert lowered.network["conv"]["activation"] == "relu"
    assert lowered.parameters["conv.filter"].axes == (2, 3, 1, 0)
    testing.assert_backends_agree(Conv, step, dims.data, batch())


def test_a_convolution_that_keeps_the_length_leaves_the_name_of_the_dim(dims):
    conv = nn.Conv1d(dims.feat, dims.hidden, 3, padding=1)

    def step(*, model, extern_data, **_):
        out, _ = model(extern_data["data"], in_spatial_dim=dims.time)
        nn.reduce_mean(nn.square(out), axis=dims.hidden).mark_as_loss("square")

    text = nn.lower(conv, step, dims.data).config_text()
    assert dims.time.name == "time"
    assert 'time_dim = SpatialDim("time")' in text


@pytest.mark.parametrize("axis, num_masks", [(None, 8 * 50), ("feat", 1)])
@pytest.mark.parametrize("fused", [False, True])
def test_dropout_shares_its_mask_as_asked(dims, axis, num_masks, fused):
    """every frame draws for itself without ``axis``; alone or as an option of the next layer"""
    out = nn.FeatureDim("out", FEAT)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(dims.feat, out, with_bias=False)
            self.linear.weight.initial = numpy.eye(FEAT, dtype="float32")

        def __call__(self, x):
            x = nn.dropout(x, 0.5, axis=dims.feat if axis else None)
            return self.linear(x) if fused else nn.replace_dim(x, in_dim=dims.feat, out_dim=out)[0]

    def step(*, model, extern_data, **_):
        y = model(extern_data["data"])
        y.mark_as_loss("probe")  # so that the net has a loss

    lowered = nn.lower(Model(), step, dims.data)
    data = batch((50,) * 8)
    data["data"][:] = 1.0
    with testing.layers_session(lowered, train=True) as (net, session):
        name = "linear" if fused else "dropout"
        assert lowered.network[name]["dropout"] == 0.5
        output = net.layers[name].output.placeholder
        values = session.run(output, feed_dict=testing.feed_dict(net, data))
    assert set(numpy.unique(values)) == {0.0, 2.0}
    masks = {tuple(frame) for frame in values.reshape(-1, FEAT)}
    assert len(masks) == 1 if num_masks == 1 else len(masks) > 0.5 * 2**FEAT
    assert abs(values.mean() - 1.0) < 0.1 or num_masks == 1


def test_two_dropouts_of_one_tensor_draw_two_masks(dims):
    """RETURNN itself would share the mask among all layers that read one layer with one rate"""

    def step(*, model, extern_data, **_):
        x = extern_data["data"]
        (nn.dropout(x, 0.5) + nn.dropout(x, 0.5)).mark_as_loss("probe")

    lowered = nn.lower(nn.Module(), step, dims.data)
    data = batch((50,) * 8)
    data["data"][:] = 1.0
    with testing.layers_session(lowered, train=True) as (net, session):
        outputs = [net.layers[name].output.placeholder for name in ("dropout", "dropout_1")]
        masks = session.run(outputs, feed_dict=testing.feed_dict(net, data))
    # independent halves agree in half of all places
    assert 0.4 < (masks[0] == masks[1]).mean() < 0.6


@pytest.mark.parametrize("use_mask", [True, False])
def test_batch_norm(dims, use_mask):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(dims.feat, use_mask=use_mask)

    step = output_step(lambda m, d: squared(m.norm(d["data"]), dims.feat))
    net = nn.lower(Norm(), step, dims.data).network
    assert net["norm"]["class"] == "batch_norm" and net["norm"]["masked_time"] is use_mask
    testing.assert_backends_agree(Norm, step, dims.data, batch())


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(dims, causal):
    total = nn.FeatureDim("total", 6)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            make = nn.CausalSelfAttention if causal else nn.SelfAttention
            self.att = make(
                dims.feat, dims.feat, key_dim_total=total, value_dim_total=total, num_heads=2
            )

        def __call__(self, x):
            out = self.att(x, axis=dims.time)
            return out[0] if causal else out

    step = output_step(lambda m, d: squared(m(d["data"]), dims.feat))
    testing.assert_backends_agree(Attention, step, dims.data, batch((6, 4, 1)))


def rel_pos(dims, **options):
    total = nn.FeatureDim("total", 6)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.att = nn.RelPosSelfAttention(
                dims.feat, dims.hidden, key_dim_total=total, value_dim_total=total, num_heads=2, **options)  # fmt: skip

        def __call__(self, x):
            return self.att(x, axis=dims.time)

    return Attention


def rel_pos_in_numpy(x, parameters, *, num_heads=2):
    """
    one sequence [T, FEAT]; the sum over all pairs as in https://arxiv.org/abs/1901.02860, section
    3.3, written as loops
    """
    num_frames, feat = x.shape
    qkv = (x @ parameters["att.qkv.weight"] + parameters["att.qkv.bias"]).reshape(
        num_frames, num_heads, -1
    )
    q, k, v = numpy.split(qkv, 3, axis=-1)
    rate = 1e4 ** (-2 * numpy.arange(feat // 2) / feat)
    out = numpy.zeros((num_frames, num_heads, v.shape[-1]))
    for head in range(num_heads):
        for i in range(num_frames):
            scores = []
            for j in range(num_frames):
                angle = (j - i) * rate
                emb = numpy.concatenate([numpy.sin(angle), numpy.cos(angle)])
                pos = (emb @ parameters["att.linear_pos.weight"]).reshape(num_heads, -1)[head]
                u, w = parameters["att.pos_bias_u"][head], parameters["att.pos_bias_v"][head]
                scores.append(
                    ((q[i, head] + u) @ k[j, head] + (q[i, head] + w) @ pos)
                    / numpy.sqrt(q.shape[-1])
                )
            weights = numpy.exp(scores - numpy.max(scores))
            out[i, head] = (weights / weights.sum()) @ v[:, head]
    return out.reshape(num_frames, -1) @ parameters["att.proj.weight"] + parameters["att.proj.bias"]


def test_relative_attention_equals_its_definition(dims):
    feat = nn.FeatureDim("feat", 8)
    dims.feat, dims.data = (
        feat,
        {"data": nn.Tensor("data", [nn.batch_dim, dims.time, feat], "float32")},
    )
    model = rel_pos(dims)()
    rng = numpy.random.RandomState(2)
    data = {
        "data": rng.normal(size=(2, 5, 8)).astype("float32"),
        "data:size1": numpy.array([5, 1], dtype="int32"),
    }

    def step(*, model, extern_data, **_):
        model(extern_data["data"]).mark_as_output(
            "out", shape=[nn.batch_dim, dims.time, dims.hidden]
        )

    parameters = testing.random_parameters(model)
    result = testing.run_layers(
        nn.lower(model, step, dims.data, task="forward"), data, parameters=parameters
    )
    for i, length in enumerate((5, 1)):
        expected = rel_pos_in_numpy(data["data"][i, :length], parameters)
        numpy.testing.assert_allclose(
            result.values["out"][i, :length], expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"learnable_pos_emb": True, "learnable_pos_emb_clipping": 2}, {"with_pos_bias": False}],
)
def test_relative_attention_at_several_lengths(dims, options):
    feat = nn.FeatureDim("feat", 8)
    dims.feat, dims.data = (
        feat,
        {"data": nn.Tensor("data", [nn.batch_dim, dims.time, feat], "float32")},
    )
    step = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    for length in (3, 1, 4):
        rng = numpy.random.RandomState(length)
        data = {"data": rng.normal(size=(2, length, 8)).astype("float32"),
                "data:size1": numpy.array([length, max(1, length - 1)], dtype="int32")}  # fmt: skip
        testing.assert_backends_agree(rel_pos(dims, **options), step, dims.data, data)


# --- losses


def test_unpacked_loss_over_time(dims):
    """a [B, T] loss counts frames only, on both backends"""
    step = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    data = batch((6, 2))
    model = nn.Linear(dims.feat, dims.hidden)
    parameters = testing.random_parameters(model)
    result = testing.run_layers(nn.lower(model, step, dims.data), data, parameters=parameters)
    out = data["data"] @ parameters["weight"] + parameters["bias"]
    expected = (out[0] ** 2).sum() + (out[1, :2] ** 2).sum()
    numpy.testing.assert_allclose(result.values["loss"], expected, rtol=1e-5)


def test_default_loss_names(dims):
    def step(*, model, extern_data, **_):
        for _ in range(2):
            nn.cross_entropy(model(extern_data["data"]), extern_data["classes"]).mark_as_loss()
        squared(extern_data["data"], dims.feat).mark_as_loss()

    model = nn.Linear(dims.feat, dims.classes)
    lowered = nn.lower(model, step, dims.labelled)
    losses = [name for name, layer in lowered.network.items() if "loss" in layer]
    assert losses == ["cross_entropy", "cross_entropy_1", "loss"]


# --- the config text


def lowered_block(dims):
    model = Repeated([Block(dims.feat, dims.hidden)], [0, 0])
    return nn.lower(model, output_step(lambda m, d: squared(m(d["data"]), dims.feat)), dims.data)


def test_dict_and_text_agree_and_repeat(dims):
    lowered = lowered_block(dims)
    text = lowered.config_text(num_epochs=2, optimizer={"class": "adam"})
    assert text == lowered_block(dims).config_text(num_epochs=2, optimizer={"class": "adam"})
    config = lowered.config(num_epochs=2)
    assert (
        config["num_epochs"] == 2
        and config["behavior_version"] >= 24
        and config["flat_net_construction"]
    )
    assert lowered.network is lowered.network
    (time_dim,) = (
        dim
        for dim in lowered.extern_data["data"]["dim_tags"]
        if dim.is_dynamic() and not dim.is_batch_dim()
    )
    assert time_dim is lowered.network["loss"]["set_axes"]["T"]
    assert list(config["network"]) == list(lowered.network)


PROGRAM = """
from returnn_common import nn
import hashlib

class Model(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.a, self.b = nn.Linear(dim, out), nn.Linear(dim, out)

    def __call__(self, x):
        return nn.concat((self.a(x), self.a.out_dim), (self.b(x), self.b.out_dim))[0]

def step(*, model, extern_data, **_):
    y = model(extern_data["data"])
    nn.reduce_mean(nn.square(y), axis=y.feature_dim).mark_as_loss("l")

time, feat = nn.SpatialDim("time"), nn.FeatureDim("feat", 3)
data = {"data": nn.Tensor("data", [nn.batch_dim, time, feat], "float32")}
lowered = nn.lower(Model(feat, nn.FeatureDim("out", 5)), step, data)
print(lowered.config_text(extra={"b", "a", "c"}))
import sys
assert "tensorflow" not in sys.modules and "torch" not in sys.modules
"""


def test_text_is_the_same_under_every_hash_seed():
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=_environment(PYTHONHASHSEED=seed),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(texts) == 1 and "network = {" in texts.pop()


def _environment(**changes):
    import os
    import pathlib

    root = str(pathlib.Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": root, **changes}


def test_the_model_can_be_lowered_again(dims):
    model = nn.Linear(dims.feat, dims.hidden)
    step = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    first = nn.lower(model, step, dims.data).config_text()
    assert nn.lower(model, step, dims.data).config_text() == first
    assert dims.time.dyn_size_ext is None


# --- bad input


def test_bad_input_is_named(dims):
    model = nn.Linear(dims.feat, dims.hidden)
    good = output_step(lambda m, d: squared(m(d["data"]), dims.hidden))
    with pytest.raises(TypeError, match="the model is a str, expected an nn.Module"):
        nn.lower("model", good, dims.data)
    with pytest.raises(ValueError, match="unknown task 'tarin', expected one of train, forward"):
        nn.lower(model, good, dims.data, task="tarin")
    with pytest.raises(ValueError, match="marks no loss"):
        nn.lower(model, lambda *, model, extern_data, **_: None, dims.data)
    with pytest.raises(ValueError, match="does not have in_dim"):
        nn.lower(nn.Linear(dims.hidden, dims.feat), good, dims.data)
    with pytest.raises(AttributeError, match="did you mean 'Linear'"):
        nn.Liner  # noqa: B018
    with pytest.raises(ValueError, match="'network' is set by the lowering"):
        nn.lower(model, good, dims.data).config_text(network={})
    with pytest.raises(TypeError, match="a config text cannot hold"):
        nn.lower(model, good, dims.data).config_text(train=object())


def test_a_module_called_outside_of_lowering(dims):
    with pytest.raises(Exception, match="outside|lower"):
        nn.Linear(dims.feat, dims.hidden)(
            nn.Tensor("x", [nn.batch_dim, dims.time, dims.feat], "float32")
        )
