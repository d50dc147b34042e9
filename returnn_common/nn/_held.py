"""Parameters as nodes of a graph while something is traced, also where they hold the values of another backend."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator

import returnn.frontend as rf
from returnn.tensor import Tensor

from ._graph import Node

_HELD: weakref.WeakSet[rf.Module] = weakref.WeakSet()
_NODE = "_returnn_common_node"  # an attribute of the parameter


def fresh_node(param: rf.Parameter) -> Node:
    """a new node, which the parameter now is"""
    param.raw_tensor = node = Node("variable", {}, dims=param.dims, dtype=param.dtype)
    node.tensor = Tensor.copy(param)
    return node


def hold(model: rf.Module) -> None:
    """from now on another backend sets the raw tensors of its parameters; a trace takes them for nodes all the same"""
    for param in model.parameters():
        if isinstance(param.raw_tensor, Node):
            setattr(param, _NODE, param.raw_tensor)
    _HELD.add(model)


@contextlib.contextmanager
def as_nodes(
    params: Iterable[rf.Parameter], node_of: Callable[[rf.Parameter], Node] = fresh_node
) -> Iterator[None]:
    """these parameters are nodes for a while, whatever values they have"""
    before = [(param, param.raw_tensor) for param in params]
    try:
        for param, _ in before:
            param.raw_tensor = node_of(param)
        yield
    finally:
        for param, raw in before:
            param.raw_tensor = raw


@contextlib.contextmanager
def held_as_nodes() -> Iterator[None]:
    """all parameters of models that are held are nodes again, each the same one every time"""
    params = [param for model in list(_HELD) for param in model.parameters()]
    with as_nodes((p for p in params if not isinstance(p.raw_tensor, Node)), _kept_node):
        yield


def _kept_node(param: rf.Parameter) -> Node:
    if not hasattr(param, _NODE):
        setattr(param, _NODE, fresh_node(param))
    return getattr(param, _NODE)


__all__ = ["as_nodes", "fresh_node", "held_as_nodes", "hold"]
