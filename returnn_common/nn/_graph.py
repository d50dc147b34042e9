"""
The graph that tracing a model builds: one :class:`Node` per RETURNN layer to be, in regions.

A region is one net dict: the root, the unit of a rec layer, or one branch of a cond layer. Inside a
region everything is flat, whatever the modules look like; module paths only give the names.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._returnn import base_of

_NO_VALUE = (
    "{tensor} is a template without a value. Modules are called in a step function, which nn.lower runs, "
    "on the tensors that it gets as extern_data."
)
_OTHER_TRACE = (
    "{tensor} was computed elsewhere, in another stage or another call of nn.lower; compute it here, or keep it from "
    "one step loop for another one with nn.store and nn.load"
)
_OTHER_BACKEND = (
    "{tensor} belongs to another backend; a step may use only the tensors that it gets, and the "
    "parameters of the model"
)


class Node:
    """
    One RETURNN layer: its class, its options (which may hold tensors, dims and regions), and what it gives.

    ``cls`` is the layer class of RETURNN, or one of three that are no layers: ``data`` (extern data), ``prev`` (a loop
    state of the step before), ``sub`` (an output of a layer with several).
    """

    __slots__ = (
        "cls",
        "dims",
        "dtype",
        "hint",
        "is_output",
        "module",
        "name",
        "opts",
        "region",
        "tensor",
    )

    def __init__(self, cls: str, opts: dict[str, Any], *, dims: Sequence[Dim], dtype: str):
        self.cls = cls
        self.opts = opts
        self.dims = tuple(dims)
        self.dtype = dtype
        self.hint = cls
        self.module: rf.Module | None = None
        self.name: str | None = None  # fixed name, where RETURNN or the user wants one
        self.region: Region | None = None
        self.tensor: Tensor | None = None
        self.is_output = False

    def __repr__(self) -> str:
        return f"<Node {self.cls} {self.name or self.hint} {list(self.dims)}>"


class Region:
    """One net dict: nodes in the order of their creation."""

    def __init__(self, parent: Region | None = None, *, kind: str = "root"):
        self.parent = parent
        self.root: Region = self if parent is None else parent.root
        self.kind = kind
        self.nodes: list[Node] = []

    def __repr__(self) -> str:
        return f"<Region {self.kind}, {len(self.nodes)} nodes>"

    def depth_below(self, outer: Region | None) -> int:
        """how many regions up ``outer`` lies; None is the root, where parameters and data live"""
        depth, region = 0, self
        while region is not outer and region.parent is not None:
            region, depth = region.parent, depth + 1
        return depth

    def is_inside(self, outer: Region) -> bool:
        """whether this region is ``outer`` or lies in it"""
        region: Region | None = self
        while region is not None:
            if region is outer:
                return True
            region = region.parent
        return False


class Graph:
    """All that one trace creates. There is always a current one; outside :func:`tracing` it is a scratch graph."""

    current: Graph

    def __init__(self) -> None:
        self.root = Region()
        self.region = self.root
        # dynamic dim -> tensors that define its size, the first is the oldest
        self.dims: dict[Dim, list[Tensor]] = {}
        self.touched: list[Dim] = []  # dims that got a size node, to be reset after the trace
        # id(module) -> path; None while the model is not known, as in a declared stage
        self.modules: dict[int, str] | None = {}
        # parameters that were assigned, by id, with what they were before
        self.assigned: dict[int, tuple[rf.Parameter, Node]] = {}
        self.branch: Any = None  # of the innermost condition that is being traced
        self.effects: list[Tensor] = []  # layers that must run though nothing reads them
        self.cache: dict[Any, Any] = {}

    @contextlib.contextmanager
    def inside(self, region: Region) -> Iterator[Region]:
        """new nodes go to ``region``"""
        outer, self.region = self.region, region
        try:
            yield region
        finally:
            self.region = outer

    def name_module(self, model: rf.Module) -> None:
        """learn the paths of all modules, which name the layers"""
        self.modules = {id(module): path for path, module in model.named_modules()}


Graph.current = Graph()


def walk(value: Any) -> Iterator[Any]:
    """all leaves of nested dicts, lists and tuples"""
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from walk(item)
    else:
        yield value


def layer(
    cls: str,
    options: dict[str, Any],
    *,
    dims: Sequence[Dim],
    dtype: str,
    hint: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """
    A tensor ``[*dims]`` that the RETURNN layer ``cls`` gives with these options, which may hold
    tensors, dims and regions.

    ``hint`` says what it is for and becomes part of the layer's name.
    """
    node = Node(cls, _frozen(options), dims=dims, dtype=dtype)
    for value in walk(node.opts):
        if isinstance(value, Tensor):
            _check_source(value)
    node.hint = hint or cls
    node.module = _calling_module()
    return add_node(node, sparse_dim=sparse_dim, feature_dim=feature_dim)


def _check_source(tensor: Tensor) -> None:
    """ValueError for a tensor that the current graph cannot read"""
    raw = tensor.raw_tensor
    if not isinstance(raw, Node):
        message = _NO_VALUE if raw is None else _OTHER_BACKEND
        raise ValueError(message.format(tensor=tensor))
    if raw.region is not None and raw.region.root is not Graph.current.root:
        raise ValueError(_OTHER_TRACE.format(tensor=tensor))


def _frozen(value: Any) -> Any:
    """options in which a parameter stands for its value now, whatever is assigned to it later in the step"""
    if isinstance(value, rf.Parameter) and isinstance(value.raw_tensor, Node):
        if value.raw_tensor.tensor is None:
            value.raw_tensor.tensor = Tensor.copy(value)
        return value.raw_tensor.tensor
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_frozen(item) for item in value)
    return value


def add_node(
    node: Node, *, sparse_dim: Dim | None = None, feature_dim: Dim | None = None
) -> Tensor:
    """put ``node`` into the current region and give its tensor"""
    graph = Graph.current
    node.region = graph.region
    node.region.nodes.append(node)
    tensor = tensor_of(node, sparse_dim=sparse_dim, feature_dim=feature_dim)
    for dim in node.dims:
        if dim.is_dynamic() and base_of(dim) not in graph.dims:
            graph.dims[base_of(dim)] = [tensor]
    return tensor


def tensor_of(
    node: Node, *, sparse_dim: Dim | None = None, feature_dim: Dim | None = None
) -> Tensor:
    """a tensor with ``node`` as its value"""
    tensor = Tensor(node.name or node.hint, node.dims, node.dtype, sparse_dim=sparse_dim)
    if feature_dim is not None and feature_dim in node.dims and not sparse_dim:
        tensor.feature_dim = feature_dim
    tensor.raw_tensor = node
    node.tensor = tensor
    return tensor


def sub_output(
    parent: Tensor,
    name: str,
    *,
    dims: Sequence[Dim],
    dtype: str,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """the output ``name`` of a layer with several outputs; ``layer/name`` in RETURNN"""
    node = Node("sub", {"parent": parent}, dims=dims, dtype=dtype)
    node.name = name
    node.region = parent.raw_tensor.region
    return tensor_of(node, sparse_dim=sparse_dim, feature_dim=feature_dim)


def _calling_module() -> rf.Module | None:
    """the innermost module of the model whose method is running, which names the layer"""
    modules = Graph.current.modules
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        module = (
            frame.f_locals.get("self") if "self" in code.co_varnames[: code.co_argcount] else None
        )
        if modules is None:
            if isinstance(module, rf.Module):
                return module
        elif module is not None and id(module) in modules:
            return module
        frame = frame.f_back
    return None
