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
import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

#: Ops that belong to the host: why a GPU without a kernel for them is no loss.
HOST_OPS = {
    "ScalarSummary": "RETURNN writes the losses to the event file for TensorBoard, where it is asked to",
    "Const string": "the names of these summaries",
}
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction")
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
    lowered = nn.lower(model, STEPS[entry.kind][task], inputs(entry.kind, model), task=task)
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


@contextlib.contextmanager
def gpu_at_hand() -> Iterator[None]:
    """functions of a config that ask whether there is a GPU are told so"""
    import tensorflow as tf

    real = tf.config.list_physical_devices
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

    def devices(kind: str | None = None) -> list[Any]:
        others = [device for device in real(kind) if device.device_type != "GPU"]
        return [*others, gpu] if kind in (None, "GPU") else others

    with mock.patch.object(tf.config, "list_physical_devices", devices):
        yield


def tiny(entry: Any) -> Any:
    """:return: the model of the entry's tiny options; an encoder that is an option is a tiny conformer"""
    from returnn_common import zoo
    from returnn_common.zoo import registry

    options = dict(entry.tiny)
    parameters = inspect.signature(registry.load(entry)).parameters
    if "encoder" in parameters and "encoder" not in options:
        options["encoder"] = zoo.get("conformer", out_dim=8, num_layers=1, num_heads=2)
    return registry.load(entry)(**options)


def inputs(kind: str, model: Any) -> dict[str, Any]:
    """:return: the extern data of a model of this kind"""
    from returnn_common import nn

    time_dim, labels_dim = nn.SpatialDim("time"), nn.SpatialDim("labels")
    feature_dim = getattr(model, "in_dim", None) or nn.FeatureDim("feature", 8)
    data = {"data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32")}
    if kind == "segmental":
        labels = nn.Tensor(
            "classes", [nn.batch_dim, labels_dim], "int32", sparse_dim=model.target_dim
        )
        data["classes"] = labels
    return data


def encoder_loss(*, model: Any, extern_data: Any, **_: Any) -> None:
    _mark_square(encode(model, extern_data))


def encoder_output(*, model: Any, extern_data: Any, **_: Any) -> None:
    encode(model, extern_data).mark_as_output("out")


def encode(model: Any, extern_data: Any) -> Any:
    source = extern_data["data"]
    return model(source, in_spatial_dim=source.dims[1])[0]


def augmentation_loss(*, model: Any, extern_data: Any, **_: Any) -> None:
    _mark_square(model(extern_data["data"], spatial_dim=extern_data["data"].dims[1]))


def augmentation_output(*, model: Any, extern_data: Any, **_: Any) -> None:
    model(extern_data["data"], spatial_dim=extern_data["data"].dims[1]).mark_as_output("out")


def segmental_losses(*, model: Any, extern_data: Any, **_: Any) -> None:
    source, targets = extern_data["data"], extern_data["classes"]
    where = {
        "in_spatial_dim": source.dims[1],
        "targets": targets,
        "targets_spatial_dim": targets.dims[1],
    }
    for name, loss in model.losses(source, **where).items():
        loss.mark_as_loss(name)


def recognition(*, model: Any, extern_data: Any, **_: Any) -> None:
    source = extern_data["data"]
    labels, _ = model.decode_greedy(source, in_spatial_dim=source.dims[1])
    labels.mark_as_output("labels")


def _mark_square(out: Any) -> None:
    from returnn_common import nn

    nn.reduce_mean(nn.square(out), axis=out.feature_dim).mark_as_loss("square")


STEPS = {
    "frontend": {"train": encoder_loss, "forward": encoder_output},
    "encoder": {"train": encoder_loss, "forward": encoder_output},
    "augmentation": {"train": augmentation_loss, "forward": augmentation_output},
    "segmental": {"train": segmental_losses, "forward": recognition},
}


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
        if node.op in functions:
            continue
        if node.op in PYTHON_OPS:
            problems.append(f"{node.name}: {node.op} calls back into Python")
        elif not has_gpu_kernel(node):
            allowed = {node.op, _with_types(node)} & set(HOST_OPS)
            host_ops |= allowed
            if not allowed:
                problems.append(f"{node.name}: no GPU kernel for {_with_types(node)}")
    return {"ops": len(nodes), "problems": problems, "host_ops": sorted(host_ops)}


def has_gpu_kernel(node: Any) -> bool:
    """:return: whether a kernel is registered for the GPU, or for any device, that takes the types of this node"""
    from tensorflow.python.framework import kernels

    registered = kernels.get_registered_kernels_for_op(node.op).kernel
    return any(
        kernel.device_type in ("GPU", "DEFAULT") and _takes(kernel, node) for kernel in registered
    )


def _takes(kernel: Any, node: Any) -> bool:
    for constraint in kernel.constraint:
        if constraint.name in node.attr:
            value = node.attr[constraint.name]
            types = value.list.type or [value.type]
            if not set(types) <= set(constraint.allowed_values.list.type):
                return False
    return True


def _with_types(node: Any) -> str:
    """:return: the op and the types in its attributes, like ``Const string``"""
    import tensorflow as tf

    types = [
        tf.dtypes.as_dtype(value.type).name for _, value in sorted(node.attr.items()) if value.type
    ]
    return " ".join([node.op, *types])


if __name__ == "__main__":
    main()
