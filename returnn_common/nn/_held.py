"""Models whose parameters hold the values of another backend, that of a session, instead of nodes of a graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import returnn.frontend as rf
from returnn.tensor import Tensor

from ._graph import Node

_HELD: weakref.WeakSet[rf.Module] = weakref.WeakSet()
_NODE = "_returnn_common_node"  # an attribute of the parameter


def hold(model: rf.Module) -> None:
    """from now on another backend sets the raw tensors of its parameters; a trace takes them for nodes all the same"""
    for param in model.parameters():
        if isinstance(param.raw_tensor, Node):
            setattr(param, _NODE, param.raw_tensor)
    _HELD.add(model)


@contextlib.contextmanager
def parameters_as_nodes() -> Iterator[None]:
    """all parameters of models that are held are nodes again, each the same one every time"""
    before = [(param, param.raw_tensor) for model in list(_HELD) for param in model.parameters()]
    try:
        for param, raw in before:
            if not isinstance(raw, Node):
                param.raw_tensor = _node_of(param)
        yield
    finally:
        for param, raw in before:
            param.raw_tensor = raw


def _node_of(param: rf.Parameter) -> Node:
    if not hasattr(param, _NODE):
        node = Node("variable", {}, dims=param.dims, dtype=param.dtype)
        param.raw_tensor = node
        node.tensor = Tensor.copy(param)
        setattr(param, _NODE, node)
    return getattr(param, _NODE)


__all__ = ["hold", "parameters_as_nodes"]
