"""
From the traced graph to what one would write by hand: layers that own their parameters, activations and dropout inside
the layer, one eval for a formula.

Each pass changes nodes in place and keeps the numbers; a node that is fused into another is no longer reachable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._graph import Graph, Node, Region, walk
from ._returnn import base_of, operation_of, size_of


class Program:
    """A traced graph with its parameters and its roots: what must be computed."""

    def __init__(
        self, graph: Graph, roots: Iterable[Tensor], parameters: dict[int, tuple[str, rf.Parameter]]
    ):
        self.root = graph.root
        self.dim_sources = graph.dims
        self.sizes: list[tuple[Dim, Any]] = [
            (dim, size_of(dim)) for dim in graph.dims if _has_size_node(dim)
        ]
        self.roots = [tensor.raw_tensor for tensor in roots]
        self.parameters = parameters  # id(node) -> (path, parameter)
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


def run(program: Program) -> None:
    """all passes, in the order in which they make room for each other"""
    for step in (
        _simplify_sizes,
        _fuse_arithmetic,
        _fuse_linear,
        _fuse_activation,
        _fuse_dropout,
        _fuse_softmax_scale,
    ):
        step(program)
        program.refresh()


# --- sizes


def _simplify_sizes(program: Program) -> None:
    """the size of a dim made by dim math is read off a tensor that has the dim: one ``length`` layer"""
    live = {id(node) for node in program.live}
    for dim, size in program.sizes:
        node = size.raw_tensor
        sources = program.dim_sources.get(base_of(dim), [])
        if node.cls == "length" or id(node) not in live or not sources:
            continue
        source = sources[0]
        fits = source.raw_tensor.region is program.root and node.region is program.root
        if fits and not program.reaches(source.raw_tensor, node):
            node.cls, node.hint, node.module = (
                "length",
                f"{dim.name}_size",
                source.raw_tensor.module,
            )
            node.opts = {"from": source, "axis": dim}


# --- arithmetic


def _fuse_arithmetic(program: Program) -> None:
    """an expression used once, by another expression of the same dtype, becomes part of it"""
    # operands first, so that each is complete when it is taken over
    for node in program.in_order():
        if node.cls == "expr":
            kind, *operands = node.opts["expr"]
            node.opts["expr"] = (kind, *(_inlined(program, node, operand) for operand in operands))


def _inlined(program: Program, node: Node, operand: Any) -> Any:
    source = operand.raw_tensor if isinstance(operand, Tensor) else None
    if not isinstance(source, Node) or source.cls != "expr" or source.dtype != node.dtype:
        return operand
    if not program.is_only_use(source, node) or _is_bias_add(program, source):
        return operand
    if not set(source.dims) <= set(node.dims) or _count(node.opts["expr"]) > 8:
        return operand
    program.take_over(source, node)
    return source.opts["expr"]


def _count(expr: Any) -> int:
    return 1 + sum(_count(operand) for operand in expr[1:]) if isinstance(expr, tuple) else 0


def _is_bias_add(program: Program, node: Node) -> bool:
    return _bias_add(program, node) is not None


# --- linear


def _bias_add(program: Program, node: Node) -> tuple[Node, Tensor] | None:
    """(product, bias) where ``node`` is product + bias, the bias a parameter over the product's last new dim"""
    if node.cls != "expr" or node.opts["expr"][0] != "add" or len(node.opts["expr"]) != 3:
        return None
    for product, bias in (node.opts["expr"][1:], node.opts["expr"][:0:-1]):
        if (
            not isinstance(product, Tensor)
            or program.parameter(bias) is None
            or len(bias.dims) != 1
        ):
            continue
        core = product.raw_tensor
        weight = _weight_of(program, core)
        if (
            weight is not None
            and weight.dims[1] == bias.dims[0]
            and program.is_only_use(core, node)
        ):
            return core, bias
    return None


def _weight_of(program: Program, node: Node) -> Tensor | None:
    """the weight where ``node`` is x W over W's first dim, or the rows of W at the labels x (an embedding)"""
    if node.cls == "gather":
        table, labels = node.opts["from"], node.opts["position"]
        is_lookup = (
            program.parameter(table) is not None
            and len(table.dims) == 2
            and isinstance(labels, Tensor)
        )
        if (
            not is_lookup
            or labels.sparse_dim != table.dims[0]
            or node.opts["axis"] != table.dims[0]
        ):
            return None
        return table
    if node.cls != "dot" or not isinstance(node.opts["reduce"], Dim):
        return None
    x, weight = _factors(program, node)
    if weight is None or len(weight.dims) != 2 or node.opts["reduce"] != weight.dims[0]:
        return None
    if weight.dims[0] != weight.dims[1] and weight.dims[1] in x.dims:
        return None
    return weight


def _factors(program: Program, node: Node) -> tuple[Tensor, Tensor | None]:
    a, b = node.opts["from"]
    if program.parameter(b) is not None:
        return a, b
    return b, (a if program.parameter(a) is not None else None)


def _fuse_linear(program: Program) -> None:
    """x W (+ b) as a linear layer that owns W and b, where all that read W and b are such layers"""
    pairs = [(node, _linear_parts(program, node)) for node in program.live]
    found = {id(node): parts for node, parts in pairs if parts is not None}
    cores = {id(parts[0]): node for node, parts in pairs if parts is not None}
    for node, parts in pairs:
        if parts is None:
            continue
        core, weight, bias = parts
        owners = [cores.get(id(user)) for user in program.users(weight)]
        same = all(owner is not None and _same_bias(found[id(owner)], bias) for owner in owners)
        if (
            same
            and all(_ownable(program, p) for p in (weight, bias) if p is not None)
            and _only(program, bias, owners)
        ):
            _make_linear(program, node, core, weight, bias)


def _linear_parts(program: Program, node: Node) -> tuple[Node, Any, Tensor | None] | None:
    with_bias = _bias_add(program, node)
    if with_bias is not None:
        core, bias = with_bias
        return core, _weight_of(program, core), bias
    weight = _weight_of(program, node)
    if weight is None or any(
        _is_bias_add_of(program, user, node) for user in program.uses.get(id(node), [])
    ):
        return None
    return node, weight, None


def _is_bias_add_of(program: Program, user: Node, core: Node) -> bool:
    parts = _bias_add(program, user)
    return parts is not None and parts[0] is core


def _same_bias(parts: tuple[Node, Tensor, Tensor | None], bias: Tensor | None) -> bool:
    other = parts[2]
    if other is None or bias is None:
        return other is bias
    return other.raw_tensor is bias.raw_tensor


def _only(program: Program, bias: Tensor | None, owners: list[Node | None]) -> bool:
    return bias is None or all(
        any(user is owner for owner in owners) for user in program.users(bias)
    )


def _ownable(program: Program, param: Tensor) -> bool:
    """a layer can create it: read in the root net only, in float32"""
    return param.dtype == "float32" and all(
        user.region is program.root for user in program.users(param)
    )


def _make_linear(
    program: Program, node: Node, core: Node, weight: Tensor, bias: Tensor | None
) -> None:
    x = core.opts["position"] if core.cls == "gather" else _factors(program, core)[0]
    node.cls, node.hint, node.module = "linear", "linear", core.module
    in_dim = {"in_dim": weight.dims[0]} if core.cls == "dot" else {}
    no_bias = {"with_bias": False} if bias is None else {}
    params = {"W": weight} if bias is None else {"W": weight, "b": bias}
    node.opts = {
        "from": x,
        **in_dim,
        "out_dim": weight.dims[1],
        "activation": None,
        **no_bias,
        "params": params,
    }


# --- activation, dropout and scale as options of a layer

_READ_DIMS_ONLY = ("length", "range_in_axis")


def _with_source(value: Any, old: Node, new: Node) -> Any:
    """options with another source; what reads only the size of a dim may read it from any tensor with that dim"""
    if isinstance(value, Tensor):
        return new.tensor if value.raw_tensor is old else value
    if isinstance(value, dict):
        return {key: _with_source(item, old, new) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_source(item, old, new) for item in value)
    return value


def _fuse_activation(program: Program) -> None:
    """an activation that directly follows a linear layer or a convolution is its option"""
    for node in program.live:
        if node.cls != "activation" or "opts" in node.opts:
            continue
        source: Node = node.opts["from"].raw_tensor
        if source.cls not in ("linear", "conv") or source.opts.get("activation"):
            continue
        for user in list(program.uses[id(source)]):
            if user.cls in _READ_DIMS_ONLY:
                program.move_user(user, source, node)
        if source.dtype == node.dtype and program.is_only_use(source, node):
            activation = node.opts["activation"]
            node.cls, node.hint, node.module = source.cls, source.hint, source.module
            node.opts = {**source.opts, "activation": activation}


def _fuse_dropout(program: Program) -> None:
    """dropout that only a linear layer or a convolution reads is its option"""
    for node in program.live:
        if node.cls not in ("linear", "conv") or not isinstance(node.opts["from"], Tensor):
            continue
        source = node.opts["from"].raw_tensor
        if (
            isinstance(source, Node)
            and source.cls == "dropout"
            and program.is_only_use(source, node)
        ):
            node.opts = {**node.opts, **source.opts}


def _fuse_softmax_scale(program: Program) -> None:
    """a factor right before a softmax is its ``energy_factor``"""
    for node in program.live:
        if node.cls != "softmax_over_spatial" or "energy_factor" in node.opts:
            continue
        source = node.opts["from"].raw_tensor
        if (
            not isinstance(source, Node)
            or source.cls != "expr"
            or not program.is_only_use(source, node)
        ):
            continue
        kind, *operands = source.opts["expr"]
        numbers = [operand for operand in operands if isinstance(operand, (int, float))]
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        if kind == "mul" and len(numbers) == 1 and len(tensors) == 1:
            node.opts = {**node.opts, "from": tensors[0], "energy_factor": float(numbers[0])}
