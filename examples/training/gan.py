"""
A GAN on toy data: two optimizers for disjoint parameters, and two steps in turns.

Goodfellow et al., "Generative Adversarial Networks", 2014, https://arxiv.org/abs/1406.2661, with the
generator's loss of its section 3 that does not saturate. The data is a normal distribution in two
dimensions; the generator shall find its mean.

    python examples/training/gan.py --backend torch
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training

NOISE, POINT, SCORE = (
    nn.FeatureDim(n, size) for n, size in (("noise", 4), ("point", 2), ("score", 1))
)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, POINT], "float32"),
    "noise": nn.Tensor("noise", [nn.batch_dim, NOISE], "float32"),
}
MEAN = numpy.array([2.0, -1.0])


class TwoLayers(nn.Module):
    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim):
        super().__init__()
        self.hidden = nn.Linear(in_dim, nn.FeatureDim("hidden", 16))
        self.output = nn.Linear(self.hidden.out_dim, out_dim)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        return self.output(nn.tanh(self.hidden(x)))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = TwoLayers(NOISE, POINT)
        self.discriminator = TwoLayers(POINT, SCORE)

    def log_probability(self, x: nn.Tensor, *, real: bool) -> nn.Tensor:
        """that the discriminator takes `x` for real, or for made, `[B]`"""
        score = nn.squeeze(self.discriminator(x), axis=SCORE)
        return nn.log_sigmoid(score if real else -score)


def discriminate_step(*, model, extern_data, **_):
    made = model.generator(extern_data["noise"])
    (-model.log_probability(extern_data["data"], real=True)).mark_as_loss(
        "real", use_normalized_loss=True
    )
    (-model.log_probability(made, real=False)).mark_as_loss("made", use_normalized_loss=True)


def fool_step(*, model, extern_data, **_):
    made = model.generator(extern_data["noise"])
    (-model.log_probability(made, real=True)).mark_as_loss("fool", use_normalized_loss=True)


def generate_step(*, model, extern_data, **_):
    model.generator(extern_data["noise"]).mark_as_output("points", shape=[nn.batch_dim, POINT])


def make_batch(rng: numpy.random.RandomState, size: int = 64) -> dict[str, numpy.ndarray]:
    data = MEAN + 0.5 * rng.normal(size=(size, 2))
    noise = rng.normal(size=(size, 4))
    return {"data": data.astype("float32"), "noise": noise.astype("float32")}


def main(backend: str = "tensorflow-net-dict", num_steps: int = 800) -> numpy.ndarray:
    """the mean of what the generator makes in the end"""
    adam = {"class": "adam", "beta1": 0.5}
    optimizers = [{**adam, "parameters": f"{part}.*"} for part in ("generator", "discriminator")]
    session = training.Session(
        Gan(), extern_data=EXTERN_DATA, optimizer=optimizers, learning_rate=0.01, backend=backend
    )
    discriminate = session.step(discriminate_step, update="discriminator.*")
    fool = session.step(fool_step, update="generator.*")
    generate = session.step(generate_step, update=False)
    rng = numpy.random.RandomState(1)
    for step in range(num_steps):
        losses = {**discriminate(make_batch(rng)), **fool(make_batch(rng))}
        if step % 200 == 199:
            print(step + 1, ", ".join(f"{name} {value:.3f}" for name, value in losses.items()))
    mean = generate(make_batch(rng, 1000))["points"].mean(axis=0)
    print(f"mean of the data {MEAN}, of what is made {mean.round(2)}")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
