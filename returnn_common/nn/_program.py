"""What was traced, as a program that the passes change and the emitter writes: what is live, and who uses what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._graph import Graph, Node, Region, walk
from ._returnn import operation_of, raw_size_of, size_of


class Program:
    """A traced graph with its parameters and its roots: what must be computed."""

    def __init__(self, graph: Graph, roots: Iterable[Tensor]):
        self.root = graph.root
        self.dim_sources = graph.dims
        # kept as nodes: the dims forget their sizes when the trace ends
        self.sizes: list[tuple[Dim, Node]] = [
            (dim, raw_size_of(dim)) for dim in graph.dims if _has_size_node(dim)
        ]
        self.roots = [tensor.raw_tensor for tensor in roots]
        self.parameters: dict[int, tuple[str, rf.Parameter]] = {}  # id(node) -> (path, parameter)
        self.live: list[Node] = []
        self.uses: dict[int, list[Node]] = {}
        self.refresh()

    def refresh(self) -> None:
        """find anew which nodes are needed, and by which others"""
        order: dict[int, Node] = {}
        self.uses = {}
        stack = list(reversed(self.roots))
        while stack:
            node = stack.pop()
            if id(node) in order:
                continue
            order[id(node)] = node
            for source in _reads(node):
                self.uses.setdefault(id(source), []).append(node)
                stack.append(source)
        self.live = list(order.values())

    def in_order(self) -> list[Node]:
        """the live nodes of each region in the order of their creation: what is read comes first"""
        live = {id(node): node for node in self.live}
        regions = dict.fromkeys(node.region for node in self.live if node.region is not None)
        return [node for region in regions for node in region.nodes if id(node) in live]

    def take_over(self, source: Node, node: Node) -> None:
        """``node`` now reads what ``source`` read, of which it was the only user"""
        for read in _reads(source):
            users = [
                user for user in self.uses[id(read)] if user is not source and user is not node
            ]
            self.uses[id(read)] = [*users, node]

    def move_user(self, user: Node, old: Node, new: Node) -> None:
        """``user`` reads ``new`` instead of ``old``"""
        user.opts = _with_source(user.opts, old, new)
        self.uses[id(old)] = [other for other in self.uses[id(old)] if other is not user]
        self.uses.setdefault(id(new), []).append(user)

    def parameter(self, value: Any) -> rf.Parameter | None:
        """the model's parameter that this tensor is, if it is one"""
        if not isinstance(value, Tensor) or id(value.raw_tensor) not in self.parameters:
            return None
        return self.parameters[id(value.raw_tensor)][1]

    def reaches(self, start: Node, goal: Node) -> bool:
        """whether computing ``start`` needs ``goal``"""
        seen: set[int] = set()
        stack = [start]
        while stack:
            node = stack.pop()
            if node is goal:
                return True
            if id(node) not in seen:
                seen.add(id(node))
                stack.extend(_reads(node))
        return False

    def users(self, value: Tensor) -> list[Node]:
        """the live nodes that read it"""
        return self.uses.get(id(value.raw_tensor), [])

    def is_only_use(self, node: Node, user: Node) -> bool:
        """whether nothing but ``user``, in the same net dict, reads ``node``"""
        users = self.uses.get(id(node), [])
        is_root = any(root is node for root in self.roots)
        return users == [user] and not is_root and node.region is user.region and node.name is None


def _has_size_node(dim: Dim) -> bool:
    size = size_of(dim)
    return size is not None and isinstance(size.raw_tensor, Node) and bool(operation_of(dim))


def _reads(node: Node) -> list[Node]:
    """all a node needs, including the outputs inside of its regions"""
    sources: dict[int, Node] = {}
    for value in walk(node.opts):
        if isinstance(value, Tensor) and isinstance(value.raw_tensor, Node):
            sources[id(value.raw_tensor)] = value.raw_tensor
        elif isinstance(value, Region):
            sources.update((id(inner), inner) for inner in value.nodes if inner.name is not None)
        elif isinstance(value, Node):
            sources[id(value)] = value
    return list(sources.values())


def _with_source(value: Any, old: Node, new: Node) -> Any:
    """options with another source"""
    if isinstance(value, Tensor):
        return new.tensor if value.raw_tensor is old else value
    if isinstance(value, dict):
        return {key: _with_source(item, old, new) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_source(item, old, new) for item in value)
    return value
