"""
Align, then train, in one process: each epoch trains on the alignments of the one before, and then
aligns all sequences again with the model as it is, without touching it.

The toy data are sequences of frames of a few states in the order of their labels; nobody says where one ends.

    python examples/training/align_then_train.py --backend torch
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training

NUM_STATES = 5
TIME = nn.SpatialDim("time")
FEATURES, STATES = nn.FeatureDim("features", 8), nn.FeatureDim("states", NUM_STATES)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "alignment": nn.Tensor("alignment", [nn.batch_dim, TIME], "int32", sparse_dim=STATES),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", 16))
        self.output = nn.Linear(self.hidden.out_dim, STATES)

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        return self.output(nn.tanh(self.hidden(source)))


def score_step(*, model, extern_data, **_):
    log_probs = nn.log_softmax(model(extern_data["data"]), axis=STATES)
    log_probs.mark_as_output("scores", shape=[nn.batch_dim, TIME, STATES])


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["alignment"])
    loss.mark_as_loss("ce", use_normalized_loss=True)


def best_path(scores: numpy.ndarray, states: numpy.ndarray) -> numpy.ndarray:
    """the best way `[T]` through `states`, in their order, by scores `[T, NUM_STATES]` (Viterbi)"""
    scores = scores[:, states]
    total = numpy.full(len(states), -numpy.inf)
    total[0] = scores[0, 0]
    moves = numpy.zeros(scores.shape, dtype=bool)
    for t in range(1, len(scores)):
        before = numpy.concatenate([[-numpy.inf], total[:-1]])
        moves[t] = before > total
        total = numpy.maximum(total, before) + scores[t]
    position, path = len(states) - 1, []
    for t in reversed(range(len(scores))):
        path.append(states[position])
        position -= moves[t, position]
    return numpy.array(path[::-1], dtype="int32")


def make_corpus(seed: int, number: int = 40) -> dict[str, tuple[numpy.ndarray, ...]]:
    """features `[T, 8]`, states in their order, and the true alignment `[T]`, by sequence tag"""
    rng = numpy.random.RandomState(seed)
    means = numpy.random.RandomState(0).normal(size=(NUM_STATES, 8))
    corpus = {}
    for i in range(number):
        states = rng.permutation(NUM_STATES)[:3]
        truth = numpy.repeat(states, rng.randint(2, 8, size=3))
        features = means[truth] + 0.3 * rng.normal(size=(len(truth), 8))
        corpus[f"seq-{i}"] = features.astype("float32"), states, truth
    return corpus


def batches(corpus, alignments=None, size=8):
    tags = sorted(corpus)
    for start in range(0, len(tags), size):
        chosen = tags[start : start + size]
        batch = {"data": [corpus[tag][0] for tag in chosen]}
        if alignments is not None:
            batch["alignment"] = [alignments[tag] for tag in chosen]
        (arrays,) = training.batches_from([batch], EXTERN_DATA)
        yield chosen, arrays


def linear(corpus):
    """the first alignment: all states of a sequence equally long"""
    return {
        tag: states[numpy.arange(len(features)) * len(states) // len(features)].astype("int32")
        for tag, (features, states, _) in corpus.items()
    }


def accuracy(corpus, alignments) -> float:
    """the part of all frames with the true state"""
    hits = [alignments[tag] == truth for tag, (_, _, truth) in corpus.items()]
    return float(numpy.concatenate(hits).mean())


def main(backend: str = "tensorflow-net-dict", num_epochs: int = 5) -> list[float]:
    """the accuracy of the alignment at the start and after each epoch"""
    corpus = make_corpus(seed=1)
    session = training.Session(
        Model(),
        extern_data=EXTERN_DATA,
        optimizer={"class": "adam"},
        learning_rate=0.02,
        backend=backend,
    )
    score = session.step(score_step, update=False)
    train = session.step(train_step)
    alignments = linear(corpus)
    accuracies = [accuracy(corpus, alignments)]
    for epoch in session.epochs(num_epochs):
        for _, batch in batches(corpus, alignments):
            loss = train(batch)["ce"]
        for tags, batch in batches(corpus):
            for tag, scores in zip(tags, score(batch)["scores"]):
                features, states, _ = corpus[tag]
                alignments[tag] = best_path(scores[: len(features)], states)
        accuracies.append(accuracy(corpus, alignments))
        print(
            f"epoch {epoch}: loss {loss:.3f}, {100 * accuracies[-1]:.1f} % of all frames aligned right"
        )
    return accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
