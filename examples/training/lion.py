"""
A custom optimizer: Lion, written in nn operations, which run on both backends.

Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, https://arxiv.org/abs/2302.06675,
Algorithm 2. Its weight decay is decoupled, as that of all optimizers here, and so an option of the session.
The paper advises a learning rate 3 to 10 times smaller than Adam's; the toy data are those of a linear map.

    python examples/training/lion.py --backend torch
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training

X, Y = nn.FeatureDim("x", 8), nn.FeatureDim("y", 3)
EXTERN_DATA = {
    "x": nn.Tensor("x", [nn.batch_dim, X], "float32"),
    "y": nn.Tensor("y", [nn.batch_dim, Y], "float32"),
}


class Lion(training.UpdateRule):
    """https://arxiv.org/abs/2302.06675"""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.99):
        self.beta1, self.beta2 = beta1, beta2

    def initial_state(self, param):
        return {"momentum": nn.zeros_like(param)}

    def update(self, param, gradient, state):
        momentum = state["momentum"]
        mixed = self.beta1 * momentum + (1 - self.beta1) * gradient
        sign = nn.cast(mixed > 0.0, "float32") - nn.cast(mixed < 0.0, "float32")
        momentum = self.beta2 * momentum + (1 - self.beta2) * gradient
        return param - self.learning_rate * sign, {"momentum": momentum}


def train_step(*, model, extern_data, **_):
    error = nn.square(model(extern_data["x"]) - extern_data["y"])
    nn.reduce_sum(error, axis=Y).mark_as_loss("mse", use_normalized_loss=True)


def make_batch(seed: int, size: int = 16) -> dict[str, numpy.ndarray]:
    """of one linear map, with noise"""
    rng = numpy.random.RandomState(seed)
    weight = numpy.random.RandomState(0).normal(size=(8, 3))
    x = rng.normal(size=(size, 8))
    y = x @ weight + 0.1 * rng.normal(size=(size, 3))
    return {"x": x.astype("float32"), "y": y.astype("float32")}


def final_loss(backend: str, optimizer: dict, learning_rate: float, num_steps: int) -> float:
    """the loss on other data behind a training whose learning rate falls to zero"""

    def rate(epoch: int, step: int) -> float:
        return learning_rate * (1 - step / num_steps)

    session = training.Session(
        nn.Linear(X, Y),
        extern_data=EXTERN_DATA,
        optimizer=optimizer,
        learning_rate=rate,
        backend=backend,
    )
    train, evaluate = session.step(train_step), session.step(train_step, update=False)
    for step in range(num_steps):
        train(make_batch(seed=step + 1))
    return float(evaluate(make_batch(seed=0, size=1000))["mse"])


def main(backend: str = "tensorflow-net-dict", num_steps: int = 300) -> dict[str, float]:
    """the loss of each optimizer in the end"""
    lion = {"class": Lion, "beta2": 0.98, "weight_decay": 0.01}
    losses = {
        "lion": final_loss(backend, lion, 0.03, num_steps),
        "adamw": final_loss(backend, {"class": "adamw"}, 0.1, num_steps),
    }
    print(", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
