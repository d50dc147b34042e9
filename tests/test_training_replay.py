"""Declared stages on torch: the same as the step as a function, and as on layers."""

from __future__ import annotations

import contextlib

import numpy
import pytest
from returnn.frontend import dropout, reduce_max, relu, reverse_sequence

from returnn_common import nn, training, zoo
from returnn_common.nn import LayersBackend, _outermost, _stage, scan, select_frames

TIME, LABELS = nn.SpatialDim("time"), nn.SpatialDim("labels")
FEATURES, CLASSES = nn.FeatureDim("features", 7), nn.FeatureDim("classes", 5)
WITH_BLANK, HIDDEN = nn.FeatureDim("with_blank", 6), nn.FeatureDim("hidden", 4)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, LABELS], "int32", sparse_dim=CLASSES),
}
#: The scalars of a stage are data of a step function.
WITH_INDEX = {**EXTERN_DATA, "epoch_index": nn.Tensor("epoch_index", [], "int32")}


class Data:
    """what a part of a dataset is for a step loop"""

    extern_data = EXTERN_DATA

    def batches(self, epoch, *, batch_size, keys):
        return batches(epoch)


def batches(epoch=1, number=3):
    """two or three sequences each, of different lengths, with their tags"""
    rng = numpy.random.RandomState(epoch)
    for i in range(number):
        num_seqs = rng.randint(2, 4)
        lengths, num_labels = rng.randint(12, 25, num_seqs), rng.randint(1, 4, num_seqs)
        yield {
            "data": rng.normal(size=(num_seqs, max(lengths), 7)).astype("float32"),
            "data:size1": lengths,
            "classes": rng.randint(0, 5, size=(num_seqs, max(num_labels))),
            "classes:size1": num_labels,
            "seq_tag": [f"{i}-{j}" for j in range(num_seqs)],
        }


def declared(model, body, **options):
    """the one stage of a body ``(model, data, classes, index)``"""
    with nn.Stages() as stages, nn.epoch_loop(2) as epoch, nn.step_loop(Data(), **options):
        body(model, nn.extern_data("data"), nn.extern_data("classes"), epoch.index)
    (stage,) = stages.all
    return stage


def as_function(body):
    def step(*, model, extern_data, **_):
        body(model, *(extern_data[name] for name in ("data", "classes", "epoch_index")))

    return step


def session_of(model, backend="torch", **options):
    extern_data = options.pop("extern_data", EXTERN_DATA)
    return training.Session(
        model, extern_data=extern_data, backend=backend, learning_rate=0.01, **options
    )


def results(session, step, number=3):
    """the losses of two epochs"""
    return [
        step({**batch, "epoch_index": epoch})
        for epoch in (1, 2)
        for batch in batches(epoch, number)
    ]


def check_same_as_function(make_model, body, number=3):
    """to the bit, with the parameters afterwards"""
    model = make_model()
    stage = declared(model, body)
    session, other = session_of(model), session_of(make_model(), extern_data=WITH_INDEX)
    found = results(session, session.step(stage), number)
    assert found == results(other, other.step(as_function(body)), number)
    assert all(numpy.isfinite(list(losses.values())).all() for losses in found)
    for path, value in other.parameters.items():
        numpy.testing.assert_array_equal(session.parameters[path], value, err_msg=path)


# --- all at once


class Model(nn.Module):
    """a small one of everything"""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, HIDDEN, 3, strides=2, padding="same")
        self.batch_norm = nn.BatchNorm(HIDDEN, use_mask=True)
        self.layer_norm = nn.LayerNorm(HIDDEN)
        self.encoder = zoo.get(
            "conformer",
            in_dim=FEATURES,
            out_dim=nn.FeatureDim("model", 8),
            num_layers=1,
            num_heads=2,
            dropout=dropout,
        )
        self.output = nn.Linear(HIDDEN, WITH_BLANK)
        self.encoder_output = nn.Linear(self.encoder.out_dim, WITH_BLANK)
        self.rate = nn.Parameter([HIDDEN], "float32")
        self.rate.initial = 0.3
        self.counter = nn.Parameter([], "float32", auxiliary=True)
        self.counter.initial = 0.0


def make_body(dropout):
    def body(model, data, classes, index):
        hidden, time_dim = model.conv(data, in_spatial_dim=TIME)
        hidden = model.layer_norm(nn.dropout(model.batch_norm(nn.relu(hidden)), dropout))
        is_first, decay = index == 1, nn.sigmoid(model.rate)

        def smooth(x, state):
            state = decay * state + (1.0 - decay) * x
            return state, state

        smoothed, last = nn.scan(
            smooth, spatial_dim=time_dim, xs=hidden, initial=nn.zeros([nn.batch_dim, HIDDEN])
        )
        nn.cond(is_first, lambda: model.counter.assign(model.counter + 10.0), lambda: None)
        model.counter.assign_add(1.0)
        logits = model.output(nn.cond(is_first, lambda: smoothed + last, lambda: -hidden))
        mark_ctc(logits, time_dim, classes, "ctc", custom_inv_norm_factor=LABELS.get_size_tensor())
        encoder, encoder_dim = model.encoder(data, in_spatial_dim=TIME)
        mark_ctc(model.encoder_output(encoder), encoder_dim, classes, "encoder", scale=0.3)
        merged, merged_dim = nn.merge_dims(data, dims=[TIME, FEATURES])
        nn.reduce_mean(nn.abs(merged), axis=merged_dim).mark_as_loss(as_error=True)

    return body


def mark_ctc(logits, time_dim, classes, name, **options):
    loss = nn.ctc_loss(
        logits=logits,
        targets=classes,
        input_spatial_dim=time_dim,
        targets_spatial_dim=LABELS,
        blank_index=5,
    )
    loss.mark_as_loss(name, **options)


def test_a_stage_on_torch_is_the_step_as_a_function():
    check_same_as_function(lambda: Model(dropout=0.1), make_body(dropout=0.2))


def test_a_stage_is_the_same_on_both_backends():
    model = Model()
    stage = declared(model, make_body(dropout=0.0))
    torch, layers = session_of(model), session_of(model, "tensorflow-net-dict")
    found = results(torch, torch.step(stage))
    for losses, expected in zip(found, results(layers, layers.step(stage))):
        assert losses == pytest.approx(expected, rel=1e-4)
    assert list(found[0]) == ["ctc", "encoder", "loss"]
    assert torch.parameters["counter"] == layers.parameters["counter"] == 3 * 10 + 6


# --- a whole program


class Tagger(nn.Module):
    """has methods that read and store what a stage has"""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(FEATURES, HIDDEN)
        self.counter = nn.Parameter([], "float32", auxiliary=True)
        self.counter.initial = 0.0
        self.runs = 0

    def label(self):
        nn.store("best", nn.reduce_argmax(self.output(nn.extern_data("data")), axis=HIDDEN))

    def loss_of_stored(self, step):
        loss = nn.cross_entropy(self.output(nn.extern_data("data")), nn.load("best"))
        return loss * (1.0 + nn.cast(step.index, "float32"))


def declare_program(model, bodies):
    """labels by the model as it is, in a method and in the body; training on these"""
    with nn.Stages() as stages:
        with nn.init_ctx() as init:
            model.counter.assign(nn.where(init.is_new_run, 100.0, 1000.0))
        with nn.epoch_loop(2) as epoch:
            nn.cond(
                epoch.index == 2,
                lambda: model.counter.assign_add(nn.cast(epoch.index, "float32")),
                lambda: None,
            )
            with nn.step_loop(Data(), update=False):
                bodies.append("eval")
                model.label()
                longest = nn.reduce_max(nn.extern_data("data"), axis=TIME)
                nn.store("longest", longest)
            with nn.step_loop(Data()) as step:
                bodies.append("train")
                model.loss_of_stored(step).mark_as_loss("best", use_normalized_loss=True)
                frames = nn.reduce_sum(nn.load("longest"), axis=FEATURES)
                frames.mark_as_loss("longest", as_error=True)
            with nn.step_loop(Data(), update=False, name="dev"):
                nn.cross_entropy(
                    model.output(nn.extern_data("data")), nn.load("best")
                ).mark_as_loss("ce")
                model.counter.assign_add(0.5)
    return stages


def test_a_program_runs_on_both_backends(tmp_path):
    model, bodies = Tagger(), []
    stages, lines = declare_program(model, bodies), []
    for backend in training.BACKENDS:
        session = session_of(model, backend)
        log = training.run(session, tmp_path / backend, stages=stages, batch_size=100)
        lines.append(log.lines())
        # set when the run starts, in the second epoch, and by each of the 2 * 3 batches of the last loop
        assert session.parameters["counter"] == 100 + 2 + 6 * 0.5
    assert bodies == ["eval", "train"]
    for first, second in zip(*lines, strict=True):
        for name in ("train", "dev"):
            assert first[name] == pytest.approx(second[name], rel=1e-4)
    expected = [
        data[:length].max(axis=0).sum()
        for batch in batches(2)
        for data, length in zip(batch["data"], batch["data:size1"])
    ]
    assert lines[1][1]["train"]["longest"] == pytest.approx(numpy.mean(expected), rel=1e-4)


def test_declared_with_a_session_at_hand(tmp_path):
    """whose torch parameters are nodes for the trace, and are there again behind it"""
    model, bodies = Tagger(), []
    first = session_of(model)
    values = first.parameters
    stages = declare_program(model, bodies)
    numpy.testing.assert_array_equal(first.parameters["output.weight"], values["output.weight"])
    training.run(first, tmp_path / "first", stages=stages, batch_size=100)
    other = Tagger()
    expected = session_of(other)
    training.run(
        expected, tmp_path / "other", stages=declare_program(other, bodies), batch_size=100
    )
    for path, value in expected.parameters.items():
        numpy.testing.assert_array_equal(first.parameters[path], value)


def test_recording_changes_no_layer(monkeypatch):
    model = Model(dropout=0.1)
    texts = [declared(model, make_body(0.1)).lowered(model).config_text()]
    monkeypatch.setattr(_stage, "recording_calls", lambda *_: contextlib.nullcontext())
    texts.append(declared(model, make_body(0.1)).lowered(model).config_text())
    assert texts[0] == texts[1]


# --- forms of their own


class Output:
    def __init__(self, hidden, dim):
        self.hidden, self.dim = hidden, dim


class Small(nn.Module):
    """gives what it computes in several forms"""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, HIDDEN)
        self.conv = nn.Conv1d(FEATURES, HIDDEN, 2, strides=2, padding="same")
        self.lstm = nn.LSTM(FEATURES, HIDDEN)

    def __call__(self, x, collected=None):
        hidden, dim = self.conv(x, in_spatial_dim=TIME)
        if collected is not None:
            collected["hidden"] = self.linear(x)
        return Output(hidden, dim)

    def without_dim(self, x):
        return self.conv(x, in_spatial_dim=TIME)[0]

    def _scaled(self, x):
        return self.linear.bias * x

    def take(self, out):
        return self.linear(out.hidden + out.more["mean"]), out.dim

    def same(self, x):
        return x

    def then(self, x, functions):
        return functions["then"](self.linear(x))

    def keep(self, x):
        self.kept = self.linear(x)


def mark(*tensors):
    for tensor in tensors:
        nn.reduce_sum(nn.square(tensor), axis=tensor.remaining_dims(nn.batch_dim)).mark_as_loss()


def an_object_and_a_filled_dict(model, data, classes, index):
    collected = {}
    out = model(data, collected=collected)
    mark(nn.reduce_mean(out.hidden, axis=out.dim), collected["hidden"])


def an_object_of_the_body(model, data, classes, index):
    out = Output(nn.tanh(data), TIME)
    out.more = {"mean": nn.reduce_mean(data, axis=TIME)}
    given, dim = model.take(out)
    scaled = model.then(data, {"then": lambda x: x * given})
    again = model.same(scaled)
    mark(nn.reduce_mean(again, axis=dim), given)


def a_dim_of_a_result(model, data, classes, index):
    out = model.without_dim(data)
    (time_dim,) = out.remaining_dims([nn.batch_dim, HIDDEN])
    mark(nn.reduce_mean(out, axis=time_dim), nn.cumsum(out, spatial_dim=time_dim))


def dims_of_its_own(model, data, classes, index):
    few = nn.Dim(nn.minimum(TIME.get_size_tensor(), 15), name="few")
    x = nn.gather(data, indices=nn.range_over_dim(few), axis=TIME)
    other = nn.SpatialDim("other")
    y, _ = nn.replace_dim(model.linear(x), in_dim=few, out_dim=other)
    half = nn.cast(TIME.ceildiv_right(2).get_size_tensor() + other.get_size_tensor(), "float32")
    mark(nn.reduce_sum(y, axis=other) / half)


def set_attributes(model, data, classes, index):
    hidden = model.linear(data)
    hidden.feature_dim = None
    copied = hidden.copy()
    copied.feature_dim = HIDDEN
    mark(nn.dropout(copied, 0.3, axis=nn.any_feature_dim))
    loss = nn.reduce_sum(hidden, axis=HIDDEN)
    loss.name = "cross_entropy"
    loss.mark_as_loss()


def without_train_flag(model, data, classes, index):
    with nn.get_run_ctx().train_flag_ctx(False):
        still = nn.dropout(model.linear(data), 0.5)
    step = nn.cast(nn.get_run_ctx().get_step_tensor(), "float32")
    is_training = nn.get_run_ctx().train_flag
    mark(still * (step + nn.cast(nn.get_run_ctx().get_epoch_tensor(), "float32")))
    mark(nn.dropout(model.linear(data), 0.5) * nn.where(is_training, 2.0, 3.0))


def functions_by_their_names(model, data, classes, index):
    hidden = dropout(relu(model.linear(reverse_sequence(data, axis=TIME))), 0.2)
    with nn.get_run_ctx().train_flag_ctx(False, func=dropout):
        hidden = dropout(hidden, 0.9)
    selected, _dim = select_frames(hidden, reduce_max(hidden, axis=HIDDEN) > 0.5, spatial_dim=TIME)
    _, last = scan(
        lambda x, state: (x, x + state),
        spatial_dim=TIME,
        xs=hidden,
        initial=nn.zeros([nn.batch_dim, HIDDEN]),
    )
    mark(selected, last)


def loops_and_branches(model, data, classes, index):
    start = nn.reduce_mean(model.linear(data), axis=TIME)

    def body(state):
        number, value = state
        return number + 1, nn.cond(index == 1, lambda: nn.sin(value) + start, lambda: value * 2.0)

    zero = nn.zeros((), dtype="int32")
    _, value = nn.while_loop(lambda state: state[0] < 3, body, (zero, start))
    mask = nn.reduce_max(data, axis=FEATURES) > 1.0
    out, dim = nn.masked_computation(
        lambda x, _: nn.dropout(model.linear(x), 0.2), data, mask, spatial_dim=TIME
    )
    mark(value + start, out, nn.unmask(out, mask, in_spatial_dim=dim, spatial_dim=TIME))


def states_and_what_is_made_in_the_body(model, data, classes, index):
    class Scale(nn.Module):
        def __call__(self, x):
            return 2.0 * x

    state = model.lstm.default_initial_state(batch_dims=[nn.batch_dim])
    _, state = model.lstm(data, spatial_dim=TIME, state=state)
    out, state = model.lstm(data, spatial_dim=TIME, state=nn.State(h=state.h, c=Scale()(state.c)))
    mark(model._scaled(out), state.h)


def plain_python(model, data, classes, index):
    parts = nn.split(model.linear(data), axis=HIDDEN, out_dims=[nn.Dim(1), nn.Dim(3)])
    dims = [part.dims[-1] for part in parts]
    total = sum(nn.reduce_sum(part, axis=dim) for part, dim in zip(parts, dims))
    total = -(2.0 - total / 3.0) + nn.concat(*((part, dim) for part, dim in zip(parts, dims)))[0]
    mark(total, nn.stack([parts[0], parts[0]])[0])


@pytest.mark.parametrize(
    "body",
    [
        an_object_and_a_filled_dict,
        an_object_of_the_body,
        a_dim_of_a_result,
        dims_of_its_own,
        set_attributes,
        without_train_flag,
        functions_by_their_names,
        loops_and_branches,
        states_and_what_is_made_in_the_body,
        plain_python,
    ],
    ids=lambda body: body.__name__,
)
def test_forms(body):
    check_same_as_function(Small, body, number=2)


def test_losses_and_what_is_stored_of_several_batches():
    def body(model, data, classes, index):
        nn.store("hidden", nn.reduce_max(data, axis=TIME))
        nn.reduce_sum(model.linear(data), axis=HIDDEN).mark_as_loss("sum")

    model = Small()
    session, two = session_of(model), list(batches(number=2))
    step = session.step(declared(model, body))
    p = session.parameters
    frames = [
        numpy.concatenate([x[:n] for x, n in zip(batch["data"], batch["data:size1"])])
        for batch in two
    ]
    gradients = session.gradients(step, *two)
    result = step(*two)
    summed = [(x @ p["linear.weight"] + p["linear.bias"]).sum() for x in frames]
    assert result["sum"] == pytest.approx(sum(summed) / sum(map(len, frames)), rel=1e-4)
    expected = numpy.tile(sum(x.sum(axis=0) for x in frames)[:, None], 4)
    numpy.testing.assert_allclose(gradients["linear.weight"], expected, rtol=1e-4, atol=1e-4)
    lengths = two[0]["data:size1"]
    longest = [x[:n].max(axis=0) for x, n in zip(two[0]["data"], lengths)]
    numpy.testing.assert_array_equal(result["stored_hidden"], longest)


def test_what_is_recorded_exists():
    """a name that RETURNN has no more would be left out without a word"""
    for names, owner in (
        (_outermost._TENSOR_METHODS, nn.Parameter),
        (_outermost._DIM_METHODS, nn.Dim),
        (_outermost._CONTEXT_METHODS, nn.RunCtx),
        (_outermost._BACKEND_OPERATIONS, LayersBackend),
        (_outermost._SETTERS, nn),
    ):
        assert [name for name in names if not hasattr(owner, name)] == []
    found = {(watched.owner, watched.name) for watched in _outermost._watched()}
    assert {(nn.Linear, "__call__"), (nn.Module, "default_initial_state")} <= found
    assert not {name for owner, name in found if owner is nn.Module} & {"parameters", "apply"}


def test_all_is_as_before_behind_an_error():
    before = [(w.owner, w.name, vars(w.owner).get(w.name)) for w in _outermost._watched()]

    def body(model, data, classes, index):
        assert vars(nn.Linear)["__call__"] is not before_linear
        nn.cond(index == 1, lambda: data, lambda: 1 / 0)

    before_linear = vars(nn.Linear)["__call__"]
    with pytest.raises(ZeroDivisionError):
        declared(Small(), body)
    for owner, name, value in before:
        assert vars(owner).get(name) is value
    check_same_as_function(Small, lambda model, data, *_: mark(model.linear(data)), number=1)


# --- errors


def test_what_no_call_gives():
    def body(model, data, classes, index):
        model.keep(data)
        mark(model.kept)

    model = Small()
    stage = declared(model, body)
    with pytest.raises(
        ValueError, match=r"test_training_replay\.py:\d+: .* let the method .* return it"
    ):
        session_of(model).step(stage)


def test_a_parameter_of_another_model():
    other = Small()
    stage = declared(Small(), lambda model, data, *_: mark(other.linear(data)))
    with pytest.raises(ValueError, match="which is not in the model Small of the session"):
        session_of(Small()).step(stage)


def test_what_a_branch_did_not_give():
    def body(model, data, classes, index):
        kept = []
        nn.cond(index == 1, lambda: kept.append(model.linear(data)), lambda: None)
        mark(kept[0])

    model = Small()
    session = session_of(model)
    step = session.step(declared(model, body))
    with pytest.raises(ValueError, match=r"test_training_replay\.py:\d+: .* that has not run"):
        step({**next(batches()), "epoch_index": 2})


class OtherOnTorch(Small):
    """what it does when it is declared and when it runs differs"""

    def __call__(self, x):
        return self.linear(x) if self.is_declared else None

    def mark(self, x):
        self.linear(x).mark_as_loss("declared" if self.is_declared else "run")


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda model, data, *_: mark(model(data)), "another form"),
        (lambda model, data, *_: model.mark(data), "marks the losses run, declared was declared"),
    ],
    ids=["value", "losses"],
)
def test_what_differs_from_the_declaration(body, message):
    model = OtherOnTorch()
    model.is_declared = True
    session = session_of(model)
    step = session.step(declared(model, body))
    model.is_declared = False
    with pytest.raises(ValueError, match=rf"test_training_replay\.py:\d+: .*{message}"):
        step({**next(batches()), "epoch_index": 1})


def test_what_the_batch_lacks():
    model = Small()
    session = session_of(model)
    step = session.step(declared(model, lambda model, data, *_: mark(model.linear(data))))
    with pytest.raises(ValueError, match=r"the batch lacks 'data', which train \(.*\) needs"):
        step({"classes": numpy.zeros((1, 1), "int32"), "classes:size1": [1]})


def test_an_error_in_the_run_has_the_line_of_the_body():
    def body(model, data, classes, index):
        checked = nn.check_length(data, spatial_dim=TIME, max_length=11)
        mark(model.linear(checked))

    model = Small()
    session = session_of(model)
    step = session.step(declared(model, body))
    line = body.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"test_training_replay\.py:{line}: .* longer than 11"):
        step({**next(batches()), "epoch_index": 1})
