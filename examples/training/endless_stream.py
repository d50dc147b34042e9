"""
A stream of data without end: every so many steps evaluate, lower the learning rate, save, or stop.

The learning rate is halved where the loss on fixed dev data improves too little, and training ends where it was
often no better than the best one. A run that is killed at any moment goes on behind its last checkpoint as if
nothing had happened: each batch of the stream has a number, from which its data follow. The toy data are
frames, tagged with the largest of their features, summed over three frames.

    python examples/training/endless_stream.py --backend torch --folder endless_stream
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy

from returnn_common import nn, training
from returnn_common.training import checkpoints

EVERY, PATIENCE, MIN_DELTA = 50, 2, 0.001
TIME = nn.SpatialDim("time")
FEATURES, TAGS = nn.FeatureDim("features", 5), nn.FeatureDim("tags", 5)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "tags": nn.Tensor("tags", [nn.batch_dim, TIME], "int32", sparse_dim=TAGS),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        hidden_dim = nn.FeatureDim("hidden", 16)
        self.conv = nn.Conv1d(FEATURES, hidden_dim, 3, padding="same")
        self.output = nn.Linear(hidden_dim, TAGS)

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        hidden, _ = self.conv(source, in_spatial_dim=TIME)
        return self.output(nn.dropout(nn.relu(hidden), 0.1, axis=self.output.in_dim))


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["tags"])
    loss.mark_as_loss("ce", use_normalized_loss=True)


def stream(seed: int, start: int = 0) -> Iterator[tuple[list[numpy.ndarray], ...]]:
    """without end, from batch number `start` on: lists of features `[T, 5]` and of tags `[T]`"""
    for number in itertools.count(start):
        rng = numpy.random.RandomState([seed, number])
        data = [rng.normal(size=(rng.randint(5, 15), 5)).astype("float32") for _ in range(8)]
        around = [numpy.pad(x, [(1, 1), (0, 0)]) for x in data]
        yield data, [(x[:-2] + x[1:-1] + x[2:]).argmax(axis=1).astype("int32") for x in around]


def batches(start: int) -> Iterator[dict[str, numpy.ndarray]]:
    """behind the first `start` ones, drawn in the background"""
    return training.prefetch(training.batches_from(stream(1, start), EXTERN_DATA))


def make_dev_data() -> list[dict[str, numpy.ndarray]]:
    return list(training.batches_from(itertools.islice(stream(0), 20), EXTERN_DATA))


def main(
    backend: str = "tensorflow-net-dict", max_steps: int = 2000, folder: str = "endless_stream"
) -> list[dict]:
    """the lines of the log, one for each evaluation"""
    session = training.Session(
        Model(), extern_data=EXTERN_DATA, learning_rate=0.01, backend=backend
    )
    train, evaluate = session.step(train_step), session.step(train_step, update=False)
    log, dev_data = training.Log(session, folder), make_dev_data()
    session.resume(folder)
    is_due = training.every_steps(session, EVERY)
    newbob = training.Newbob(session)
    stopping = training.EarlyStopping(session, patience=PATIENCE, min_delta=MIN_DELTA)
    for batch in session.batches(batches):
        if stopping.done or session.global_train_step >= max_steps:
            break
        log.step(train(batch))
        if is_due():
            session.epoch += 1  # numbers the lines of the log
            dev = session.averages(evaluate, dev_data)
            log.epoch(dev=dev)
            newbob(dev["ce"])
            stopping(dev["ce"])
            session.save(folder, metrics={"dev_ce": dev["ce"]})
            checkpoints.remove_others(folder, keep_last=2, keep_best=1, metric="dev_ce")
    if session.rank == 0:  # of several processes, under torchrun
        best = checkpoints.best(folder, "dev_ce")
        loss = checkpoints.read_info(best)["metrics"]["dev_ce"]
        print(f"stopped at step {session.global_train_step}, best is {best}: dev {loss:.4g}")
    return log.lines()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    parser.add_argument("--folder", default="endless_stream", help="of the checkpoints and the log")
    arguments = parser.parse_args()
    main(arguments.backend, folder=arguments.folder)
