"""Random numbers of steps on layers: from seed, run, place and frame, also inside of loops and branches."""

from __future__ import annotations

import numpy
import pytest

from returnn_common import nn, training

TIME, INNER = nn.SpatialDim("time"), nn.SpatialDim("inner")
FEATURES = nn.FeatureDim("features", 7)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "inner": nn.Tensor("inner", [nn.batch_dim, INNER], "float32"),
}
LENGTHS = numpy.array([5, 4, 2], dtype="int32")
BATCH = {
    "data": numpy.random.RandomState(1).normal(size=(3, 5, 7)).astype("float32"),
    "data:size1": LENGTHS,
    "inner": numpy.zeros((3, 4), dtype="float32"),
    "inner:size1": numpy.array([4, 4, 3], dtype="int32"),
}
#: What each name of an output is drawn in, and whether RETURNN draws it for each frame.
PLACES = {"frames": True, "shared": False, "normal": True, "branch": True, "nested": True}


class Recurrent(nn.Module):
    """a recurrent cell that draws in many places"""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def __call__(self, source: nn.Tensor, inner: nn.Tensor):
        ones = nn.ones([nn.batch_dim, FEATURES], dtype="float32")

        def drop(state, **options):
            return nn.dropout(ones + 0.0 * state, 0.5, on_forward=True, **options)

        def inner_body(_, state):
            return drop(state), state

        def body(x, state):
            nested, _ = nn.scan(inner_body, spatial_dim=INNER, xs=inner, initial=0.0 * state)
            draws = {
                "frames": drop(state),
                "shared": drop(state, axis=FEATURES),
                "normal": nn.random_normal(x.dims, dtype="float32") + 0.0 * state,
                "branch": nn.cond(
                    nn.reduce_sum(x, axis=x.dims) > -1e6,
                    lambda: drop(state),
                    lambda: 0.0 * state,
                ),
                "nested": nested,
            }
            out = nn.tanh(self.linear(x + state) * draws["frames"] * draws["shared"])
            out = out + 0.1 * draws["normal"] * draws["branch"]
            out = out + nn.reduce_mean(nested, axis=INNER)
            return (out, draws), out

        outputs, _ = nn.scan(body, spatial_dim=TIME, xs=source, initial=0.0 * ones)
        return outputs


def train_step(*, model, extern_data, **_):
    out, _ = model(extern_data["data"], extern_data["inner"])
    nn.reduce_mean(nn.square(out), axis=FEATURES).mark_as_loss("loss")


def draw_step(*, model, extern_data, **_):
    _, draws = model(extern_data["data"], extern_data["inner"])
    for name, tensor in draws.items():
        dims = [nn.batch_dim, TIME, *([INNER] if name == "nested" else []), FEATURES]
        tensor.mark_as_output(name, shape=dims)


def make_session(**options):
    return training.Session(Recurrent(), extern_data=EXTERN_DATA, **options)


@pytest.fixture(scope="module")
def draws():
    """by seed: the draws of two runs in a session of its own, for the seed 3 of two sessions"""

    def run(seed):
        with make_session(seed=seed) as session:
            step = session.step(draw_step, update=False)
            return [step(BATCH) for _ in range(2)]

    return {"3": run(3), "3 again": run(3), "4": run(4)}


@pytest.mark.parametrize("name", PLACES)
def test_the_same_seed_and_run_draw_the_same(draws, name):
    for one, other in zip(draws["3"], draws["3 again"]):
        numpy.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", PLACES)
def test_other_seeds_and_runs_draw_otherwise(draws, name):
    (first, second), other_seed = draws["3"], draws["4"][0]
    for other in (second, other_seed):
        assert (first[name] == other[name]).mean() < 0.8


@pytest.mark.parametrize("name", PLACES)
def test_each_frame_draws_for_itself(draws, name):
    """a mask over features alone is made outside of the loop: RETURNN shares it over frames"""
    values = draws["3"][0][name].swapaxes(0, 1)  # [TIME, batch, ..]
    if name == "nested":
        values = values.swapaxes(1, 2).reshape(20, 3, 7)
    different = {frame.tobytes() for frame in values}
    assert len(different) == (len(values) if PLACES[name] else 1)


def test_masks_drop_half_and_keep_the_mean(draws):
    values = numpy.concatenate([run["nested"].ravel() for runs in draws.values() for run in runs])
    assert set(values) == {0.0, 2.0}
    assert abs(values.mean() - 1) < 0.15  # standard deviation 0.02


def test_places_draw_for_themselves(draws):
    first = draws["3"][0]
    assert 0.2 < (first["frames"] == first["branch"]).mean() < 0.8


def test_a_resumed_run_goes_on_exactly(tmp_path):
    with make_session() as session:
        train = session.step(train_step)
        losses = [train(BATCH)["loss"] for _ in range(2)]
        session.save(tmp_path)
        losses += [train(BATCH)["loss"] for _ in range(2)]
        parameters = session.parameters
    with make_session() as session:
        assert session.resume(tmp_path)
        train = session.step(train_step)
        assert [train(BATCH)["loss"] for _ in range(2)] == losses[2:]
        for name, value in session.parameters.items():
            numpy.testing.assert_array_equal(value, parameters[name], err_msg=name)
    assert len(set(losses)) == 4
