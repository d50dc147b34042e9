"""
The standard loop: train and dev data, a learning rate schedule, a log, checkpoints of which the best are kept.

Started again, it goes on behind the last checkpoint, on either backend. The toy data are frames of
labels in a row; CTC (Graves et al., 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf) finds out
where each one is.

    python examples/training/supervised.py --backend torch --folder supervised
"""

from __future__ import annotations

import argparse

import numpy

from returnn_common import nn, training, zoo
from returnn_common.training import checkpoints

NUM_LABELS, BATCH_SIZE = 5, 8
TIME, LABEL_TIME = nn.SpatialDim("time"), nn.SpatialDim("label_time")
FEATURES, LABELS = nn.FeatureDim("features", 8), nn.FeatureDim("labels", NUM_LABELS)
LABELS_AND_BLANK = nn.FeatureDim("labels_and_blank", NUM_LABELS + 1)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "labels": nn.Tensor("labels", [nn.batch_dim, LABEL_TIME], "int32", sparse_dim=LABELS),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, nn.FeatureDim("hidden", 32))
        self.norm = nn.LayerNorm(self.hidden.out_dim)
        self.output = nn.Linear(self.hidden.out_dim, LABELS_AND_BLANK)

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        hidden = nn.relu(self.norm(self.hidden(source)))
        return self.output(nn.dropout(hidden, 0.1, axis=self.hidden.out_dim))


def train_step(*, model, extern_data, **_):
    loss = nn.ctc_loss(
        logits=model(extern_data["data"]),
        targets=extern_data["labels"],
        input_spatial_dim=TIME,
        targets_spatial_dim=LABEL_TIME,
        blank_index=-1,
    )
    loss.mark_as_loss("ctc", use_normalized_loss=True)


def recognize_step(*, model, extern_data, **_):
    logits = model(extern_data["data"])
    labels, time = nn.ctc_greedy_decode(logits, in_spatial_dim=TIME, blank_index=-1)
    labels.mark_as_output("labels", shape=[nn.batch_dim, time])


def make_corpus(seed: int, number: int) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """features `[T, 8]` and labels of each sequence"""
    rng = numpy.random.RandomState(seed)
    means = numpy.random.RandomState(0).normal(size=(NUM_LABELS, 8))
    corpus = []
    for _ in range(number):
        labels = rng.permutation(NUM_LABELS)[: rng.randint(2, 5)].astype("int32")
        frames = numpy.repeat(labels, rng.randint(1, 4, size=len(labels)))
        data = means[frames] + 0.7 * rng.normal(size=(len(frames), 8))
        corpus.append((data.astype("float32"), labels))
    return corpus


def batches(corpus, epoch: int | None = None):
    """in another order in each epoch, or as they are; the order depends on nothing but its number"""
    order = numpy.arange(len(corpus))
    if epoch is not None:
        order = numpy.random.RandomState(epoch).permutation(order)
    parts = [order[i : i + BATCH_SIZE] for i in range(0, len(order), BATCH_SIZE)]
    return training.batches_from(
        [tuple(map(list, zip(*[corpus[i] for i in part]))) for part in parts], EXTERN_DATA
    )


def error_rate(recognize: training.Step, corpus) -> float:
    """the part of all sequences that are not recognised right"""
    errors = 0
    for batch in batches(corpus):
        result = recognize(batch)
        sizes = zip(result["labels:size1"], batch["labels:size1"])
        for found, truth, (size, true_size) in zip(result["labels"], batch["labels"], sizes):
            errors += found[:size].tolist() != truth[:true_size].tolist()
    return errors / len(corpus)


def main(
    backend: str = "tensorflow-net-dict", num_epochs: int = 8, folder: str = "supervised"
) -> tuple[list[dict], float]:
    """the lines of the log, and the error rate of the best model on the dev data"""
    train_data, dev_data = make_corpus(1, 200), make_corpus(2, 50)
    session = training.Session(
        Model(),
        extern_data=EXTERN_DATA,
        optimizer={"class": "adamw", "weight_decay": 0.01, "gradient_clip_global_norm": 5.0},
        learning_rate=zoo.get("warmup_cosine", peak=0.03, num_steps=200, warmup_steps=20),
        backend=backend,
    )
    train, evaluate = session.step(train_step), session.step(train_step, update=False)
    recognize = session.step(recognize_step, update=False)
    session.resume(folder)
    log = training.Log(session, folder)
    for epoch in session.epochs(num_epochs):
        for batch in session.batches(training.prefetch(batches(train_data, epoch))):
            log.step(train(batch))
        dev = session.averages(evaluate, batches(dev_data))
        log.epoch(dev=dev)
        session.save(folder, metrics={"dev_ctc": dev["ctc"]})
        checkpoints.remove_others(folder, keep_last=1, keep_best=2, metric="dev_ctc")
    best = checkpoints.best(folder, "dev_ctc")
    session.set_parameters(checkpoints.read_parameters(best))
    rate = error_rate(recognize, dev_data)
    if session.rank == 0:  # of several processes, under torchrun
        print(f"{best}: {100 * rate:.1f} % of all dev sequences have an error")
    return log.lines(), rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    parser.add_argument("--folder", default="supervised", help="of the checkpoints and the log")
    arguments = parser.parse_args()
    main(arguments.backend, folder=arguments.folder)
