"""
LSTM encoders, decoder and language model against torch with the same parameters, each sequence alone there; the front
ends of the LSTM encoders against plain torch.
"""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, testing
from returnn_common.zoo.decoder.lstm import make_lstm_decoder
from returnn_common.zoo.encoder.blstm import make_blstm, make_cnn_blstm
from returnn_common.zoo.frontend.linear_subsampling import make_linear_subsampling
from returnn_common.zoo.frontend.vgg_subsampling import make_vgg_subsampling
from returnn_common.zoo.lm.lstm import make_lstm_lm

torch = pytest.importorskip("torch")

FRAMES, FEATURES, CELLS = (11, 4, 1), 7, 5


def batch():
    """:return: extern data of features and of labels, and arrays with noise in the padding"""
    rng = numpy.random.RandomState(3)
    time_dim, feature_dim = nn.SpatialDim("time"), nn.FeatureDim("feature", FEATURES)
    labels_dim, vocab_dim = nn.SpatialDim("labels"), nn.FeatureDim("vocab", 6)
    extern_data = {
        "data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32"),
        "classes": nn.Tensor("classes", [nn.batch_dim, labels_dim], "int32", sparse_dim=vocab_dim),
    }
    arrays = {
        "data": rng.normal(size=(3, max(FRAMES), FEATURES)).astype("float32"),
        "data:size1": numpy.array(FRAMES, "int32"),
        "classes": numpy.array([[1, 5, 0, 0], [2, 2, 4, 3], [3, 0, 0, 0]], "int32"),
        "classes:size1": numpy.array([2, 4, 1], "int32"),
    }
    return extern_data, arrays


def run(make, step):
    """:return: the rows of the output without padding, of the inputs, and the parameters as torch tensors"""
    extern_data, arrays = batch()
    with testing.torch_backend():
        model = make(extern_data)
    parameters = testing.random_parameters(model)
    options = {"parameters": parameters, "task": "forward"}
    result = testing.run_torch(lambda: model, step, extern_data, arrays, **options)
    lengths = result.lengths["out"][1]
    rows = [row[:n] for row, n in zip(result.values["out"], lengths)]
    inputs = [torch.tensor(row[:n]) for row, n in zip(arrays["data"], FRAMES)]
    return rows, inputs, {path: torch.tensor(value) for path, value in parameters.items()}


def encoder_step(*, model, extern_data, **_):
    source = extern_data["data"]
    out, spatial_dim = model(source, in_spatial_dim=source.dims[1])
    out.mark_as_output("out", shape=[nn.batch_dim, spatial_dim, model.out_dim])


def assert_rows_equal(rows, expected):
    for row, other in zip(rows, expected, strict=True):
        numpy.testing.assert_allclose(row, other.detach(), rtol=1e-5, atol=1e-5)


def torch_lstm(parameters, path, *, reverse=""):
    """:return: parameters of `torch.nn.LSTM` by name; RETURNN has one bias, torch two"""
    return {
        f"weight_ih_l0{reverse}": parameters[f"{path}.ff_weight"],
        f"weight_hh_l0{reverse}": parameters[f"{path}.rec_weight"],
        f"bias_ih_l0{reverse}": parameters[f"{path}.bias"],
        f"bias_hh_l0{reverse}": torch.zeros(parameters[f"{path}.bias"].shape),
    }


def torch_blstm(parameters, x, num_layers, pooling=()):
    """:return: the output of torch's bidirectional LSTMs, with the maximum over non-overlapping frames"""
    for i in range(num_layers):
        lstm = torch.nn.LSTM(x.shape[-1], CELLS, bidirectional=True)
        forward = torch_lstm(parameters, f"layers.{i}.forward")
        backward = torch_lstm(parameters, f"layers.{i}.backward", reverse="_reverse")
        lstm.load_state_dict({**forward, **backward})
        x, _ = lstm(x)
        if i < len(pooling):
            x = torch.stack([part.max(0).values for part in pooled(x, pooling[i])])
    return x


def pooled(x, size):
    """
    the frames that one output stands for: with "same" padding of consistent size, (size - 1) // 2 frames of it lie
    before the first
    """
    left = (size - 1) // 2
    number = -(-len(x) // size)
    spans = [(max(0, i * size - left), min(len(x), (i + 1) * size - left)) for i in range(number)]
    return [x[start:end] for start, end in spans]


@pytest.mark.parametrize("pooling", [(), (2,), (3, 2)])
def test_blstm_equals_torch(pooling):
    make = lambda data: make_blstm(  # noqa: E731
        data["data"].dims[2], CELLS, num_layers=2, pooling=pooling
    )
    rows, inputs, parameters = run(make, encoder_step)
    assert_rows_equal(rows, [torch_blstm(parameters, x, 2, pooling) for x in inputs])


def linear(x, parameters, path):
    return x @ parameters[f"{path}.weight"] + parameters[f"{path}.bias"]


def torch_vgg(parameters, x, path=""):
    """:return: pairs of convolutions, and the maximum over 2x2; x is `[T, F]`"""
    x = x[None, None]
    for i in range(2):
        for j in (1, 2):
            conv = f"{path}layers.{i}.conv{j}.conv"
            filters, bias = parameters[f"{conv}.filter"], parameters[f"{conv}.bias"]
            x = torch.nn.functional.conv2d(x, filters, bias, padding=1).relu()
        x = torch.nn.functional.max_pool2d(x, 2, ceil_mode=True)
    return linear(x[0].permute(1, 2, 0).flatten(1), parameters, f"{path}linear")


def test_vgg_equals_torch():
    make = lambda data: make_vgg_subsampling(data["data"].dims[2], 6, channels=(2, 3))  # noqa: E731
    rows, inputs, parameters = run(make, encoder_step)
    assert [len(row) for row in rows] == [3, 1, 1]
    assert_rows_equal(rows, [torch_vgg(parameters, x) for x in inputs])


def test_cnn_blstm_equals_torch():
    make = lambda data: make_cnn_blstm(  # noqa: E731
        data["data"].dims[2], CELLS, num_layers=1, channels=(2, 3)
    )
    rows, inputs, parameters = run(make, encoder_step)
    inputs = [torch_vgg(parameters, x, "frontend.") for x in inputs]
    assert_rows_equal(rows, [torch_blstm(parameters, x, 1) for x in inputs])


def test_linear_subsampling_stacks_frames():
    make = lambda data: make_linear_subsampling(data["data"].dims[2], 6, factor=3)  # noqa: E731
    rows, inputs, parameters = run(make, encoder_step)
    weight = parameters["linear.filter"].permute(2, 1, 0).reshape(3 * FEATURES, 6)
    expected = []
    for x in inputs:
        padded = torch.cat([x, torch.zeros(-len(x) % 3, FEATURES)])
        expected.append(padded.reshape(-1, 3 * FEATURES) @ weight + parameters["linear.bias"])
    assert_rows_equal(rows, expected)


def label_step(*, model, extern_data, **_):
    source, labels = extern_data["data"], extern_data["classes"]
    options = {}
    if hasattr(model, "transform_encoder"):
        options["encoder"] = model.transform_encoder(source, spatial_dim=source.dims[1])
    state = model.default_initial_state(batch_dims=[nn.batch_dim], **options)
    out, _ = model(labels, spatial_dim=labels.dims[1], state=state, **options)
    out.mark_as_output("out", shape=[*labels.dims, model.out_dim])


def label_rows():
    _, arrays = batch()
    return [torch.tensor(r[:n]).long() for r, n in zip(arrays["classes"], arrays["classes:size1"])]


def test_lm_equals_torch():
    make = lambda data: make_lstm_lm(  # noqa: E731
        data["classes"].sparse_dim, num_layers=2, num_cells=CELLS, embedding_dim=3
    )
    rows, _, parameters = run(make, label_step)
    expected = []
    for labels in label_rows():
        x = parameters["embedding.weight"][labels]
        for i in range(2):
            lstm = torch.nn.LSTM(x.shape[-1], CELLS)
            lstm.load_state_dict(torch_lstm(parameters, f"layers.{i}"))
            x, _ = lstm(x)
        expected.append(linear(x, parameters, "output"))
    assert_rows_equal(rows, expected)


def test_decoder_equals_its_formulas():
    make = lambda data: make_lstm_decoder(  # noqa: E731
        data["data"].dims[2],
        data["classes"].sparse_dim,
        num_cells=CELLS,
        embedding_dim=3,
        key_dim=4,
    )
    rows, inputs, parameters = run(make, label_step)
    decoded = [torch_decoder(parameters, h, y) for h, y in zip(inputs, label_rows())]
    assert_rows_equal(rows, decoded)


def torch_decoder(parameters, encoder, labels):
    """The formulas of the module's docstring, one label at a time."""
    cell = torch.nn.LSTMCell(3 + FEATURES, CELLS)
    names = torch_lstm(parameters, "lstm")
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in names.items()})
    state, context, logits = None, torch.zeros(FEATURES), []
    for label in labels:
        embedding = parameters["embedding.weight"][label]
        state = cell(torch.cat([embedding, context]), state)
        keys = linear(encoder, parameters, "attention.key")
        energy = torch.tanh(keys + state[0] @ parameters["attention.query.weight"])
        weights = torch.softmax(energy @ parameters["attention.energy.weight"], dim=0)
        context = (weights * encoder).sum(0)
        readout = linear(torch.cat([state[0], embedding, context]), parameters, "readout")
        logits.append(linear(readout.reshape(CELLS, 2).max(-1).values, parameters, "output"))
    return torch.stack(logits)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_blstm(num_layers=1), r"at most 1 positive poolings, got \(3, 2\)"),
        (lambda: make_blstm(pooling=(0,)), "positive poolings"),
        (lambda: make_cnn_blstm(num_layers=0), "expected at least one layer, got 0"),
        (lambda: make_lstm_lm(num_layers=0), "expected at least one layer, got 0"),
        (lambda: make_vgg_subsampling(channels=()), "channels of at least one pair"),
        (lambda: make_linear_subsampling(factor=0), "factor must be positive, got 0"),
    ],
)
def test_bad_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
