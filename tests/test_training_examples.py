"""The examples of training do what their pages say, on both backends."""

from __future__ import annotations

import collections
import itertools
import runpy
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, training
from returnn_common.training import checkpoints

ROOT = Path(__file__).parent.parent
BACKENDS = ["tensorflow-net-dict", "torch"]
RATES = [0.1, 0.02, 0.05, 0.01]


def example(name):
    """the names of the module"""
    if name == "minimum_wer":
        pytest.importorskip("jiwer")
    return runpy.run_path(str(ROOT / f"examples/training/{name}.py"))


def results_of(name, **options):
    main = example(name)["main"]
    return [main(backend, **options) for backend in BACKENDS]


def test_align_then_train():
    layers, torch = results_of("align_then_train", num_epochs=2)
    numpy.testing.assert_allclose(layers, torch, atol=0.01)
    assert layers[0] < 0.8 and layers[-1] > 0.95


def test_gan():
    layers, torch = results_of("gan", num_steps=300)
    numpy.testing.assert_allclose(layers, torch, atol=0.01)
    assert numpy.abs(layers - [2.0, -1.0]).max() < 1.0  # it begins at 0, 0


@pytest.mark.slow
def test_maml():
    layers, torch = results_of("maml", num_steps=2)
    numpy.testing.assert_allclose(layers, torch, rtol=0.01)
    assert layers[1] != layers[0]


@pytest.mark.slow
def test_maml_learns():
    main = example("maml")["main"]
    before, after = main("torch")
    assert after < 0.5 * before


def test_reinforce():
    layers, torch = results_of("reinforce", num_steps=60)
    for rewards in (layers, torch):
        assert numpy.mean(rewards[:3]) < 0.4 and numpy.mean(rewards[-5:]) > 0.8


# --- supervised


def test_supervised(tmp_path):
    """started on layers, gone on with torch"""
    main = example("supervised")["main"]
    layers, torch = BACKENDS
    lines, _ = main(layers, num_epochs=2, folder=tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2]
    lines, rate = main(torch, num_epochs=4, folder=tmp_path)
    assert [line["global_train_step"] for line in lines] == [25, 50, 75, 100]
    assert lines[2]["train"]["ctc"] < 0.5 * lines[0]["train"]["ctc"]
    assert rate < 0.25
    losses = {25 * line["epoch"]: line["dev"]["ctc"] for line in lines}
    kept = {100, *sorted(losses, key=losses.get)[:2]}
    assert [path.name for path in checkpoints.paths(tmp_path)] == [
        f"step-{step:08d}" for step in sorted(kept)
    ]


# --- minimum word error rate


@pytest.mark.parametrize("backend", BACKENDS)
def test_expected_errors_by_hand(backend):
    """probabilities 1/16, 2/16, 5/16, 8/16 of 0, 1, 4, 2 errors: expected are 38/16, the mean is 7/4"""
    names = example("minimum_wer")
    model = nn.Module()
    model.scores = nn.Parameter([names["BEST"]])
    errors = {"errors": names["EXTERN_DATA"]["errors"]}

    def step(*, model, extern_data, **_):
        loss = names["expected_errors"](model.scores, extern_data["errors"])
        loss.mark_as_loss("expected_errors", use_normalized_loss=True)

    session = training.Session(model, extern_data=errors, backend=backend)
    session.set_parameters({"scores": numpy.log([1.0, 2.0, 5.0, 8.0])})
    train, batch = session.step(step), {"errors": numpy.array([[0, 1, 4, 2]], dtype="float32")}
    gradients = session.gradients(train, batch)["scores"] * 16
    numpy.testing.assert_allclose(gradients, [-2.375, -2.75, 8.125, -3.0], rtol=1e-5)
    assert train(batch)["expected_errors"] == pytest.approx(38 / 16 - 7 / 4, rel=1e-5)


def test_search_finds_the_most_probable_labels():
    """all paths of four frames enumerated; the beam is wide enough for no search error"""
    names = example("minimum_wer")
    probabilities = numpy.random.RandomState(3).dirichlet(numpy.full(5, 0.4), size=4)
    sums = collections.Counter()
    for path in itertools.product(range(5), repeat=4):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != names["BLANK"])
        sums[labels] += numpy.prod(probabilities[numpy.arange(4), path])
    best = [labels for labels, _ in sums.most_common(names["NUM_BEST"])]
    assert names["search"](probabilities) == best


def test_num_errors():
    num_errors = example("minimum_wer")["num_errors"]
    assert num_errors([0, 1, 2], (0, 3, 2)) == 1
    assert num_errors([0, 1, 2], ()) == 3
    assert num_errors([0, 1], (3, 0, 1, 2)) == 2


def test_minimum_wer_on_both_backends():
    layers, torch = results_of("minimum_wer", num_ctc_epochs=1, num_epochs=1)
    for one, other in zip(layers, torch, strict=True):
        assert one == pytest.approx(other, abs=0.005)


def test_minimum_wer_makes_fewer_errors():
    rates = example("minimum_wer")["main"]("torch", num_ctc_epochs=6, num_epochs=3)
    before, after = rates[5], rates[8]
    assert after["wer"] < 0.85 * before["wer"] and after["expected"] < 0.95 * before["expected"]


# --- a stream without end


@pytest.mark.parametrize("backend", BACKENDS)
def test_endless_stream_goes_on_where_it_was(backend, tmp_path):
    main = example("endless_stream")["main"]
    main.__globals__["EVERY"] = 10
    undisturbed = main(backend, max_steps=30, folder=tmp_path / "undisturbed")
    main(backend, max_steps=17, folder=tmp_path / "left")  # saved at 10
    lines = main(backend, max_steps=30, folder=tmp_path / "left")
    assert [line["global_train_step"] for line in lines] == [10, 20, 30]
    for line, other in zip(lines, undisturbed, strict=True):
        assert {**line, "seconds": 0} == {**other, "seconds": 0}
    last, other = (checkpoints.last(tmp_path / name) for name in ("left", "undisturbed"))
    parameters = checkpoints.read_parameters(other)
    assert last.name == other.name == "step-00000030"
    for name, value in checkpoints.read_parameters(last).items():
        numpy.testing.assert_array_equal(value, parameters[name], err_msg=name)


def test_endless_stream_lowers_the_learning_rate_and_stops(tmp_path):
    main = example("endless_stream")["main"]
    main.__globals__.update(EVERY=20, PATIENCE=2, MIN_DELTA=0.01)
    lines = main("torch", folder=tmp_path)
    losses = [line["dev"]["ce"] for line in lines]
    assert min(losses) < 0.3 * losses[0]
    best, without = numpy.inf, [0]
    for loss in losses:
        without.append(0 if loss < best - 0.01 else without[-1] + 1)
        best = best if without[-1] else loss
    assert without[-1] == 2 and max(without[:-1]) == 1
    rates = [0.01]
    for old, new in zip(losses, losses[1:]):
        rates.append(rates[-1] * (0.5 if (new - old) / new > -0.01 else 1.0))
    assert [line["learning_rate"] for line in lines] == [0.01, *rates[:-1]]
    assert rates[-1] < 0.01
    assert main("torch", folder=tmp_path) == lines  # nothing is left to do


# --- a custom optimizer


@pytest.mark.parametrize("backend", BACKENDS)
def test_lion_equals_numpy(backend):
    names = example("lion")
    optimizer = {"class": names["Lion"], "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1}
    session = training.Session(
        nn.Linear(names["X"], names["Y"]),
        extern_data=names["EXTERN_DATA"],
        optimizer=optimizer,
        learning_rate=lambda epoch, step: RATES[step],
        backend=backend,
    )
    train = session.step(names["train_step"])
    values = {name: value.astype("float64") for name, value in session.parameters.items()}
    momenta = dict.fromkeys(values, 0.0)
    for step, rate in enumerate(RATES):
        batch = names["make_batch"](step)
        batch["x"][:, 2] = 0.0  # no gradient: the sign is zero
        for name, gradient in session.gradients(train, batch).items():
            decay = 0.1 if name == "weight" else 0.0  # biases do not decay
            sign = numpy.sign(0.8 * momenta[name] + 0.2 * gradient)
            values[name] -= rate * (sign + decay * values[name])
            momenta[name] = 0.95 * momenta[name] + 0.05 * gradient
        train(batch)
        for name, value in session.parameters.items():
            numpy.testing.assert_allclose(value, values[name], atol=1e-6, err_msg=name)


def test_lion_learns():
    layers, torch = results_of("lion", num_steps=100)
    assert layers == pytest.approx(torch, rel=1e-3)
    assert layers["lion"] < 4.0  # the noise is 0.03, the start above 10


def test_lion_of_the_docs_is_that_of_the_example():
    text = (ROOT / "examples/training/lion.py").read_text(encoding="utf-8")
    source = text[text.index("class Lion") : text.index("def train_step")].strip()
    assert source in (ROOT / "docs/training.md").read_text(encoding="utf-8")


# --- a network that grows


def outputs_step_of(names):
    def step(*, model, extern_data, **_):
        for num_layers in (1, 2):
            logits = model(extern_data["data"], num_layers=num_layers)
            dims = [nn.batch_dim, names["TIME"], names["TAGS"]]
            logits.mark_as_output(f"with_{num_layers}", shape=dims)

    return step


@pytest.mark.parametrize("backend", BACKENDS)
def test_growing_changes_no_output_and_goes_on(backend, tmp_path):
    names = example("growing")
    batches = list(names["batches"](1, 8))

    def make_session():
        return training.Session(
            names["Model"](),
            extern_data=names["EXTERN_DATA"],
            learning_rate=0.005,
            backend=backend,
        )

    session = make_session()
    train = session.step(names["step_with"](1))
    for batch in batches:
        train(batch)
    outputs = session.step(outputs_step_of(names), update=False)(batches[0])
    numpy.testing.assert_allclose(outputs["with_2"], outputs["with_1"], atol=1e-5)
    assert numpy.abs(outputs["with_1"]).max() > 0.5
    session.save(tmp_path)
    resumed = make_session()
    assert resumed.resume(tmp_path)
    for one in (session, resumed):
        train = one.step(names["step_with"](2))
        losses = [float(train(batches[0])["ce"]) for _ in range(10)]
        assert max(losses) <= losses[0] + 0.01 and losses[-1] < 0.95 * losses[0]
    for name, value in session.parameters.items():
        numpy.testing.assert_array_equal(value, resumed.parameters[name], err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_growing_goes_on_improving(backend):
    main = example("growing")["main"]
    main.__globals__["NUM_LAYERS"] = 2
    smaller, larger = main(backend, epochs_each=1)
    assert [smaller["layers"], larger["layers"]] == [1, 2]
    assert larger["before"] == pytest.approx(smaller["after"], abs=1e-5)
    assert larger["after"] < 0.9 * larger["before"]


def test_growing_by_another_session(tmp_path):
    names = example("growing")
    batch = next(names["batches"](1))

    def make_session(num_layers):
        names["main"].__globals__["NUM_LAYERS"] = num_layers
        return training.Session(
            names["Model"](), extern_data=names["EXTERN_DATA"], backend="torch", seed=num_layers
        )

    small, large = make_session(1), make_session(2)
    train, loss = small.step(names["step_with"](1)), large.step(names["step_with"](2), update=False)
    train(batch)
    large.load(small.save(tmp_path), strict=False)
    assert loss(batch)["ce"] == pytest.approx(train(batch)["ce"], abs=1e-5)


# --- the page


def test_each_example_is_on_the_pages():
    for page in ("examples", "training"):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        for file in (ROOT / "examples/training").glob("*.py"):
            assert f"examples/training/{file.name}" in text
