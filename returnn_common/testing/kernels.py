"""
Which ops of a TensorFlow graph have no kernel for a GPU, told without one.

TensorFlow's kernel registry knows them on every machine, with the full ``tensorflow`` wheel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

#: Ops that belong to the host: why a GPU without a kernel for them is no loss.
HOST_OPS = {
    "ScalarSummary": "RETURNN writes the losses to the event file for TensorBoard, where it is asked to",
    "Const string": "the names of these summaries, and the texts of assertions",
}
#: RETURNN compiles their kernels itself, for a GPU where there is one.
NATIVE_OPS = ("NativeLstm2", "GradOfNativeLstm2")
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction")


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


def without_gpu_kernel(graph_def: Any) -> list[str]:
    """:return: one line for each op without a GPU kernel, or that calls back into Python; none is good"""
    functions = {function.signature.name for function in graph_def.library.function}
    nodes = [
        *graph_def.node,
        *(node for function in graph_def.library.function for node in function.node_def),
    ]
    problems, good = [], set()
    for node in nodes:
        kind = (node.op, with_types(node))
        if node.op in functions or node.op in NATIVE_OPS or kind in good:
            continue
        if node.op in PYTHON_OPS:
            problems.append(f"{node.name}: {node.op} calls back into Python")
        elif has_gpu_kernel(node) or set(kind) & set(HOST_OPS):
            good.add(kind)
        else:
            problems.append(f"{node.name}: no GPU kernel for {with_types(node)}")
    return problems


def has_gpu_kernel(node: Any) -> bool:
    """:return: whether a kernel is registered for the GPU, or for any device, that takes the types of this node"""
    from tensorflow.python.framework import kernels

    registered = kernels.get_registered_kernels_for_op(node.op).kernel
    return any(
        kernel.device_type in ("GPU", "DEFAULT") and _takes(kernel, node) for kernel in registered
    )


def _takes(kernel: Any, node: Any) -> bool:
    for constraint in kernel.constraint:
        allowed = set(constraint.allowed_values.list.type)
        if allowed and constraint.name in node.attr:
            value = node.attr[constraint.name]
            types = value.list.type or [value.type]
            if not set(types) <= allowed:
                return False
    return True


def with_types(node: Any) -> str:
    """:return: the op and the types in its attributes, like ``Const string``"""
    import tensorflow as tf

    types = [
        tf.dtypes.as_dtype(value.type).name for _, value in sorted(node.attr.items()) if value.type
    ]
    return " ".join([node.op, *types])
