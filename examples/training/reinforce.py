"""
REINFORCE on a copy task: sample labels from the model, reward those that are right, and make them more likely.

Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992,
https://doi.org/10.1007/BF00992696, with the mean reward as baseline. The reward is computed outside of
the graph, in Python.

    python examples/training/reinforce.py --backend torch
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training

NUM_LABELS = 4
TIME, LABELS = nn.SpatialDim("time"), nn.FeatureDim("labels", NUM_LABELS)
_PER_FRAME = [nn.batch_dim, TIME]
EXTERN_DATA = {
    "source": nn.Tensor("source", _PER_FRAME, "int32", sparse_dim=LABELS),
    "sampled": nn.Tensor("sampled", _PER_FRAME, "int32", sparse_dim=LABELS),
    "advantage": nn.Tensor("advantage", _PER_FRAME, "float32"),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(LABELS, nn.FeatureDim("embedding", 8))
        self.output = nn.Linear(self.embedding.out_dim, LABELS)

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        return self.output(self.embedding(source))


def policy_step(*, model, extern_data, **_):
    log_probs = nn.log_softmax(model(extern_data["source"]), axis=LABELS)
    log_probs.mark_as_output("log_probs", shape=[*_PER_FRAME, LABELS])


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["source"]), extern_data["sampled"])
    (loss * extern_data["advantage"]).mark_as_loss("reinforce", use_normalized_loss=True)


def sample(log_probs: numpy.ndarray, rng: numpy.random.RandomState) -> numpy.ndarray:
    """labels `[B, T]` from `[B, T, labels]`, by the Gumbel-max trick"""
    return (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=-1).astype("int32")


def main(backend: str = "tensorflow-net-dict", num_steps: int = 150) -> list[float]:
    """the mean reward of each step: the part of all labels that are copied right"""
    session = training.Session(
        Model(),
        extern_data=EXTERN_DATA,
        optimizer={"class": "adam"},
        learning_rate=0.05,
        backend=backend,
    )
    policy, train = session.step(policy_step, update=False), session.step(train_step)
    rng, rewards, baseline = numpy.random.RandomState(1), [], 0.0
    for _ in range(num_steps):
        source = rng.randint(0, NUM_LABELS, size=(16, 6)).astype("int32")
        batch = {"source": source, "source:size1": numpy.full([16], 6)}
        sampled = sample(policy(batch)["log_probs"], rng)
        reward = (sampled == source).astype("float32")
        train({**batch, "sampled": sampled, "advantage": reward - baseline})
        baseline = 0.9 * baseline + 0.1 * float(reward.mean())
        rewards.append(float(reward.mean()))
    print(f"reward {rewards[0]:.2f} at the start, {rewards[-1]:.2f} now")
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
