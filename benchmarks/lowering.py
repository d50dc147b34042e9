"""
How compact the layers are that a conformer lowers to, and how soon it trains, beside RETURNN's own route to layers.

One module, RF's ``ConformerEncoder``, goes both ways: through ``nn.lower``, and through RETURNN's own backend
``tensorflow-net-dict``, the peer. So both compute the same, with RF's default masks of dropout, shared over batch and
time. Every run is a process of its own; times begin after all imports and are medians.

    python benchmarks/lowering.py [--runs 3] [--json FILE]

takes about 2 minutes for each of the runs on two cores, nearly all of it for the peer. ``--quick`` leaves the peer and
all times but one out.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import _graphs
from _process import Answers, Worker, warn_if_busy, write_json

NUM_LAYERS, BARS = 6, {
    "layers": 290,
    "ops": 5000,
    "construct_ratio": 0.10,
    "start_ratio": 0.35,
    "growth": 2.4,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="processes for each figure")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="count our layers and ops only")
    parser.add_argument(
        "--worker", nargs=3, metavar=("WHO", "WHAT", "LAYERS"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.worker:
        who, what, num_layers = args.worker
        _graphs.with_deep_stack(lambda: work(who, what, int(num_layers)))
        return
    load = warn_if_busy()
    runs = measure(1 if args.quick else args.runs, quick=args.quick)
    figures = summary(runs)
    print_table(figures)
    if args.json:
        write_json(args.json, {"figures": figures, "bars": BARS, "runs": runs, "load": load})


def work(who: str, what: str, num_layers: int) -> None:
    """In a fresh process: construct one net, or go on until its first training step."""
    answers = Answers()
    import returnn.tf.engine  # noqa: F401
    import tensorflow  # noqa: F401

    from returnn_common import nn, testing, zoo  # noqa: F401
    from returnn_common.zoo.encoder import conformer  # noqa: F401

    maker = _graphs.MAKERS["rf_lowered" if who == "ours" else "rf"]
    graph = _graphs.TrainingGraph(maker, num_layers=num_layers)
    if what == "start":
        graph.first_step()
        answers.give(**graph.seconds, ops_with_updater=graph.num_ops_with_updater)
        return
    with graph.constructed(dynamic_train_flag=False):
        answers.give(**graph.seconds, layers=graph.num_layers, ops=graph.num_ops)


def measure(num_runs: int, *, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """:return: by "who what layers", what each run answered; ours and the peer take turns"""
    plan = [("ours", "construct", NUM_LAYERS)]
    if not quick:
        plan += [("rf", "construct", NUM_LAYERS)]
        plan += [(who, "start", NUM_LAYERS) for who in ("ours", "rf")]
        plan += [("ours", "construct", 12), ("ours", "construct", 24)]
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(num_runs):
        for job in plan:
            with Worker(*job) as worker:
                runs.setdefault(" ".join(map(str, job)), []).append(worker.answer())
    return runs


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """:return: medians, and ratios of medians"""

    def median(who: str, what: str, num_layers: int, key: str) -> float | None:
        values = [run[key] for run in runs.get(f"{who} {what} {num_layers}", [])]
        return statistics.median(values) if values else None

    figures = {
        f"{who}_{key}": median(who, what, NUM_LAYERS, key)
        for key, what in {"layers": "construct", "ops": "construct", "construct": "construct",
                          "start": "start", "ops_with_updater": "start"}.items()
        for who in ("ours", "rf")
    }  # fmt: skip
    for key in ("construct", "start"):
        figures[f"{key}_ratio"] = _ratio(figures[f"ours_{key}"], figures[f"rf_{key}"])
    for num_layers in (12, 24):
        figures[f"construct_{num_layers}"] = median("ours", "construct", num_layers, "construct")
    figures["growth"] = _ratio(figures["construct_24"], figures["construct_12"])
    return figures


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def print_table(figures: dict[str, Any]) -> None:
    rows = [
        ("layers in the net dict", *_both(figures, "layers"), "layers"),
        ("TensorFlow ops before gradients", *_both(figures, "ops"), "ops"),
        ("... with objective and updater", *_both(figures, "ops_with_updater"), None),
        ("seconds to trace and construct", *_both(figures, "construct"), None),
        ("ratio", figures["construct_ratio"], 1, "construct_ratio"),
        ("seconds to the first step", *_both(figures, "start"), None),
        ("ratio", figures["start_ratio"], 1, "start_ratio"),
        ("construct, 24 layers over 12", figures["growth"], None, "growth"),
    ]
    print(f"{NUM_LAYERS} conformer layers".ljust(34) + "      ours        RF       bar")
    for label, ours, peer, bar in rows:
        if ours is not None:
            verdict = (
                f"{_number(BARS[bar])}  {'reached' if ours <= BARS[bar] else 'MISSED'}"
                if bar
                else ""
            )
            print(f"{label:34s}{_number(ours)}{_number(peer)}{verdict}")


def _both(figures: dict[str, Any], key: str) -> tuple[Any, Any]:
    return figures[f"ours_{key}"], figures[f"rf_{key}"]


def _number(value: float | None) -> str:
    if value is None:
        return " " * 10
    return f"{value:10,.0f}" if value == int(value) and value >= 10 else f"{value:10.3g}"


if __name__ == "__main__":
    main()
