"""
First-order MAML on sine waves: find parameters from which a few steps fit any wave.

Finn et al., "Model-Agnostic Meta-Learning", 2017, https://arxiv.org/abs/1703.03400, section 5.1, in the
first-order form: for each task some steps of gradient descent, then the gradient on other points of the
task; the sum over tasks updates the parameters from before. `session.gradients` and `session.apply` are
all that it needs.

    python examples/training/maml.py --backend torch
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training

X, Y, HIDDEN = nn.FeatureDim("x", 1), nn.FeatureDim("y", 1), 24
EXTERN_DATA = {
    "x": nn.Tensor("x", [nn.batch_dim, X], "float32"),
    "y": nn.Tensor("y", [nn.batch_dim, Y], "float32"),
}
INNER_RATE, INNER_STEPS, NUM_TASKS, NUM_POINTS = 0.02, 3, 4, 10


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(X, nn.FeatureDim("first", HIDDEN))
        self.second = nn.Linear(self.first.out_dim, nn.FeatureDim("second", HIDDEN))
        self.output = nn.Linear(self.second.out_dim, Y)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        return self.output(nn.tanh(self.second(nn.tanh(self.first(x)))))


def train_step(*, model, extern_data, **_):
    error = nn.square(model(extern_data["x"]) - extern_data["y"])
    nn.reduce_sum(error, axis=Y).mark_as_loss("mse", use_normalized_loss=True)


def make_task(rng: numpy.random.RandomState) -> tuple[dict[str, numpy.ndarray], ...]:
    """points of one wave, to fit and to test"""
    amplitude, phase = rng.uniform(0.5, 3.0), rng.uniform(0.0, numpy.pi)
    points = rng.uniform(-3.0, 3.0, size=(2, NUM_POINTS, 1))
    return tuple(
        {"x": x.astype("float32"), "y": (amplitude * numpy.sin(x + phase)).astype("float32")}
        for x in points
    )


def adapt(session: training.Session, train: training.Step, start: dict, batch: dict) -> None:
    """some steps of gradient descent from `start` on one task"""
    values = dict(start)
    for _ in range(INNER_STEPS):
        session.set_parameters(values)
        gradients = session.gradients(train, batch)
        values.update({name: values[name] - INNER_RATE * g for name, g in gradients.items()})
    session.set_parameters(values)


def loss_after_adapting(session, train, evaluate, *, seed: int = 100, number: int = 10) -> float:
    """the mean over new tasks; leaves the parameters as they are"""
    rng, start, losses = numpy.random.RandomState(seed), session.parameters, []
    for _ in range(number):
        fit, test = make_task(rng)
        adapt(session, train, start, fit)
        losses.append(evaluate(test)["mse"])
    session.set_parameters(start)
    return float(numpy.mean(losses))


def main(backend: str = "tensorflow-net-dict", num_steps: int = 200) -> list[float]:
    """the loss on new tasks behind a few steps, at the start and in the end"""
    session = training.Session(
        Model(),
        extern_data=EXTERN_DATA,
        optimizer={"class": "adam"},
        learning_rate=0.005,
        backend=backend,
    )
    train, evaluate = session.step(train_step), session.step(train_step, update=False)
    rng = numpy.random.RandomState(1)
    losses = [loss_after_adapting(session, train, evaluate)]
    for _ in range(num_steps):
        start, total = session.parameters, {}
        for _ in range(NUM_TASKS):
            fit, test = make_task(rng)
            adapt(session, train, start, fit)
            for name, gradient in session.gradients(train, test).items():
                total[name] = total.get(name, 0.0) + gradient / NUM_TASKS
        session.set_parameters(start)
        session.apply(total)
    losses.append(loss_after_adapting(session, train, evaluate))
    print(
        f"loss on new waves after {INNER_STEPS} steps: {losses[0]:.2f} at the start, {losses[1]:.2f} now"
    )
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
