"""CTC, greedy decoding, control flow and SpecAugment-like randomness on both backends."""

from __future__ import annotations

import itertools

import numpy
import pytest

from returnn_common import nn, testing
from returnn_common.nn import _names

NUM_LABELS, BLANK = 3, 3


@pytest.fixture
def dims():
    class Dims:
        time = nn.SpatialDim("time")
        labels_time = nn.SpatialDim("labels_time")
        classes = nn.FeatureDim("classes", NUM_LABELS + 1)
        labels = nn.FeatureDim("labels", NUM_LABELS)

    Dims.data = {"data": nn.Tensor("data", [nn.batch_dim, Dims.time, Dims.classes], "float32")}
    Dims.labelled = {
        **Dims.data,
        "classes": nn.Tensor(
            "classes", [nn.batch_dim, Dims.labels_time], "int32", sparse_dim=Dims.labels
        ),
    }
    return Dims


class Bias(nn.Module):
    """something to train, so that gradients can be compared"""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter([dim])


def ctc_batch(lengths=(5, 3, 4), labels=((0, 1), (), (2, 2))):
    rng = numpy.random.RandomState(4)
    data = {"data": rng.normal(size=(len(lengths), max(lengths), NUM_LABELS + 1)).astype("float32")}
    padded = numpy.zeros((len(labels), max(map(len, labels))), dtype="int32")
    for row, sequence in zip(padded, labels):
        row[: len(sequence)] = sequence
    return {**data, "data:size1": numpy.array(lengths, dtype="int32"), "classes": padded,
            "classes:size1": numpy.array([len(s) for s in labels], dtype="int32")}  # fmt: skip


def ctc_by_enumeration(logits, labels):
    """-log of the sum over all paths of labels and blanks that collapse to ``labels``"""
    log_probs = logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))
    total = 0.0
    for path in itertools.product(range(NUM_LABELS + 1), repeat=len(logits)):
        collapsed = tuple(label for label, _ in itertools.groupby(path) if label != BLANK)
        if collapsed == tuple(labels):
            total += numpy.exp(sum(log_probs[t, label] for t, label in enumerate(path)))
    return -numpy.log(total)


def ctc_step(dims, *, normalize=False):
    def step(*, model, extern_data, **_):
        loss = nn.ctc_loss(
            logits=extern_data["data"] + model.bias,
            targets=extern_data["classes"],
            input_spatial_dim=dims.time,
            targets_spatial_dim=dims.labels_time,
            blank_index=BLANK,
        )
        norm = {
            "custom_inv_norm_factor": dims.labels_time.get_size_tensor(),
            "use_normalized_loss": True,
        }
        loss.mark_as_loss(**(norm if normalize else {}))

    return step


def test_ctc_equals_the_sum_over_all_paths(dims):
    data = ctc_batch()
    model = Bias(dims.classes)
    lowered = nn.lower(model, ctc_step(dims), dims.labelled)
    parameters = testing.random_parameters(model)
    result = testing.run_layers(lowered, data, parameters=parameters)
    expected = sum(
        ctc_by_enumeration(data["data"][i, :length] + parameters["bias"], data["classes"][i, :num])
        for i, (length, num) in enumerate(zip(data["data:size1"], data["classes:size1"]))
    )
    numpy.testing.assert_allclose(result.values["ctc"], expected, rtol=1e-5)


def test_ctc_agrees_with_torch(dims):
    testing.assert_backends_agree(
        lambda: Bias(dims.classes), ctc_step(dims), dims.labelled, ctc_batch()
    )


def test_ctc_with_only_empty_targets(dims):
    data = ctc_batch(labels=((), (), ()))
    testing.assert_backends_agree(lambda: Bias(dims.classes), ctc_step(dims), dims.labelled, data)


def test_ctc_target_that_does_not_fit_counts_nothing(dims):
    data = ctc_batch(
        lengths=(3, 1, 2), labels=((0, 1), (0, 1), (2, 2))
    )  # 2, 2 needs a blank between
    alone = {key: value[:1] for key, value in data.items()}
    model = Bias(dims.classes)
    lowered, parameters = (
        nn.lower(model, ctc_step(dims), dims.labelled),
        testing.random_parameters(model),
    )
    together = testing.run_layers(lowered, data, parameters=parameters, gradients=True)
    single = testing.run_layers(lowered, alone, parameters=parameters, gradients=True)
    numpy.testing.assert_allclose(together.values["ctc"], single.values["ctc"], rtol=1e-5)
    numpy.testing.assert_allclose(
        together.gradients["bias"], single.gradients["bias"], rtol=1e-4, atol=1e-6
    )
    testing.assert_backends_agree(lambda: Bias(dims.classes), ctc_step(dims), dims.labelled, data)


def test_ctc_blank_need_not_be_last(dims):
    def step(*, model, extern_data, **_):
        labels = nn.set_sparse_dim(extern_data["classes"] + 1, dims.classes)
        nn.ctc_loss(logits=extern_data["data"] + model.bias, targets=labels, input_spatial_dim=dims.time,
                    targets_spatial_dim=dims.labels_time, blank_index=0).mark_as_loss()  # fmt: skip

    testing.assert_backends_agree(lambda: Bias(dims.classes), step, dims.labelled, ctc_batch())


def test_ctc_normalised_by_target_length(dims):
    """reported and optimised: sum of losses over sum of target lengths"""
    data, model = ctc_batch(), Bias(dims.classes)
    parameters = testing.random_parameters(model)
    plain = testing.run_layers(
        nn.lower(model, ctc_step(dims), dims.labelled), data, parameters=parameters, gradients=True)  # fmt: skip
    lowered = nn.lower(model, ctc_step(dims, normalize=True), dims.labelled)
    normed = testing.run_layers(lowered, data, parameters=parameters, gradients=True)
    num_labels = int(data["classes:size1"].sum())
    numpy.testing.assert_allclose(
        normed.gradients["bias"], plain.gradients["bias"] / num_labels, rtol=1e-5
    )
    with testing.layers_session(lowered) as (net, session):
        testing.set_layer_parameters(lowered, net, session, parameters)
        losses, _, _ = net.get_losses_initialized(with_total=False)
        (holder,) = losses.values()
        feed = testing.feed_dict(net, data)
        value, factor = session.run(
            [holder.get_loss_value(), holder.get_norm_factor()], feed_dict=feed
        )
    numpy.testing.assert_allclose(value * factor, plain.values["ctc"] / num_labels, rtol=1e-5)
    testing.assert_backends_agree(
        lambda: Bias(dims.classes), ctc_step(dims, normalize=True), dims.labelled, data
    )


def test_ctc_bad_input(dims):
    def step(blank, time_dim):
        def run(*, model, extern_data, **_):
            nn.ctc_loss(logits=extern_data["data"], targets=extern_data["classes"], input_spatial_dim=time_dim,
                        targets_spatial_dim=dims.labels_time, blank_index=blank).mark_as_loss()  # fmt: skip

        return run

    model = Bias(dims.classes)
    with pytest.raises(ValueError, match="blank_index 4 is outside the 4 classes"):
        nn.lower(model, step(4, dims.time), dims.labelled)
    with pytest.raises(ValueError, match="is not among the dims .* of the logits"):
        nn.lower(model, step(BLANK, dims.labels_time), dims.labelled)


def decode_step(dims):
    def step(*, model, extern_data, **_):
        labels, labels_dim = nn.ctc_greedy_decode(
            extern_data["data"], in_spatial_dim=dims.time, blank_index=BLANK, target_dim=dims.labels)  # fmt: skip
        labels.mark_as_output("labels", shape=[nn.batch_dim, labels_dim])

    return step


def test_greedy_decoding_collapses(dims):
    paths = [
        [3, 0, 0, 3, 0, 1],
        [2, 2, 2, 3, 1, 1],
        [3, 3, 0, 0, 0, 0],
    ]  # the last has only two frames
    lengths, expected = [6, 4, 2], [[0, 0, 1], [2], []]
    data = {
        "data": numpy.eye(NUM_LABELS + 1, dtype="float32")[paths],
        "data:size1": numpy.array(lengths, dtype="int32"),
    }
    lowered = nn.lower(Bias(dims.classes), decode_step(dims), dims.data, task="forward")
    layers = testing.run_layers(lowered, data)
    torch = testing.run_torch(
        lambda: Bias(dims.classes), decode_step(dims), dims.data, data, task="forward"
    )
    for result in (layers, torch):
        got = [
            row[:n].tolist() for row, n in zip(result.values["labels"], result.lengths["labels"][1])
        ]
        assert got == expected


# --- control flow


def test_cond_runs_one_branch(dims):
    def step(*, model, extern_data, **_):
        x = extern_data["data"] + model.bias
        positive = nn.reduce_sum(x, axis=list(x.dims)) > 0.0
        y, z = nn.cond(positive, lambda: (x * 2.0, nn.square(x)), lambda: (x - 1.0, x))
        nn.reduce_sum(y * z, axis=dims.classes).mark_as_loss()

    for sign in (1.0, -1.0):
        data = {**ctc_batch(), "data": sign * numpy.abs(ctc_batch()["data"])}
        testing.assert_backends_agree(lambda: Bias(dims.classes), step, dims.data, data)


def test_cond_with_parameters_inside(dims):
    def step(*, model, extern_data, **_):
        x = extern_data["data"]
        positive = nn.reduce_sum(x, axis=list(x.dims)) > 0.0
        nn.reduce_sum(
            nn.cond(positive, lambda: nn.square(model(x)), lambda: model(x)), axis=dims.labels
        ).mark_as_loss()

    data = {**ctc_batch(), "data": numpy.abs(ctc_batch()["data"])}
    testing.assert_backends_agree(
        lambda: nn.Linear(dims.classes, dims.labels), step, dims.data, data
    )


def test_while_loop(dims):
    """doubles until the sum is above a limit; at once above it gives the start"""

    def step(*, model, extern_data, **_):
        x = nn.reduce_sum(
            nn.square(extern_data["data"] + model.bias), axis=list(extern_data["data"].dims)
        )
        nn.while_loop(lambda s: s < 100.0, lambda s: s * 2.0, x).mark_as_output("out", shape=[])

    for scale in (1.0, 100.0):
        data = {**ctc_batch(), "data": scale * ctc_batch()["data"]}
        result = testing.assert_backends_agree(
            lambda: Bias(dims.classes), step, dims.data, data, task="forward"
        )
        assert result.values["out"] >= 100.0 and (scale == 100.0 or result.values["out"] < 200.0)


def test_scan_over_time_with_parameters_inside(dims):
    """a simple recurrent net h' = tanh(W x + U h), against a loop in numpy"""

    class Rnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.FeatureDim("hidden", 2)
            self.before = nn.FeatureDim("before", 2)
            self.input = nn.Linear(dims.classes, self.hidden)
            self.recurrent = nn.Linear(self.before, self.hidden, with_bias=False)

        def step(self, x, h):
            h_before, _ = nn.replace_dim(h, in_dim=self.hidden, out_dim=self.before)
            h = nn.tanh(self.input(x) + self.recurrent(h_before))
            return h, h

        def __call__(self, x):
            start = nn.zeros([nn.batch_dim, self.hidden])
            return nn.scan(self.step, spatial_dim=dims.time, xs=x, initial=start)

    def step(*, model, extern_data, **_):
        y, _ = model(extern_data["data"])
        y.mark_as_output("out", shape=[nn.batch_dim, dims.time, model.hidden])

    data, model = ctc_batch(), Rnn()
    parameters = testing.random_parameters(model, scale=0.5)
    lowered = nn.lower(model, step, dims.data, task="forward")
    result = testing.run_layers(lowered, data, parameters=parameters)
    for i, length in enumerate(data["data:size1"]):
        h = numpy.zeros(2)
        for t in range(length):
            x = data["data"][i, t] @ parameters["input.weight"] + parameters["input.bias"]
            h = numpy.tanh(x + h @ parameters["recurrent.weight"])
            numpy.testing.assert_allclose(result.values["out"][i, t], h, rtol=1e-5, atol=1e-6)


def test_scan_with_a_given_state_gives_outputs_and_the_last_state(dims):
    """y_t = h_t = h_{t-1} / 2 + x_t, h_0 from the data; the last state is that at the sequence's end"""
    data = {**ctc_batch(), "start": numpy.arange(12, dtype="float32").reshape(3, 4)}
    start = nn.Tensor("start", [nn.batch_dim, dims.classes], "float32")

    def halve(x, h):
        h = h * 0.5 + x
        return h, h

    def step(*, model, extern_data, **_):
        x, h = extern_data["data"], extern_data["start"]
        y, last = nn.scan(halve, spatial_dim=dims.time, xs=x, initial=h)
        y.mark_as_output("a", shape=[nn.batch_dim, dims.time, dims.classes])
        last.mark_as_output("b", shape=[nn.batch_dim, dims.classes])

    extern_data = {**dims.data, "start": start}
    result = testing.assert_backends_agree(
        lambda: Bias(dims.classes), step, extern_data, data, task="forward"
    )
    for i, length in enumerate(data["data:size1"]):
        h = data["start"][i]
        for x in data["data"][i, :length]:
            h = h * 0.5 + x
        numpy.testing.assert_allclose(result.values["b"][i], h, rtol=1e-5)


def test_a_tensor_used_outside_of_its_branch_is_named(dims):
    def step(*, model, extern_data, **_):
        inside = []
        nn.cond(
            nn.reduce_sum(model.bias, axis=dims.classes) > 0.0,
            lambda: inside.append(model.bias * 2.0),
            lambda: None,
        )
        nn.reduce_sum(inside[0] * 3.0 + extern_data["data"], axis=dims.classes).mark_as_loss()

    with pytest.raises(ValueError, match="used outside the branch or loop that computes it"):
        nn.lower(Bias(dims.classes), step, dims.data)


def test_assign_updates_a_parameter(dims):
    def step(*, model, extern_data, **_):
        model.bias.assign(model.bias + 1.0)
        nn.reduce_sum(extern_data["data"] + model.bias, axis=dims.classes).mark_as_loss()

    model = Bias(dims.classes)
    lowered = nn.lower(model, step, dims.data)
    data = ctc_batch()
    with testing.layers_session(lowered) as (net, session):
        testing.set_layer_parameters(
            lowered, net, session, {"bias": numpy.arange(4, dtype="float32")}
        )
        losses, _, _ = net.get_losses_initialized(with_total=False)
        (holder,) = losses.values()
        fetches = [
            holder.get_loss_value(),
            *(layer.output.placeholder for layer in net.get_output_layers()),
        ]
        value = session.run(fetches, feed_dict=testing.feed_dict(net, data))[0]
        (variable,) = net.get_params_list()
        numpy.testing.assert_array_equal(session.run(variable), numpy.arange(4) + 1.0)
    frames = sum(data["data"][i, :n].sum() + n * 10.0 for i, n in enumerate(data["data:size1"]))
    numpy.testing.assert_allclose(value, frames, rtol=1e-5)


# --- names and forms


def test_a_dim_without_lengths_is_named(dims):
    def step(*, extern_data, **_):
        nn.pool1d(
            extern_data["data"],
            mode="max",
            pool_size=2,
            padding="same",
            in_spatial_dim=dims.time,
            out_spatial_dim=nn.SpatialDim("half"),
        )

    with pytest.raises(ValueError, match="the lengths of Dim.'half'.* are not known"):
        nn.lower(Bias(dims.classes), step, dims.data)


def test_extern_data_by_name(dims):
    def step(**_):
        nn.reduce_sum(nn.extern_data("data"), axis=dims.classes).mark_as_loss()

    lowered = nn.lower(Bias(dims.classes), step, dims.data)
    assert lowered.network["sum"]["from"] == "data:data"
    with pytest.raises(KeyError, match="no 'date'; did you mean 'data'?"):
        nn.lower(Bias(dims.classes), lambda **_: nn.extern_data("date"), dims.data)
    with pytest.raises(RuntimeError, match="outside a step"):
        nn.extern_data("data")


def test_dims_that_stand_for_others(dims):
    x = nn.Tensor("x", [nn.batch_dim, dims.time, dims.classes], "float32", feature_dim=dims.classes)
    assert _names.resolve_dim(x, nn.any_feature_dim) is dims.classes
    assert _names.resolve_dim(x, nn.any_spatial_dim) is dims.time
    with pytest.raises(ValueError, match="has 0 spatial dims"):
        _names.resolve_dim(nn.Tensor("x", [nn.batch_dim], "float32"), nn.any_spatial_dim)
    with pytest.raises(ValueError, match="has no feature dim"):
        _names.resolve_dim(nn.Tensor("x", [nn.batch_dim], "float32"), nn.any_feature_dim)
    with pytest.raises(ValueError, match="the size must be a positive integer"):
        nn.FeatureDim("feat", 0)


def test_bad_arguments_of_functions(dims):
    def lower(run):
        return nn.lower(
            Bias(dims.classes), lambda *, extern_data, **_: run(extern_data), dims.labelled
        )

    with pytest.raises(ValueError, match=r"dropout is 1.5, expected a probability in \[0, 1\)"):
        lower(lambda data: nn.dropout(data["data"], 1.5))
    with pytest.raises(TypeError, match="the source is a str, expected a tensor"):
        lower(lambda data: nn.dropout("data", 0.1))
    with pytest.raises(ValueError, match="dropout axis .*labels.* is not among the dims"):
        lower(lambda data: nn.dropout(data["data"], 0.1, axis=dims.labels))
    with pytest.raises(ValueError, match="holds no labels"):
        lower(lambda data: nn.cross_entropy(data["data"], data["data"]))
    with pytest.raises(ValueError, match="unknown estimated_type 'logit'"):
        lower(
            lambda data: nn.cross_entropy(
                data["data"], data["data"], axis=dims.classes, estimated_type="logit"
            )
        )
    with pytest.raises(ValueError, match="neither operand has all dims"):
        lower(lambda data: data["data"] + data["classes"])
    with pytest.raises(ValueError, match="a loss named 'a' is marked already"):
        lower(
            lambda data: [
                nn.reduce_sum(data["data"], axis=dims.classes).mark_as_loss("a") for _ in "ab"
            ]
        )


class Statistics(nn.Module):
    """two numbers that a step keeps, and a weight"""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter([dim])
        self.weight.initial = 1.0
        self.count = nn.Parameter([], "float32", auxiliary=True)
        self.largest = nn.Parameter([dim], "float32", auxiliary=True)
        self.largest.initial = 0.25


def run_on_layers(lowered, batches, fetch):
    """the parameters after runs of ``fetch(net)``, and what the last one gave"""
    with testing.layers_session(lowered, train=True) as (net, session):
        fetches = fetch(net)
        for batch in batches:
            result = session.run(fetches, feed_dict=testing.feed_dict(net, batch))
        variables = {p.name.partition(":")[0]: session.run(p) for p in net.get_params_list()}
    return lowered.from_tensorflow(variables), result


def test_what_a_training_step_assigns_is_assigned_though_no_loss_reads_it(dims):
    """RETURNN's engine runs the objective, and nothing that it does not need"""

    def step(*, model, extern_data, **_):
        model.count.assign_add(nn.convert_to_tensor(1.0))
        model.largest.assign(model.largest * 2.0)
        loss = nn.reduce_sum(extern_data["data"] * model.weight, axis=dims.classes)
        loss.mark_as_loss("sum")

    model = Statistics(dims.classes)
    before = {path: param.raw_tensor for path, param in model.named_parameters()}
    lowered = nn.lower(model, step, dims.data)
    assert {path: param.raw_tensor for path, param in model.named_parameters()} == before
    values, _ = run_on_layers(lowered, [ctc_batch()] * 3, lambda net: net.get_total_loss())
    assert values["count"] == 3
    numpy.testing.assert_array_equal(values["largest"], numpy.full(4, 0.25 * 2**3))


def test_a_condition_decides_what_is_assigned(dims):
    """in either branch, or in both, once or several times; reads see what was assigned before"""

    def step(*, model, extern_data, **_):
        total = nn.reduce_sum(extern_data["data"], axis=[nn.batch_dim, dims.time, dims.classes])

        def positive():
            model.count.assign_add(nn.convert_to_tensor(1.0))
            model.count.assign(model.count * 10.0)
            return model.count + 0.5

        def negative():
            model.largest.assign(7.0)
            return nn.reduce_max(model.largest, axis=dims.classes)

        chosen = nn.cond(total > 0.0, positive, negative)
        (chosen + model.count).mark_as_output("out", shape=[])

    lowered = nn.lower(Statistics(dims.classes), step, dims.data, task="forward")
    for sign, count, largest, out in [(1.0, 10.0, 0.25, 20.5), (-1.0, 0.0, 7.0, 7.0)]:
        batch = {**ctc_batch(), "data": numpy.full_like(ctc_batch()["data"], sign)}
        values, result = run_on_layers(
            lowered,
            [batch],
            lambda net: {layer.name: layer.output.placeholder for layer in net.get_output_layers()},
        )
        assert values["count"] == count
        numpy.testing.assert_array_equal(values["largest"], numpy.full(4, largest))
        assert result["out"] == out
