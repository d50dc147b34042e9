"""Update rules and their options against torch's optimizers and numpy, on both backends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, training

BACKENDS = ["tensorflow-net-dict", "torch"]
FEATURES = nn.FeatureDim("features", 3)
CLASSES = nn.FeatureDim("classes", 5)
TIME = nn.SpatialDim("time")
NAMES = ("linear.weight", "linear.bias", "norm.scale", "norm.bias")
START = {
    "linear.weight": numpy.random.RandomState(1).normal(size=(3, 5)),
    "linear.bias": numpy.random.RandomState(2).normal(size=5),
    "norm.scale": numpy.random.RandomState(3).normal(size=3),
    "norm.bias": numpy.random.RandomState(4).normal(size=3),
}
EXTERN_DATA = {"data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32")}
RATES = [0.1, 0.02, 0.05]


class Model(nn.Module):
    """parameters with and without weight decay"""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.linear = nn.Linear(FEATURES, CLASSES)


def train_step(*, model, extern_data, **_):
    out = model.linear(model.norm(extern_data["data"]))
    nn.reduce_sum(nn.square(nn.tanh(out)), axis=CLASSES).mark_as_loss("loss")


def mean_step(*, model, extern_data, **_):
    out = model.linear(model.norm(extern_data["data"]))
    square, sine = nn.square(out), nn.sin(out)
    nn.reduce_mean(square, axis=CLASSES).mark_as_loss("square", use_normalized_loss=True)
    per_seq = nn.reduce_sum(nn.reduce_sum(sine, axis=CLASSES), axis=TIME)
    per_seq.mark_as_loss("sine", use_normalized_loss=True, scale=0.5)
    nn.reduce_sum(nn.abs(out), axis=CLASSES).mark_as_loss("abs", scale=0.1)


def make_batch(num_seqs=4, seed=5):
    rng = numpy.random.RandomState(seed)
    lengths = numpy.array([6, 2, 5, 3][:num_seqs], dtype="int32")
    data = rng.normal(size=(num_seqs, lengths.max(), 3)).astype("float32")
    return {"data": data, "data:size1": lengths}


def sequences(batch, start, end):
    return {key: value[start:end] for key, value in batch.items()}


BATCH = make_batch()


def make_session(backend, optimizer, **options):
    session = training.Session(
        Model(), extern_data=EXTERN_DATA, optimizer=optimizer, backend=backend, **options
    )
    session.set_parameters(START)
    return session


def changing_rate(epoch, step):
    return RATES[step]


def assert_equal(ours, theirs, tolerance=1e-5):
    assert sorted(ours) == sorted(theirs)
    for path in theirs:
        numpy.testing.assert_allclose(ours[path], theirs[path], atol=tolerance, err_msg=path)


# --- torch's optimizers as reference


def torch_parameters():
    import torch

    return {p: torch.nn.Parameter(torch.tensor(v, dtype=torch.float32)) for p, v in START.items()}


def torch_loss(params, batch=BATCH):
    import torch

    x = torch.tensor(batch["data"])
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    x = (x - mean) / torch.sqrt(variance + 1e-6) * params["norm.scale"] + params["norm.bias"]
    out = x @ params["linear.weight"] + params["linear.bias"]
    mask = torch.arange(x.shape[1])[None] < torch.tensor(batch["data:size1"])[:, None]
    return (torch.tanh(out).square().sum(-1) * mask).sum()


def by_torch(make, *, clip=None):
    """the parameters after three steps of a torch optimizer, with :data:`RATES`"""

    params = torch_parameters()
    optimizer = make(params)
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        optimizer.zero_grad()
        torch_loss(params).backward()
        if clip:
            total = sum(param.grad.square().sum() for param in params.values()).sqrt()
            for param in params.values():
                param.grad *= min(1.0, clip / float(total))
        optimizer.step()
    return {path: param.detach().numpy() for path, param in params.items()}


def torch_optimizer(name, **options):
    def make(params):
        import torch

        return getattr(torch.optim, name)(list(params.values()), lr=1.0, **options)

    return make


def adamw_that_skips_norms_and_biases(params):
    import torch

    kinds = [
        {"params": [params["linear.weight"]], "weight_decay": 0.3},
        {"params": [params[path] for path in NAMES[1:]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(kinds, lr=1.0)


def adam_with_factors(params):
    import torch

    kinds = [
        {"params": [params["linear.weight"], params["linear.bias"]], "factor": 0.3},
        {"params": [params["norm.scale"], params["norm.bias"]]},
    ]
    return torch.optim.Adam(kinds, lr=1.0)


CASES = {
    "sgd": ({"class": "sgd"}, torch_optimizer("SGD")),
    "momentum": ({"class": "momentum"}, torch_optimizer("SGD", momentum=0.9)),
    "nesterov": (
        {"class": "SGD", "momentum": 0.7, "nesterov": True},
        torch_optimizer("SGD", momentum=0.7, nesterov=True),
    ),
    "adam": ({"class": "adam"}, torch_optimizer("Adam")),
    "adam-epsilon": (  # large, so that its place matters
        {"class": "adam", "epsilon": 0.1, "beta2": 0.9},
        torch_optimizer("Adam", eps=0.1, betas=(0.9, 0.9)),
    ),
    "adamw": ({"class": "adamw", "weight_decay": 0.3}, adamw_that_skips_norms_and_biases),
    "factors": ({"class": "adam", "learning_rate_multiplier": {"lin*": 0.3}}, adam_with_factors),
    "adagrad": ({"class": "adagrad"}, torch_optimizer("Adagrad")),
    "rmsprop": (
        {"class": "rmsprop", "momentum": 0.5, "decay": 0.9},
        torch_optimizer("RMSprop", momentum=0.5, alpha=0.9),
    ),
    "adadelta": ({"class": "adadelta"}, torch_optimizer("Adadelta")),
    "adamax": ({"class": "adamax"}, torch_optimizer("Adamax")),
}


CLIPPED = {"class": "sgd", "gradient_clip_global_norm": 0.5}


def write_references(file):
    """run in a process without TensorFlow, beside which torch.optim crashes"""
    values = {name: by_torch(make) for name, (_, make) in CASES.items()}
    values["clipped"] = by_torch(torch_optimizer("SGD"), clip=0.5)
    arrays = {f"{name}/{path}": v for name, case in values.items() for path, v in case.items()}
    numpy.savez(file, **arrays)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    file = tmp_path_factory.mktemp("references") / "references.npz"
    code = f"import runpy; runpy.run_path({__file__!r})['write_references']({str(file)!r})"
    path = os.pathsep.join([str(Path(nn.__file__).parent.parent.parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
    return dict(numpy.load(file))


def of_case(references, name):
    return {path: references[f"{name}/{path}"] for path in START}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_rule_equals_the_optimizer_of_torch(references, backend, name):
    optimizer, _ = CASES[name]
    session = make_session(backend, optimizer, learning_rate=changing_rate)
    train = session.step(train_step)
    for _ in RATES:
        train(BATCH)
    assert_equal(session.parameters, of_case(references, name), 5e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clipping_by_the_global_norm(references, backend):
    session = make_session(backend, CLIPPED, learning_rate=changing_rate)
    train = session.step(train_step)
    for _ in RATES:
        train(BATCH)
    assert_equal(session.parameters, of_case(references, "clipped"))


def gradients_by_torch(batch=BATCH):
    params = torch_parameters()
    torch_loss(params, batch).backward()
    return {path: param.grad.numpy() for path, param in params.items()}


def test_nadam():
    """RETURNN's: the kernel ResourceApplyAdam with use_nesterov, here with numpy"""
    gradients = gradients_by_torch()
    expected = {}
    for path, grad in gradients.items():
        m, v = 0.1 * grad, 0.001 * grad**2
        rate = 0.1 * numpy.sqrt(1 - 0.999) / (1 - 0.9)
        expected[path] = START[path] - rate * (0.9 * m + 0.1 * grad) / numpy.sqrt(v)
    for backend in BACKENDS:
        session = make_session(backend, {"class": "nadam", "epsilon": 1e-16}, learning_rate=0.1)
        session.step(train_step)(BATCH)
        assert_equal(session.parameters, expected)


# --- rules of one's own


def sign(x):
    return nn.cast(x > 0.0, "float32") - nn.cast(x < 0.0, "float32")


class Lion(training.UpdateRule):
    """Lion (https://arxiv.org/abs/2302.06675, Algorithm 2)"""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.99):
        self.beta1, self.beta2 = beta1, beta2

    def initial_state(self, param):
        return {"momentum": nn.zeros_like(param)}

    def update(self, param, gradient, state):
        momentum = state["momentum"]
        direction = sign(self.beta1 * momentum + (1 - self.beta1) * gradient)
        momentum = self.beta2 * momentum + (1 - self.beta2) * gradient
        return param - self.learning_rate * direction, {"momentum": momentum}


class Rows(training.UpdateRule):
    """the mean square of each row only, and a count: state of other shapes than the parameter's"""

    def initial_state(self, param):
        last = param.dims[-1] if param.dims[-1] == CLASSES else param.dims[0]
        return {"rows": nn.reduce_sum(nn.zeros_like(param), axis=last)}

    def update(self, param, gradient, state):
        last = param.dims[-1] if param.dims[-1] == CLASSES else param.dims[0]
        rows = state["rows"] + nn.reduce_mean(nn.square(gradient), axis=last)
        return param - self.learning_rate / self.step * gradient / nn.sqrt(rows), {"rows": rows}


@pytest.mark.parametrize("backend", BACKENDS)
def test_lion_in_nn_operations_equals_numpy(backend):
    optimizer = {"class": Lion, "beta1": 0.8, "weight_decay": 0.2}
    session = make_session(backend, optimizer, learning_rate=changing_rate)
    train = session.step(train_step)
    momentum = {path: numpy.zeros_like(value) for path, value in START.items()}
    expected = dict(START)
    for rate in RATES:
        gradients = session.gradients(train, BATCH)
        train(BATCH)
        for path, gradient in gradients.items():
            keep = 1 - rate * 0.2 if path == "linear.weight" else 1
            direction = numpy.sign(0.8 * momentum[path] + 0.2 * gradient)
            expected[path] = expected[path] * keep - rate * direction
            momentum[path] = 0.99 * momentum[path] + 0.01 * gradient
    assert_equal(session.parameters, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_of_another_shape(backend):
    session = make_session(backend, Rows(), learning_rate=0.1)
    train = session.step(train_step, update="linear.weight")
    value, rows = START["linear.weight"], 0.0
    for step in (1, 2):
        gradient = session.gradients(train, BATCH)["linear.weight"]
        train(BATCH)
        rows = rows + (gradient**2).mean(axis=-1, keepdims=True)
        value = value - 0.1 / step * gradient / numpy.sqrt(rows)
    numpy.testing.assert_allclose(session.parameters["linear.weight"], value, atol=2e-6)


# --- several batches


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [train_step, mean_step], ids=["sum", "mean"])
def test_four_sequences_are_two_and_two(backend, step):
    together = make_session(backend, {"class": "sgd"}, learning_rate=0.1)
    parts = make_session(backend, {"class": "sgd"}, learning_rate=0.1)
    train, train_parts = together.step(step), parts.step(step)
    for _ in range(2):
        losses = train(BATCH)
        losses_of_parts = train_parts(sequences(BATCH, 0, 1), sequences(BATCH, 1, 4))
        assert list(losses) == list(losses_of_parts)
        for name, loss in losses.items():
            assert losses_of_parts[name] == pytest.approx(loss, rel=1e-6)
            assert losses_of_parts[name].frames == loss.frames
    assert_equal(parts.parameters, together.parameters, 1e-6)
    assert parts.global_train_step == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_apply(backend):
    session = make_session(backend, {"class": "adam"}, learning_rate=0.1)
    direct = make_session(backend, {"class": "adam"}, learning_rate=0.1)
    train, train_directly = session.step(train_step), direct.step(train_step)
    gradients = session.gradients(train, BATCH)
    assert_equal(gradients, gradients_by_torch(), 1e-5)
    assert session.global_train_step == 0
    for _ in range(2):
        session.apply(session.gradients(train, BATCH))
        train_directly(BATCH)
    assert_equal(session.parameters, direct.parameters, 1e-7)
    session.apply({"linear.bias": numpy.ones(5)})
    assert session.global_train_step == 3
    with pytest.raises(ValueError, match="no trained parameter 'linear.b'; did you mean"):
        session.apply({"linear.b": numpy.ones(5)})
    with pytest.raises(ValueError, match=r"'linear.bias' has the shape \[5\], got \[3\]"):
        session.apply({"linear.bias": numpy.ones(3)})
    with pytest.raises(ValueError, match="was made with update=False"):
        session.gradients(session.step(train_step, update=False), BATCH)


# --- several optimizers, frozen parameters


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_optimizers_count_for_themselves(backend):
    """Adam's bias correction follows the updates of the parameter, not of the session"""
    optimizer = [
        {"class": "adam", "parameters": "linear.*"},
        {"class": "sgd", "parameters": ["norm.scale", "norm.bias"]},
    ]
    session = make_session(backend, optimizer, learning_rate=0.1)
    linear, norm = (session.step(train_step, update=p) for p in ("linear.*", "norm.*"))
    norm(BATCH)
    gradients = gradients_by_torch()
    scale = START["norm.scale"] - 0.1 * gradients["norm.scale"]
    numpy.testing.assert_allclose(session.parameters["norm.scale"], scale, atol=2e-6)
    gradient = session.gradients(linear, BATCH)["linear.bias"]
    linear(BATCH)  # the first step of Adam goes by the sign
    bias = START["linear.bias"] - 0.1 * numpy.sign(gradient)
    numpy.testing.assert_allclose(session.parameters["linear.bias"], bias, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_parameters_stay(backend):
    model = Model()
    model.linear.weight.trainable = False
    session = training.Session(model, extern_data=EXTERN_DATA, backend=backend)
    session.set_parameters(START)
    session.step(train_step)(BATCH)
    after = session.parameters
    start = START["linear.weight"].astype("float32")
    numpy.testing.assert_array_equal(after["linear.weight"], start)
    assert not numpy.allclose(after["linear.bias"], START["linear.bias"])


def test_weight_decay_of_a_parameter_counts_before_the_option():
    model = Model()
    model.norm.scale.weight_decay = 0.5
    optimizer = {"class": "sgd", "weight_decay": 0.1}
    session = training.Session(model, extern_data=EXTERN_DATA, optimizer=optimizer, backend="torch")
    (group,) = session._groups
    decays = dict(zip(group.paths, group.weight_decays))
    assert decays == {"linear.weight": 0.1, "norm.scale": 0.5, "linear.bias": 0, "norm.bias": 0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_norm_of_gradients_that_is_not_finite(backend):
    def root(*, model, extern_data, **_):
        total = nn.reduce_sum(model.linear.weight * 0.0, axis=[FEATURES, CLASSES])
        nn.sqrt(total).mark_as_loss("root")

    optimizer = {"class": "sgd", "gradient_clip_global_norm": 1.0}
    session = make_session(backend, optimizer)
    with pytest.raises(FloatingPointError, match=r"updates.py:\d+: the norm of the gradients is"):
        session.step(root)(BATCH)
    assert_equal(session.parameters, START, 1e-6)


OPTIMIZER_ERRORS = [
    ("adm", "there is no optimizer 'adm'; did you mean 'adam'"),
    ({"class": "adam", "eps": 1e-8}, "Adam has no option 'eps'"),
    ({"class": "adam", "betta1": 0.5}, "no option 'betta1'; did you mean 'beta1'"),
    ({"clas": "adam"}, "expected a dict such as"),
    ({"class": dict}, "expected a name or a training.UpdateRule"),
    ({"class": "adam", "gradient_clip_global_norm": -1}, "expected a positive number"),
    (
        {"class": "adam", "learning_rate_multiplier": {"lin.*": 2}},
        "the pattern 'lin.*' matches no parameter",
    ),
    ([{"class": "adam", "parameters": "norm.*"}], "'linear.weight' has no optimizers"),
    (["adam", "sgd"], "has 2 optimizers, expected one"),
]


@pytest.mark.parametrize(("optimizer", "message"), OPTIMIZER_ERRORS)
def test_error_of_an_optimizer(optimizer, message):
    with pytest.raises((TypeError, ValueError), match=message.replace("*", r"\*")):
        training.Session(Model(), extern_data=EXTERN_DATA, optimizer=optimizer, backend="torch")
