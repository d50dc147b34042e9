"""
What a session costs: steps per second beside the barest loop on the same backend, in one process, in turns.

On layers the peer is RETURNN's: the same net with the update of its ``Updater``, as its engine runs it. On torch it is
a loop that runs the same step with ``torch.optim``, without any check. The ratio is that of the medians over rounds.

    python benchmarks/session.py tensorflow-net-dict
    python benchmarks/session.py torch
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).parent.parent))

from returnn_common import nn, training
from returnn_common.zoo.encoder.conformer import make_conformer

TIME = nn.SpatialDim("time")
FEATURES, CLASSES = nn.FeatureDim("features", 40), nn.FeatureDim("classes", 30)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, TIME], "int32", sparse_dim=CLASSES),
}
LEARNING_RATE, EPSILON = 1e-4, 1e-8


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


def make_batch() -> dict[str, numpy.ndarray]:
    rng = numpy.random.RandomState(1)
    lengths = numpy.array([100, 90, 80, 70], dtype="int32")
    data = rng.normal(size=(4, 100, 40)).astype("float32")
    labels = rng.randint(0, 30, size=(4, 100)).astype("int32")
    return {"data": data, "data:size1": lengths, "classes": labels, "classes:size1": lengths}


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


# --- the peers


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


def steps_per_second(step: Callable[[], object], number: int) -> float:
    started = time.perf_counter()
    for _ in range(number):
        step()
    return number / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("backend", choices=training.BACKENDS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="of each in a round")
    args = parser.parse_args()
    batch = make_batch()
    peer = (torch_loop if args.backend == "torch" else returnn_loop)(batch)
    _, train = make_session(args.backend)
    loops = {"session": lambda: train(batch), "peer": peer}
    for loop in loops.values():
        steps_per_second(loop, 3)
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(args.rounds):
        for name, loop in loops.items():
            rates[name].append(steps_per_second(loop, args.steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(", ".join(f"{name} {value:.2f} steps/s" for name, value in medians.items()))
    ratio = statistics.median(a / b for a, b in zip(rates["session"], rates["peer"]))
    print(f"{args.backend}: session / peer = {ratio:.3f}")


if __name__ == "__main__":
    main()
