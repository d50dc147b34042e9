"""
Whether all that our layers need runs on a GPU, told without one.

Every entry of the zoo is lowered, and its training graph (gradients and updater too) and its recognition graph are
built as on a machine with a GPU. TensorFlow's kernel registry then says which of the ops have no kernel for a GPU; it
knows them on every machine, with the full ``tensorflow`` wheel. Ops that call back into Python are listed, too.

    python benchmarks/gpu_ready.py [ENTRY ...] [--json FILE]

exits with 1 where anything is listed that is not in `HOST_OPS`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from returnn_common.testing.kernels import (
    HOST_OPS,
    NATIVE_OPS,
    PYTHON_OPS,
    gpu_at_hand,
    has_gpu_kernel,
    with_types,
)

NO_MODEL = ("dataset", "vocab", "schedule")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument(
        "entries", nargs="*", metavar="ENTRY", help="names in the zoo; all by default"
    )
    parser.add_argument("--json", help="write what was found to this file")
    args = parser.parse_args()
    os.environ.update(
        {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "DISABLE_CUDA": "1"}
    )
    import _process

    answers = _process.Answers()
    found = check_zoo(args.entries, report=lambda line: print(line, file=answers.out, flush=True))
    if args.json:
        _process.write_json(args.json, found)
    problems = sum(len(graph["problems"]) for graph in found)
    print(f"{len(found)} graphs, {problems} problems", file=answers.out, flush=True)
    raise SystemExit(1 if problems else 0)


def check_zoo(names: list[str], *, report: Any) -> list[dict[str, Any]]:
    """:return: for each graph its entry, task, number of ops, problems, and the host ops it has"""
    from returnn_common.zoo import registry

    entries = [registry.find(name) for name in names] if names else registry.entries()
    found = []
    for entry in entries:
        if entry.kind in NO_MODEL or "tensorflow-net-dict" not in entry.backends:
            continue
        for task in ("train", "forward"):
            result = {"entry": entry.full_name, "task": task, **check_graph(graph_of(entry, task))}
            found.append(result)
            report(
                f"{entry.full_name}, {task}: {result['ops']} ops, host ops: {', '.join(result['host_ops']) or 'none'}"
            )
            for problem in result["problems"]:
                report(f"  {problem}")
    return found


# --- graphs


def graph_of(entry: Any, task: str) -> Any:
    """:return: the GraphDef of a tiny model of this entry, as on a machine with a GPU"""
    import tensorflow as tf
    from _graphs import TrainingGraph
    from returnn.config import Config
    from returnn.tf.updater import Updater

    from returnn_common import nn

    model = tiny(entry)
    lowered = nn.lower(model, STEPS[task](entry.kind), inputs(entry.kind, model), task=task)
    with gpu_at_hand():
        config = Config(lowered.config(optimizer={"class": "adam"}))
        graph = TrainingGraph(lambda: (config, config.typed_dict["network"]))
        training = task == "train"
        with graph.constructed(dynamic_train_flag=training, train=False):
            parameters = graph.network.get_trainable_params()
            if training and parameters:
                updater = Updater(config=config, network=graph.network)
                updater.set_trainable_vars(parameters)
                updater.get_optim_op()
            return tf.compat.v1.get_default_graph().as_graph_def()


def tiny(entry: Any) -> Any:
    """:return: the model of the entry's tiny options"""
    from returnn_common.testing import Case

    return Case(entry).make()


def inputs(kind: str, model: Any) -> dict[str, Any]:
    """:return: the extern data of a model of this kind"""
    from returnn_common.testing import kinds

    return kinds.inputs(kind, model)


def training_step(kind: str) -> Any:
    """:return: the step that marks the losses of a model of this kind"""
    from returnn_common.testing import kinds

    return kinds.step_of(kind)


def recognition_step(kind: str) -> Any:
    """:return: greedy decoding where a model has it, else a step that marks what training minimises"""
    from returnn_common.testing import kinds

    def step(*, model: Any, extern_data: Any, **_: Any) -> None:
        source = extern_data["data"]
        if hasattr(model, "decode_greedy"):
            labels, _ = model.decode_greedy(source, in_spatial_dim=source.dims[1])
            labels.mark_as_output("labels")
            return
        for name, value in kinds.losses_of(kind, model, extern_data).items():
            value.mark_as_output(name)

    return step


STEPS = {"train": training_step, "forward": recognition_step}


# --- kernels


def check_graph(graph_def: Any) -> dict[str, Any]:
    """:return: what :func:`check_zoo` does for one graph; functions that the graph calls are looked into"""
    functions = {function.signature.name for function in graph_def.library.function}
    nodes = [
        *graph_def.node,
        *(node for function in graph_def.library.function for node in function.node_def),
    ]
    problems, host_ops = [], set()
    for node in nodes:
        if node.op in functions or node.op in NATIVE_OPS:
            continue
        if node.op in PYTHON_OPS:
            problems.append(f"{node.name}: {node.op} calls back into Python")
        elif not has_gpu_kernel(node):
            allowed = {node.op, with_types(node)} & set(HOST_OPS)
            host_ops |= allowed
            if not allowed:
                problems.append(f"{node.name}: no GPU kernel for {with_types(node)}")
    return {"ops": len(nodes), "problems": problems, "host_ops": sorted(host_ops)}


if __name__ == "__main__":
    main()
