"""nn.LSTM as a rec layer: against torch, in both directions, step by step, with and without a native op."""

from __future__ import annotations

import shutil
from unittest import mock

import numpy
import pytest

from returnn_common import nn, testing

LENGTHS = (6, 4, 1)
IN, HIDDEN, EXTRA = 3, 5, 2


@pytest.fixture
def dims():
    class Dims:
        time = nn.SpatialDim("time")
        extra = nn.SpatialDim("extra", EXTRA)
        input = nn.FeatureDim("input", IN)
        hidden = nn.FeatureDim("hidden", HIDDEN)

    Dims.states = {
        key: nn.Tensor(key, [nn.batch_dim, Dims.hidden], "float32") for key in ("h0", "c0")
    }
    Dims.data = {"data": nn.Tensor("data", [nn.batch_dim, Dims.time, Dims.input], "float32")}
    return Dims


def batch(lengths=LENGTHS, *, padding=7.0):
    """the padding frames are not zero: nothing may depend on them"""
    rng = numpy.random.RandomState(3)
    frames = rng.normal(size=(len(lengths), max(lengths), IN)).astype("float32")
    for sequence, length in zip(frames, lengths):
        sequence[length:] = padding
    states = {
        key: rng.normal(size=(len(lengths), HIDDEN)).astype("float32") for key in ("h0", "c0")
    }
    return {"data": frames, "data:size1": numpy.array(lengths, dtype="int32"), **states}


def without_states(data):
    return {key: value for key, value in data.items() if key not in ("h0", "c0")}


def run_lstm(model, extern_data, dims, source=None):
    source = extern_data["data"] if source is None else source
    if "h0" in extern_data:
        state = nn.LstmState(h=extern_data["h0"], c=extern_data["c0"])
    else:
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
    return model(source, state=state, spatial_dim=dims.time)


def forward_step(dims):
    def step(*, model, extern_data, **_):
        out, state = run_lstm(model, extern_data, dims)
        state.c.mark_as_output("c", shape=[nn.batch_dim, dims.hidden])
        state.h.mark_as_output("h", shape=[nn.batch_dim, dims.hidden])
        out.mark_as_output("out", shape=[nn.batch_dim, dims.time, dims.hidden])

    return step


def train_step(dims):
    """a loss of all outputs, one of both last states"""

    def step(*, model, extern_data, **_):
        out, state = run_lstm(model, extern_data, dims)
        nn.reduce_sum(nn.square(out), axis=dims.hidden).mark_as_loss("out")
        nn.reduce_sum(state.h * nn.square(state.c), axis=dims.hidden).mark_as_loss("state")

    return step


def torch_lstm(parameters, frames, h0, c0):
    """``torch.nn.LSTM`` on one sequence without padding"""
    import torch

    reference = torch.nn.LSTM(IN, HIDDEN)
    reference.load_state_dict(
        {
            "weight_ih_l0": torch.tensor(parameters["ff_weight"]),
            "weight_hh_l0": torch.tensor(parameters["rec_weight"]),
            "bias_ih_l0": torch.tensor(parameters["bias"]),
            "bias_hh_l0": torch.zeros(4 * HIDDEN),
        }
    )
    with torch.no_grad():
        out, (h, c) = reference(
            torch.tensor(frames), (torch.tensor(h0)[None], torch.tensor(c0)[None])
        )
    return out.numpy(), h.numpy()[0], c.numpy()[0]


@pytest.mark.parametrize("with_states", [False, True])
def test_equals_torch_on_each_sequence_alone(dims, with_states):
    data = batch()
    extern_data = {**dims.data, **dims.states} if with_states else dims.data
    model = nn.LSTM(dims.input, dims.hidden)
    lowered = nn.lower(model, forward_step(dims), extern_data, task="forward")
    parameters = testing.random_parameters(model, scale=0.5)
    result = testing.run_layers(
        lowered, data if with_states else without_states(data), parameters=parameters
    )
    for i, length in enumerate(LENGTHS):
        start = [
            data[key][i] if with_states else numpy.zeros(HIDDEN, "float32") for key in ("h0", "c0")
        ]
        out, h, c = torch_lstm(parameters, data["data"][i, :length], *start)
        for name, ours, theirs in (
            ("out", result.values["out"][i, :length], out),
            ("h", result.values["h"][i], h),
            ("c", result.values["c"][i], c),
        ):
            numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_values_and_gradients_agree(dims, with_bias, with_states):
    testing.assert_backends_agree(
        lambda: nn.LSTM(dims.input, dims.hidden, with_bias=with_bias),
        train_step(dims),
        {**dims.data, **dims.states} if with_states else dims.data,
        batch() if with_states else without_states(batch()),
    )


def test_is_one_rec_layer_of_a_flat_net(dims):
    lowered = nn.lower(nn.LSTM(dims.input, dims.hidden), train_step(dims), dims.data)
    config = lowered.config()
    assert config["flat_net_construction"] is True
    assert [layer["unit"] for layer in config["network"].values() if layer["class"] == "rec"] == [
        "StandardLSTM"
    ]
    names = {path: variable.name for path, variable in lowered.parameters.items()}
    assert names == {path: f"{path}/param" for path in ("ff_weight", "rec_weight", "bias")}


def test_no_compiler_is_needed_on_a_cpu(dims):
    from returnn.util.basic import NativeCodeCompiler

    lowered = nn.lower(nn.LSTM(dims.input, dims.hidden), train_step(dims), dims.data)
    with mock.patch.object(
        NativeCodeCompiler, "_maybe_compile", side_effect=AssertionError("compiles")
    ):
        testing.run_layers(lowered, without_states(batch()), gradients=True)


class Blstm(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.forward, self.backward = nn.LSTM(in_dim, out_dim), nn.LSTM(in_dim, out_dim)

    def __call__(self, x, *, spatial_dim):
        parts = []
        for lstm, reverse in ((self.forward, False), (self.backward, True)):
            state = lstm.default_initial_state(batch_dims=[nn.batch_dim])
            y = nn.reverse_sequence(x, axis=spatial_dim) if reverse else x
            y, _ = lstm(y, state=state, spatial_dim=spatial_dim)
            parts.append(nn.reverse_sequence(y, axis=spatial_dim) if reverse else y)
        return nn.concat(*((part, part.feature_dim) for part in parts))


def test_blstm_of_two_layers(dims):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Blstm(dims.input, dims.hidden)
            self.second = Blstm(2 * dims.hidden, dims.hidden)

        def __call__(self, x):
            x, _ = self.first(x, spatial_dim=dims.time)
            return self.second(x, spatial_dim=dims.time)

    def step(*, model, extern_data, **_):
        out, out_dim = model(extern_data["data"])
        nn.reduce_sum(nn.square(out), axis=out_dim).mark_as_loss()

    data = without_states(batch())
    together = testing.assert_backends_agree(Model, step, dims.data, data)
    model = Model()
    lowered, parameters = nn.lower(model, step, dims.data), testing.random_parameters(model)
    alone = [
        testing.run_layers(
            lowered,
            {"data": data["data"][i : i + 1, :length], "data:size1": data["data:size1"][i : i + 1]},
            parameters=parameters,
        ).values["loss"]
        for i, length in enumerate(LENGTHS)
    ]
    numpy.testing.assert_allclose(together.values["loss"], sum(alone), rtol=1e-5)


def test_one_step(dims):
    def step(*, model, extern_data, **_):
        x = nn.reduce_sum(extern_data["data"], axis=dims.time)
        state = nn.LstmState(h=extern_data["h0"], c=extern_data["c0"])
        out, state = model(x, state=state, spatial_dim=nn.single_step_dim)
        nn.reduce_sum(nn.square(out) + state.h * state.c, axis=dims.hidden).mark_as_loss()

    model = nn.LSTM(dims.input, dims.hidden)
    lowered = nn.lower(model, step, {**dims.data, **dims.states})
    parameters, data = testing.random_parameters(model), batch()
    result = testing.run_layers(lowered, data, parameters=parameters)
    expected = 0.0
    for i, length in enumerate(LENGTHS):
        frame = data["data"][i, :length].sum(axis=0, keepdims=True)
        out, h, c = torch_lstm(parameters, frame, data["h0"][i], data["c0"][i])
        expected += (numpy.square(out[0]) + h * c).sum()
    numpy.testing.assert_allclose(result.values["loss"], expected, rtol=1e-5)


def assert_same(result, expected):
    """values and gradients; loops have gradients only in training"""
    for name, value in expected.values.items():
        numpy.testing.assert_allclose(result.values[name], value, rtol=1e-5)
    for path, gradient in expected.gradients.items():
        numpy.testing.assert_allclose(result.gradients[path], gradient, rtol=1e-4, atol=1e-5)


def test_step_by_step_equals_all_at_once(dims):
    """the same parameters in a loop of single steps and in a rec layer"""

    def scan_step(*, model, extern_data, **_):
        def body(x, state):
            return model(x, state=state, spatial_dim=nn.single_step_dim)

        out, state = nn.scan(
            body,
            spatial_dim=dims.time,
            xs=extern_data["data"],
            initial=model.default_initial_state(batch_dims=[nn.batch_dim]),
        )
        nn.reduce_sum(nn.square(out), axis=dims.hidden).mark_as_loss("out")
        nn.reduce_sum(state.h * nn.square(state.c), axis=dims.hidden).mark_as_loss("state")

    model, data = nn.LSTM(dims.input, dims.hidden), without_states(batch())
    parameters = testing.random_parameters(model)
    loop, layer = (
        testing.run_layers(
            nn.lower(model, step, dims.data),
            data,
            parameters=parameters,
            train=True,
            gradients=True,
        )
        for step in (scan_step, train_step(dims))
    )
    assert_same(loop, layer)


def test_several_batch_dims(dims):
    """an LSTM per channel ``extra`` besides the batch"""
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim, dims.extra, dims.time, dims.input], "float32")
    }

    def step(*, model, extern_data, **_):
        state = model.default_initial_state(batch_dims=[nn.batch_dim, dims.extra])
        out, state = model(extern_data["data"], state=state, spatial_dim=dims.time)
        for name, value in (("out", out), ("state", state.h * nn.square(state.c))):
            nn.reduce_sum(value, axis=[dims.extra, dims.hidden]).mark_as_loss(name)

    frames = numpy.random.RandomState(5).normal(size=(len(LENGTHS), EXTRA, max(LENGTHS), IN))
    data = {"data": frames.astype("float32"), "data:size2": numpy.array(LENGTHS, dtype="int32")}
    testing.assert_backends_agree(lambda: nn.LSTM(dims.input, dims.hidden), step, extern_data, data)


def test_over_a_dim_of_fixed_size(dims):
    """an LSTM over ``extra`` for each frame, as in the chunks of https://arxiv.org/abs/1910.06379"""
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim, dims.time, dims.extra, dims.input], "float32")
    }

    def step(*, model, extern_data, **_):
        state = model.default_initial_state(batch_dims=[nn.batch_dim, dims.time])
        out, state = model(extern_data["data"], state=state, spatial_dim=dims.extra)
        state.c.mark_as_output("c", shape=[nn.batch_dim, dims.time, dims.hidden])
        out.mark_as_output("out", shape=[nn.batch_dim, dims.time, dims.extra, dims.hidden])

    shape = (len(LENGTHS), max(LENGTHS), EXTRA, IN)
    frames = numpy.random.RandomState(5).normal(size=shape).astype("float32")
    data = {"data": frames, "data:size1": numpy.array(LENGTHS, dtype="int32")}
    model = nn.LSTM(dims.input, dims.hidden)
    parameters = testing.random_parameters(model)
    lowered = nn.lower(model, step, extern_data, task="forward")
    result = testing.run_layers(lowered, data, parameters=parameters)
    start = numpy.zeros((2, HIDDEN), "float32")
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            out, _, c = torch_lstm(parameters, frames[i, t], *start)
            numpy.testing.assert_allclose(result.values["out"][i, t], out, rtol=1e-5, atol=1e-5)
            numpy.testing.assert_allclose(result.values["c"][i, t], c, rtol=1e-5, atol=1e-5)


def test_last_state_as_the_next_initial_state(dims):
    """the same module twice, the second starts where the first ended"""

    def step(*, model, extern_data, **_):
        _, state = run_lstm(model, extern_data, dims)
        out, state = model(extern_data["data"], state=state, spatial_dim=dims.time)
        nn.reduce_sum(nn.square(out), axis=dims.hidden).mark_as_loss("out")
        nn.reduce_sum(state.h * state.c, axis=dims.hidden).mark_as_loss("state")

    testing.assert_backends_agree(
        lambda: nn.LSTM(dims.input, dims.hidden), step, dims.data, without_states(batch())
    )


def test_inside_a_condition(dims):
    def step(*, model, extern_data, **_):
        x = extern_data["data"]
        positive = nn.reduce_sum(x, axis=list(x.dims)) > 0.0
        out = nn.cond(
            positive,
            lambda: run_lstm(model, extern_data, dims)[0],
            lambda: run_lstm(model, extern_data, dims, source=-x)[0],
        )
        nn.reduce_sum(nn.square(out), axis=dims.hidden).mark_as_loss()

    for sign in (1.0, -1.0):
        data = without_states(batch(padding=0.0))
        data["data"] = sign * numpy.abs(data["data"])
        testing.assert_backends_agree(
            lambda: nn.LSTM(dims.input, dims.hidden), step, dims.data, data
        )


def test_bad_input_is_named(dims):
    other = nn.SpatialDim("other")

    def step(spatial_dim, batch_dims):
        def run(*, model, extern_data, **_):
            state = model.default_initial_state(batch_dims=batch_dims)
            model(extern_data["data"], state=state, spatial_dim=spatial_dim)

        return run

    model = nn.LSTM(dims.input, dims.hidden)
    with pytest.raises(ValueError, match="other.* is not among the dims .* of its input"):
        nn.lower(model, step(other, [nn.batch_dim]), dims.data)
    with pytest.raises(
        ValueError, match="a state has the dims .*, expected .*default_initial_state"
    ):
        nn.lower(model, step(dims.time, []), dims.data)

    def without_batch(*, model, extern_data, **_):
        x = nn.zeros([dims.extra, dims.input])
        model(x, state=model.default_initial_state(batch_dims=[]), spatial_dim=dims.extra)

    def from_ones(*, model, extern_data, **_):
        x = nn.expand_dim(extern_data["data"], dim=dims.extra)
        ones = nn.ones([nn.batch_dim, dims.extra, dims.hidden])
        model(x, state=nn.LstmState(h=ones, c=ones), spatial_dim=dims.time)

    with pytest.raises(NotImplementedError, match="needs the batch dim"):
        nn.lower(model, without_batch, dims.data)
    with pytest.raises(NotImplementedError, match="initial state of zeros"):
        nn.lower(model, from_ones, dims.data)


# --- RETURNN's native op


def with_gpu():
    """TensorFlow finds a GPU, so a config that is loaded takes that branch"""
    return mock.patch("tensorflow.config.list_physical_devices", return_value=["GPU:0"])


def test_a_gpu_gets_the_native_unit_of_the_same_config(dims):
    lowered = nn.lower(nn.LSTM(dims.input, dims.hidden), train_step(dims), dims.data)
    on_cpu = lowered.config()["network"]["lstm"]
    with with_gpu():
        on_gpu = lowered.config()["network"]["lstm"]
    assert (on_cpu.pop("unit"), on_gpu.pop("unit")) == ("StandardLSTM", "NativeLSTM2")
    assert on_cpu["reuse_params"]["map"] == on_gpu["reuse_params"]["map"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="RETURNN compiles its native LSTM with g++")
@pytest.mark.parametrize("with_bias, with_states", [(True, True), (False, False)])
def test_a_checkpoint_fits_both_units(dims, tmp_path, with_bias, with_states):
    """saved by one unit and loaded by the other: the same values and gradients"""
    import tensorflow as tf

    extern_data = {**dims.data, **dims.states} if with_states else dims.data
    data = batch() if with_states else without_states(batch())
    model = nn.LSTM(dims.input, dims.hidden, with_bias=with_bias)
    lowered = nn.lower(model, train_step(dims), extern_data)
    parameters = testing.random_parameters(model, scale=0.5)
    with testing.layers_session(lowered) as (net, session):
        testing.set_layer_parameters(lowered, net, session, parameters)
        net.save_params_to_file(str(tmp_path / "cpu"), session)
    standard = testing.run_layers(lowered, data, parameters=parameters, gradients=True)
    saved = dict(tf.train.list_variables(str(tmp_path / "cpu")))
    with with_gpu(), testing.layers_session(lowered) as (net, session):
        assert type(net.layers["lstm"].cell).__name__ == "NativeLstm2"
        variables = {v.op.name: v.shape.as_list() for v in net.get_params_list()}
        assert variables == {name: saved[name] for name in variables}
        assert set(saved) - set(variables) <= {"global_step"}
        net.load_params_from_file(str(tmp_path / "cpu"), session)
        loaded = {v.op.name: session.run(v) for v in net.get_params_list()}
        native = testing.run_layers(lowered, data, parameters=parameters, gradients=True)
    for path, variable in lowered.parameters.items():
        numpy.testing.assert_array_equal(loaded[variable.name], parameters[path])
    assert_same(native, standard)
