"""Sessions: steps on two backends with shared parameters, batches, and what errors say."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, training

BACKENDS = ["tensorflow-net-dict", "torch"]
TIME = nn.SpatialDim("time")
FEATURES = nn.FeatureDim("features", 7)
CLASSES = nn.FeatureDim("classes", 5)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}


class Model(nn.Module):
    """a layer of many kinds"""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", 11))
        self.norm = nn.LayerNorm(self.hidden.out_dim)
        conv_dim = nn.FeatureDim("conv", 13)
        self.conv = nn.Conv1d(self.hidden.out_dim, conv_dim, 3, padding="same", with_bias=False)
        self.batch_norm = nn.BatchNorm(conv_dim)
        self.output = nn.Linear(conv_dim, CLASSES)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        x = self.norm(nn.tanh(self.hidden(x)))
        x, _ = self.conv(x, in_spatial_dim=TIME)
        return self.output(nn.relu(self.batch_norm(x)))


class Small(nn.Module):
    """dropout and a layer"""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(FEATURES, CLASSES)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        return self.output(nn.dropout(x, 0.4))


def train_step(*, model, extern_data, **_):
    nn.cross_entropy(model(extern_data["data"]), extern_data["classes"]).mark_as_loss(
        use_normalized_loss=True
    )


def forward_step(*, model, extern_data, **_):
    log_probs = nn.log_softmax(model(extern_data["data"]), axis=CLASSES)
    log_probs.mark_as_output("log_probs", shape=[nn.batch_dim, TIME, CLASSES])


def batches(number, *, num_seqs=3, seed=0):
    rng = numpy.random.RandomState(seed)
    weight = rng.normal(size=(7, 5))
    for _ in range(number):
        lengths = rng.randint(2, 9, size=num_seqs).astype("int32")
        data = rng.normal(size=(num_seqs, lengths.max(), 7)).astype("float32")
        labels = (data @ weight).argmax(axis=-1).astype("int32")
        yield {"data": data, "data:size1": lengths, "classes": labels, "classes:size1": lengths}


BATCH = next(batches(1, seed=9))


def make_session(backend, model=None, **options):
    options = {"learning_rate": 0.01, **options}
    return training.Session(model or Model(), extern_data=EXTERN_DATA, backend=backend, **options)


# --- one loop, two backends


@pytest.fixture(scope="module")
def trained():
    """on each backend: the session, its losses over 50 steps, and how often a step function ran"""

    def run(backend):
        calls = []

        def counted(**data):
            calls.append(backend)
            train_step(**data)

        session = make_session(backend)
        train = session.step(counted)
        losses = [train(batch)["cross_entropy"] for batch in batches(50)]
        return session, losses, len(calls)

    return {backend: run(backend) for backend in BACKENDS}


def test_losses_are_equal_over_50_steps(trained):
    (_, layers, _), (_, torch, _) = trained.values()
    numpy.testing.assert_allclose(layers, torch, atol=1e-4, rtol=0)
    assert layers[-1] < 0.7 * layers[0]


def test_a_step_is_built_once(trained):
    assert trained["tensorflow-net-dict"][2] == 1
    assert trained["torch"][2] == 50  # eagerly


def test_parameters_are_equal_after_50_steps(trained):
    layers, torch = (trained[backend][0].parameters for backend in BACKENDS)
    assert list(layers) == list(torch)
    for path, value in torch.items():
        numpy.testing.assert_allclose(layers[path], value, atol=1e-4, err_msg=path)


def norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / numpy.sqrt(variance + 1e-6) * scale + bias


def log_probs_by_hand(p, data, length):
    """of one sequence, as in validation"""
    x = numpy.tanh(data[:length] @ p["hidden.weight"] + p["hidden.bias"])
    x = numpy.pad(norm(x, p["norm.scale"], p["norm.bias"]), [(1, 1), (0, 0)])
    x = sum(x[i : i + length] @ p["conv.filter"][:, :, i].T for i in range(3))
    x = (x - p["batch_norm.running_mean"]) / numpy.sqrt(p["batch_norm.running_variance"] + 1e-3)
    x = numpy.maximum(x * p["batch_norm.gamma"] + p["batch_norm.beta"], 0.0)
    logits = x @ p["output.weight"] + p["output.bias"]
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_without_update_share_the_parameters_and_leave_them(trained, backend):
    session = trained[backend][0]
    before = session.parameters
    forward, evaluate = (session.step(s, update=False) for s in (forward_step, train_step))
    outputs, losses = forward(BATCH), evaluate(BATCH)
    assert list(outputs) == ["log_probs", "log_probs:size1"]
    numpy.testing.assert_array_equal(outputs["log_probs:size1"], BATCH["data:size1"])
    total = 0.0
    for i, length in enumerate(BATCH["data:size1"]):
        expected = log_probs_by_hand(before, BATCH["data"][i], length)
        numpy.testing.assert_allclose(outputs["log_probs"][i, :length], expected, atol=1e-4)
        total -= expected[numpy.arange(length), BATCH["classes"][i, :length]].sum()
    frames = BATCH["data:size1"].sum()
    numpy.testing.assert_allclose(losses["cross_entropy"], total / frames, rtol=1e-4)
    assert losses["cross_entropy"].frames == frames
    for path, value in session.parameters.items():
        numpy.testing.assert_array_equal(value, before[path], err_msg=path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_behind_the_longest_sequence_changes_nothing(trained, backend):
    evaluate = trained[backend][0].step(train_step, update=False)
    padded = {
        **BATCH,
        "data": numpy.pad(BATCH["data"], [(0, 0), (0, 2), (0, 0)], constant_values=9.0),
        "classes": numpy.pad(BATCH["classes"], [(0, 0), (0, 1)]),
    }
    assert evaluate(padded) == evaluate(BATCH)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_different_numbers_of_sequences(backend):
    """CTC reads the number from the dim; all logits are 0, and 15 paths of 5 frames collapse to one label"""
    labels_time = nn.SpatialDim("labels_time")
    labels = nn.Tensor("labels", [nn.batch_dim, labels_time], "int32", sparse_dim=CLASSES)
    model = nn.Linear(FEATURES, FEATURES)
    model.weight.initial = 0.0

    def ctc_step(*, model, extern_data, **_):
        nn.ctc_loss(
            logits=model(extern_data["data"]),
            targets=extern_data["labels"],
            input_spatial_dim=TIME,
            targets_spatial_dim=labels_time,
            blank_index=-1,
        ).mark_as_loss("ctc")

    extern_data = {"data": EXTERN_DATA["data"], "labels": labels}
    session = training.Session(model, extern_data=extern_data, backend=backend)
    evaluate = session.step(ctc_step, update=False)
    for number in (3, 2, 4):
        data = numpy.ones((number, 5, 7), dtype="float32")
        batch = {"data": data, "data:size1": numpy.full([number], 5), "labels": numpy.ones((number, 1), "int32"),
                 "labels:size1": numpy.ones(number, "int32")}  # fmt: skip
        assert evaluate(batch)["ctc"] == pytest.approx(-numpy.log(15 / 7**5), rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_needs_only_the_data_that_it_uses(trained, backend):
    forward = trained[backend][0].step(forward_step, update=False)
    data = {name: BATCH[name] for name in ("data", "data:size1")}
    numpy.testing.assert_array_equal(forward(data)["log_probs"], forward(BATCH)["log_probs"])


# --- initial values and random numbers


def test_initial_values_come_from_the_seed_and_the_name():
    first, again = make_session("torch").parameters, make_session("torch").parameters
    other = make_session("torch", seed=2).parameters
    bigger = Model()
    bigger.another = nn.Linear(FEATURES, nn.FeatureDim("another", 3))
    with_another = make_session("torch", bigger).parameters
    for path, value in first.items():
        numpy.testing.assert_array_equal(value, again[path])
        numpy.testing.assert_array_equal(value, with_another[path])
    weight = first["hidden.weight"]
    assert not (weight == other["hidden.weight"]).any()
    limit = numpy.sqrt(6 / (7 + 11))  # Glorot and Bengio 2010, equation 16
    assert 0.8 * limit < numpy.abs(weight).max() < limit
    assert (first["norm.scale"] == 1).all() and (first["norm.bias"] == 0).all()


def test_initial_is_what_the_model_says():
    model = Model()
    model.output.weight.initial = 0.5
    model.hidden.weight.initial = nn.init.Normal(0.1)
    values = make_session("torch", model).parameters
    assert (values["output.weight"] == 0.5).all()
    assert 0.05 < values["hidden.weight"].std() < 0.12
    assert numpy.abs(values["hidden.weight"]).max() <= 0.2  # within two standard deviations


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_draws_from_seed_and_run(backend):
    def losses(seed):
        session = make_session(backend, Small(), seed=seed, learning_rate=0.0)
        session.set_parameters(reference)
        train = session.step(train_step)
        return [train(BATCH)["cross_entropy"] for _ in range(3)]

    reference = {"output.weight": numpy.eye(7, 5)}
    first = losses(1)
    assert losses(1) == first
    assert len(set(first)) == 3
    assert not set(losses(2)) & set(first)


# --- parts of a model


@pytest.mark.parametrize("backend", BACKENDS)
def test_update_of_some_parameters(backend):
    session = make_session(backend)
    before = session.parameters
    session.step(train_step, update=["hidden.*", "output.bias"])(BATCH)
    statistics = {"batch_norm.running_mean", "batch_norm.running_variance"}
    changed = {p for p, v in session.parameters.items() if not numpy.array_equal(v, before[p])}
    assert changed == {"hidden.weight", "hidden.bias", "output.bias", *statistics}
    assert session.global_train_step == 1


def test_a_weight_that_two_steps_use_in_other_ways_is_one():
    """a layer owns it in one step; in the other it is used twice, once transposed"""

    def tied(*, model, extern_data, **_):
        hidden = model.hidden(extern_data["data"])
        back = nn.matmul(hidden, model.hidden.weight, reduce=model.hidden.out_dim)
        nn.reduce_mean(nn.square(back), axis=FEATURES).mark_as_loss("tied")

    results = {}
    for backend in BACKENDS:
        session = make_session(backend)
        train, other = session.step(train_step), session.step(tied)
        results[backend] = [step(BATCH) for step in (train, other, train, other)]
    for ours, theirs in zip(*results.values()):
        assert list(ours) == list(theirs)
        numpy.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_step_is_known_inside(backend):
    def step(*, model, extern_data, **_):
        number = nn.cast(nn.get_run_ctx().get_step_tensor(), "float32")
        out = nn.reduce_sum(model.output(extern_data["data"]) * 0.0, axis=CLASSES)
        (out + number).mark_as_loss("step")

    train = make_session(backend, Small()).step(step)
    assert [train(BATCH)["step"] for _ in range(3)] == [0.0, 1.0, 2.0]


def test_epochs_and_learning_rate_by_epoch_and_step():
    asked = []

    def rate(epoch, step):
        asked.append((epoch, step))
        return 0.01 / epoch

    session = make_session("torch", learning_rate=rate)
    train = session.step(train_step)
    for _ in session.epochs(2):
        for batch in batches(2):
            train(batch)
    assert asked == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert list(session.epochs(3)) == [3]
    session.learning_rate = 0.5
    assert session.current_learning_rate() == 0.5


# --- errors


def no_loss(*, model, extern_data, **_):
    model(extern_data["data"])


def twice(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss()
    loss.mark_as_loss()


def unknown_data(*, model, extern_data, **_):
    model(nn.extern_data("dat"))


def constant(*, model, extern_data, **_):
    nn.reduce_mean(extern_data["data"], axis=FEATURES).mark_as_loss("constant")


STEP_ERRORS = {
    no_loss: r"^no_loss \(.*test_training_session.py:\d+\) marks no loss; call loss.mark_as_loss",
    twice: r"test_training_session.py:\d+: the loss 'cross_entropy' is marked twice",
    unknown_data: r"test_training_session.py:\d+: extern data has no 'dat'; did you mean 'data'",
    constant: r"no loss of constant \(.*test_training_session.py:\d+\) depends on a parameter",
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", STEP_ERRORS, ids=lambda step: step.__name__)
def test_error_of_a_step_has_its_line(trained, backend, step):
    with pytest.raises(ValueError, match=STEP_ERRORS[step]):
        trained[backend][0].step(step)(BATCH)


def without(*names):
    return {key: value for key, value in BATCH.items() if key not in names}


BATCH_ERRORS = {
    "missing": (without("data"), r"the batch lacks 'data', which train_step \("),
    "near": ({**without("classes"), "clases": 1}, "did you mean 'clases'"),
    "lengths": (without("data:size1", "classes:size1"), "lacks 'data:size1', the lengths"),
    "shape": ({**BATCH, "data": BATCH["data"][..., :6]}, r"expected \[batch, time, 7\]"),
    "type": ({**BATCH, "classes": BATCH["classes"] * 0.5}, "of type float64, expected int32"),
    "long": ({**BATCH, "data:size1": BATCH["data:size1"] + 9}, "but the array has only"),
    "unequal": (
        {**BATCH, "data:size1": BATCH["data:size1"] - 1},
        "another array with the dim time",
    ),
    "float": (
        {**BATCH, "data:size1": BATCH["data:size1"] * 1.0},
        "expected lengths: whole numbers",
    ),
    "number": ({**BATCH, "classes": BATCH["classes"][:2]}, "differ in their number of sequences"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BATCH_ERRORS)
def test_error_of_a_batch_has_the_line_of_the_call(trained, backend, name):
    batch, message = BATCH_ERRORS[name]
    train = trained[backend][0].step(train_step, update=False)
    with pytest.raises(ValueError, match=rf"test_training_session.py:\d+: .*{message}"):
        train(batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_update_from_a_loss_that_is_not_finite(trained, backend):
    session = trained[backend][0]
    train = session.step(train_step)
    before, number = session.parameters, session.global_train_step
    data = BATCH["data"].copy()
    data[0, 0, 0] = numpy.nan
    message = r"test_training_session.py:\d+: the loss 'cross_entropy' is nan in train_step"
    with pytest.raises(FloatingPointError, match=message):
        train({**BATCH, "data": data})
    assert session.global_train_step == number
    after = session.parameters
    for path in ("hidden.weight", "output.bias"):
        numpy.testing.assert_array_equal(after[path], before[path])
    session.set_parameters(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "pytorch"}, "no backend 'pytorch'; did you mean 'torch'"),
        ({"model": "conformer"}, "the model is a str, expected an nn.Module"),
        ({"extern_data": ["data"]}, "extern_data is a list, expected a dict"),
    ],
)
def test_error_of_a_session(options, message):
    options = {"model": Model(), "extern_data": EXTERN_DATA, **options}
    with pytest.raises((TypeError, ValueError), match=message):
        training.Session(options.pop("model"), **options)


def test_errors_of_session_methods(trained):
    session = trained["torch"][0]
    with pytest.raises(ValueError, match=r"'hiden.\*' matches no parameter; did you mean"):
        session.step(train_step, update="hiden.*")
    with pytest.raises(TypeError, match="'train' is no function step"):
        session.step("train")
    with pytest.raises(TypeError, match="called without a batch"):
        session.step(train_step)()
    with pytest.raises(ValueError, match="one batch at a time, got 2"):
        session.step(train_step, update=False)(BATCH, BATCH)
    with pytest.raises(ValueError, match="no parameter 'hidden.W'; did you mean"):
        session.set_parameters({"hidden.W": 1.0})
    with pytest.raises(ValueError, match=r"'hidden.bias' has the shape \[11\], got \[3\]"):
        session.set_parameters({"hidden.bias": numpy.zeros(3)})
