"""
What a session costs: steps per second beside a peer on the same backend, in one process, in turns.

    python benchmarks/session.py loop       a bare loop: RETURNN's updater, or torch.optim
    python benchmarks/session.py engine     RETURNN's whole engine over a dataset
    python benchmarks/session.py random     dropout with TensorFlow's own random numbers (layers only)

``--backend torch`` for torch. In ``loop`` both run one batch again and again. In ``engine`` RETURNN's engine trains
epochs of a dataset, with its threads and its log, and the session the same epochs, read through the same dataset.
Ratios are medians over rounds: of steps per second, and of steps per second of CPU time, which a busy machine
disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).parent.parent))

import _engines
import _process

from returnn_common import nn, training
from returnn_common.data.part import Part
from returnn_common.zoo.encoder.conformer import make_conformer

TIME = nn.SpatialDim("time")
FEATURES, CLASSES = nn.FeatureDim("features", 40), nn.FeatureDim("classes", 30)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}
LEARNING_RATE, EPSILON = 1e-4, 1e-8
LENGTHS = (100, 90, 80, 70)
BATCH_SIZE = len(LENGTHS) * max(LENGTHS)
#: One contestant: it trains so many steps.
Turn = Callable[[int], object]


class Model(nn.Module):
    """a small conformer and an output layer"""

    def __init__(self):
        super().__init__()
        self.encoder = make_conformer(FEATURES, 64, num_layers=2, num_heads=4, subsampling=1)
        self.output = nn.Linear(self.encoder.out_dim, CLASSES)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        x, _ = self.encoder(x, in_spatial_dim=TIME)
        return self.output(x)


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss("ce", use_normalized_loss=True)


def make_seqs(number: int) -> list[dict[str, numpy.ndarray]]:
    rng = numpy.random.RandomState(1)
    return [
        {
            "data": rng.normal(size=(length, 40)).astype("float32"),
            "classes": rng.randint(0, 30, size=length).astype("int32"),
        }
        for length in (LENGTHS * number)[:number]
    ]


def make_dataset(num_batches: int) -> dict[str, Any]:
    seqs = make_seqs(num_batches * len(LENGTHS))
    sizes = {"data": (40, 2), "classes": (30, 1)}
    return {"class": "StaticDataset", "data": seqs, "output_dim": sizes}


def make_batch() -> dict[str, numpy.ndarray]:
    (batch,) = Part(make_dataset(1), keys=["data", "classes"]).batches(batch_size=BATCH_SIZE)
    return batch


def make_session(backend: str) -> tuple[training.Session, training.Step]:
    optimizer = {"class": "adam", "epsilon": EPSILON}
    session = training.Session(
        Model(),
        extern_data=EXTERN_DATA,
        optimizer=optimizer,
        learning_rate=LEARNING_RATE,
        backend=backend,
    )
    return session, session.step(train_step)


def repeated(step: Callable[[], object]) -> Turn:
    def turn(number: int) -> None:
        for _ in range(number):
            step()

    return turn


# --- a bare loop


def returnn_loop(batch: dict[str, numpy.ndarray]) -> Callable[[], object]:
    """a step with RETURNN's updater"""
    import returnn.tf.compat as tf_compat
    import tensorflow as tf
    from returnn.config import Config, global_config_ctx
    from returnn.tf.network import TFNetwork
    from returnn.tf.updater import Updater

    from returnn_common import testing

    lowered = nn.lower(Model(), train_step, EXTERN_DATA)
    config = Config(lowered.config(optimizer={"class": "adam", "epsilon": EPSILON}))
    graph = tf.Graph()
    session = tf_compat.v1.Session(graph=graph)
    with global_config_ctx(config), graph.as_default():
        net = TFNetwork(config=config, train_flag=True)
        net.construct_from_dict(config.typed_value("network"))
        net.initialize_params(session)
        updater = Updater(config=config, network=net, initial_learning_rate=LEARNING_RATE)
        updater.set_trainable_vars(net.get_trainable_params())
        updater.init_optimizer_vars(session)
        session.run(updater.learning_rate_var.initializer)
        updater.set_learning_rate(LEARNING_RATE, session)
        fetches = net.get_fetches_dict(config=config, should_train=True, should_eval=True)
        fetches["optim_op"] = updater.get_optim_op()
        feed = testing.feed_dict(net, batch)
    return lambda: session.run(fetches, feed)


def torch_loop(batch: dict[str, numpy.ndarray]) -> Callable[[], object]:
    """a step with torch.optim, on the same RF model"""
    import returnn.frontend as rf
    import torch
    from returnn.tensor import TensorDict, batch_dim

    rf.select_backend_torch()
    model = Model()
    parameters = [param.raw_tensor for param in model.parameters() if param.trainable is not False]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=EPSILON)

    def step() -> float:
        data = TensorDict()
        sizes = nn.Tensor(
            "size", [batch_dim], "int32", raw_tensor=torch.tensor(batch["data:size1"])
        )
        batch_dim.dyn_size_ext = nn.Tensor(
            "batch", (), "int32", raw_tensor=torch.tensor(4, dtype=torch.int32)
        )
        TIME.dyn_size_ext = sizes
        for name, template in EXTERN_DATA.items():
            data.data[name] = template.copy_template()
            data.data[name].raw_tensor = torch.from_numpy(batch[name])
        rf.init_train_step_run_ctx(train_flag=True)
        train_step(model=model, extern_data=data)
        total = rf.get_run_ctx().total_loss().raw_tensor
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        TIME.reset_batch_and_raw()
        return float(total.detach())

    return step


def bare_loop(backend: str, num_steps: int) -> dict[str, Turn]:
    """the session beside the barest loop"""
    batch = make_batch()
    peer = (torch_loop if backend == "torch" else returnn_loop)(batch)
    _, train = make_session(backend)
    return {"session": repeated(lambda: train(batch)), "bare loop": repeated(peer)}


# --- RETURNN's engine


def engine(backend: str, num_steps: int) -> dict[str, Turn]:
    """the session beside RETURNN's engine; a turn is an epoch"""
    dataset = make_dataset(num_steps)
    part = Part(dataset, keys=["data", "classes"])
    session, train = make_session(backend)

    def epoch_of_session(number: int) -> None:
        session.epoch += 1
        batches = part.batches(session.epoch, batch_size=BATCH_SIZE)
        assert sum(1 for _ in map(train, training.prefetch(batches))) == number

    train_epoch = (torch_epoch if backend == "torch" else tensorflow_epoch)(dataset)

    def epoch_of_engine(number: int) -> None:
        assert train_epoch() == number

    return {"session": epoch_of_session, "RETURNN's engine": epoch_of_engine}


SETTINGS = {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE, "num_epochs": 10**6}


def tensorflow_epoch(dataset: dict[str, Any]) -> _engines.Epoch:
    lowered = nn.lower(Model(), train_step, EXTERN_DATA)
    optimizer = {"class": "adam", "epsilon": EPSILON}
    text = lowered.config_text(**SETTINGS, optimizer=optimizer, log_verbosity=3)
    return _engines.tensorflow_engine(text, dataset)


def torch_epoch(dataset: dict[str, Any]) -> _engines.Epoch:
    settings = {
        **SETTINGS,
        "behavior_version": 31,
        "extern_data": {name: _options(tensor) for name, tensor in EXTERN_DATA.items()},
        "get_model": lambda **_: Model(),
        "train_step": train_step,
        "optimizer": {"class": "adam", "eps": EPSILON},
    }
    return _engines.torch_engine(settings, dataset)


def _options(tensor: nn.Tensor) -> dict[str, Any]:
    return {"dims": tensor.dims, "dtype": tensor.dtype, "sparse_dim": tensor.sparse_dim}


# --- random numbers


def random_numbers(backend: str, num_steps: int) -> dict[str, Turn]:
    """the session with random numbers from (seed, run, place) beside one with those of TensorFlow's generators"""
    from returnn_common.training import _layers

    if backend == "torch":
        raise SystemExit("random: the peer is TensorFlow's, there is none on torch")
    batch = make_batch()
    _, ours = make_session(backend)
    replaced, _layers.random_numbers_of = (
        _layers.random_numbers_of,
        lambda draw: contextlib.nullcontext(),
    )
    try:
        _, theirs = make_session(backend)
    finally:
        _layers.random_numbers_of = replaced
    return {
        "session": repeated(lambda: ours(batch)),
        "TensorFlow's random numbers": repeated(lambda: theirs(batch)),
    }


# --- in turns


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """what RETURNN prints goes nowhere"""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept), os.close(nowhere)


def rates_of(turn: Turn, number: int) -> tuple[float, float]:
    """steps per second, and per second of CPU time"""
    clocks = time.perf_counter, time.process_time
    started = [clock() for clock in clocks]
    turn(number)
    wall, cpu = (number / (clock() - start) for clock, start in zip(clocks, started))
    return wall, cpu


MODES = {"loop": bare_loop, "engine": engine, "random": random_numbers}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="of each in a round")
    args = parser.parse_args()
    _process.warn_if_busy()
    with silent():
        turns = MODES[args.mode](args.backend, args.steps)
        for turn in turns.values():
            turn(args.steps)  # warm
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
        for _ in range(args.rounds):
            for name, turn in turns.items():
                rates[name].append(rates_of(turn, args.steps))
    report(args.backend, rates)


def report(backend: str, rates: dict[str, list[tuple[float, float]]]) -> None:
    for name, pairs in rates.items():
        print(f"{name}: {statistics.median(wall for wall, _ in pairs):.2f} steps/s")
    ours, theirs = rates.values()
    for kind, what in enumerate(("", ", of CPU time")):
        ratio = statistics.median(a[kind] / b[kind] for a, b in zip(ours, theirs))
        print(f"{backend}: {' / '.join(rates)} = {ratio:.3f}{what}")


if __name__ == "__main__":
    main()
