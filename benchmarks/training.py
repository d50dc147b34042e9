"""
Training steps per second of a six-layer conformer on layers, beside the same on torch and beside its peers.

    python benchmarks/training.py [--rounds 5] [--steps 5] [--json FILE] [--only NAME ...]

Each contestant is a process of its own that stays; in each round each trains ``--steps`` steps, one after the other, so
that a drift of the machine meets all. Figures are medians over rounds. At the end, what ours computes on layers and on
torch is compared. It takes about 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import _equal
import _graphs
import _models
import _steps
from _process import Answers, Worker, warn_if_busy, write_json

CONTESTANTS = {
    "ours, layers": lambda: _steps.tensorflow_layers("ours"),
    "ours, torch": lambda: _steps.returnn_torch("ours"),
    "RF, torch": lambda: _steps.returnn_torch("rf"),
    "i6_models, torch": _steps.plain_torch,
    "RF, layers, shared masks": lambda: _steps.tensorflow_layers("rf"),
    "RF lowered by us, shared masks": lambda: _steps.tensorflow_layers("rf_lowered"),
    "RF, torch, shared masks": lambda: _steps.returnn_torch("rf", share_masks=True),
    "ours, layers, layer norm": lambda: _steps.tensorflow_layers("ours", norm="layer"),
    "RF, layerless, layer norm": lambda: _steps.tensorflow_layerless(norm="layer"),
}
RATIOS = [
    ("ours, layers", "RF, torch", 1.5),
    ("ours, layers", "i6_models, torch", 1.7),
    ("ours, layers", "ours, torch", None),
    ("ours, layers", "RF, layers, shared masks", None),
    ("RF lowered by us, shared masks", "RF, torch, shared masks", None),
    ("RF lowered by us, shared masks", "RF, layers, shared masks", None),
    ("ours, layers, layer norm", "RF, layerless, layer norm", None),
]
NOTES = (
    "RF, layers: dropout masks shared over batch and time, as its layers cannot draw others; half the random numbers",
    _models.I6_DIFFERENCES,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps of each contestant in a round")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=CONTESTANTS, help=", ".join(CONTESTANTS)
    )
    parser.add_argument(
        "--quick", action="store_true", help="one step of ours, and compare one layer"
    )
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        _graphs.with_deep_stack(lambda: work(args.worker))
        return
    if args.quick:
        args.only, args.rounds, args.steps = list(CONTESTANTS)[:2], 1, 1
    load = warn_if_busy()
    rounds = measure(args.only or list(CONTESTANTS), rounds=args.rounds, steps=args.steps)
    with Worker("equal") as worker:
        differences = worker.ask(1 if args.quick else 6)
    figures = {
        "steps_per_second": {name: statistics.median(rates) for name, rates in rounds.items()},
        "ratios": ratios_of(rounds),
        "differences": differences,
    }
    print_tables(figures)
    if args.json:
        write_json(args.json, {**figures, "rounds": rounds, "notes": NOTES, "load": load})


def work(name: str) -> None:
    """In a process of its own: train as many steps as asked, and say how long they took."""
    answers = Answers()
    if name == "equal":
        for question in answers.questions():
            answers.give(**_equal.differences(num_layers=int(question)))
        return
    start = time.perf_counter()
    with CONTESTANTS[name]() as train_step:
        loss = float(train_step())
        answers.give(seconds=time.perf_counter() - start, loss=loss)
        for question in answers.questions():
            start = time.perf_counter()
            for _ in range(int(question)):
                loss = float(train_step())
            answers.give(seconds=time.perf_counter() - start, loss=loss)


def measure(names: list[str], *, rounds: int, steps: int) -> dict[str, list[float]]:
    """:return: steps per second of each contestant in each round, which does not count one to warm up"""
    rates: dict[str, list[float]] = {name: [] for name in names}
    workers: list[Worker] = []
    try:
        for name in names:
            workers.append(Worker(name))
            print(f"{name}: ready after {workers[-1].answer()['seconds']:.0f} s", flush=True)
        for number in range(rounds + 1):
            for worker in workers:
                seconds = worker.ask(steps)["seconds"]
                if number:
                    rates[worker.name].append(steps / seconds)
    finally:
        for worker in workers:
            worker.close()
    return rates


def ratios_of(rounds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """:return: the medians of the ratios within a round"""
    return [
        {"of": a, "to": b, "ratio": statistics.median(x / y for x, y in zip(rounds[a], rounds[b])), "bar": bar}
        for a, b, bar in RATIOS
        if a in rounds and b in rounds
    ]  # fmt: skip


def print_tables(figures: dict[str, Any]) -> None:
    print("\nsteps per second")
    for name, rate in figures["steps_per_second"].items():
        print(f"{name:66s}{rate:9.3f}")
    print("\nratio".ljust(76) + "     bar")
    for ratio in figures["ratios"]:
        of, to, value, bar = ratio.values()
        print(f"{of + ' / ' + to:66s}{value:9.2f}{_verdict(bar, bar and value >= bar)}")
    print(
        "\nlargest relative difference, layers to torch, and a short sequence alone to itself in a batch"
    )
    for name, value in figures["differences"].items():
        print(f"{name:66s}{value:9.1e}{_verdict(_equal.BARS[name], value <= _equal.BARS[name])}")
    print("", *NOTES, sep="\n")


def _verdict(bar: float | None, reached: Any) -> str:
    return "" if bar is None else f"{bar:8.2g}  {'reached' if reached else 'MISSED'}"


if __name__ == "__main__":
    main()
