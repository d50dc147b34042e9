"""
From the traced graph to what one would write by hand: layers that own their parameters, activations and dropout inside
the layer, one eval for a formula.

Each pass changes nodes in place and keeps the numbers; a node that is fused into another is no longer reachable.
"""

from __future__ import annotations

from typing import Any

from returnn.tensor import Tensor

from ._graph import Node
from ._pass_linear import bias_add, fuse_linear
from ._program import Program
from ._returnn import base_of


def run(program: Program) -> None:
    """all passes, in the order in which they make room for each other"""
    for step in (
        _simplify_sizes,
        _fuse_arithmetic,
        fuse_linear,
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
    for dim, node in program.sizes:
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
    if not program.is_only_use(source, node) or bias_add(program, source) is not None:
        return operand
    if not set(source.dims) <= set(node.dims) or _count(node.opts["expr"]) > 8:
        return operand
    program.take_over(source, node)
    return source.opts["expr"]


def _count(expr: Any) -> int:
    return 1 + sum(_count(operand) for operand in expr[1:]) if isinstance(expr, tuple) else 0


# --- activation, dropout and scale as options of a layer


# what reads only the size of a dim may read it from any tensor with that dim
_READ_DIMS_ONLY = ("length", "range_in_axis")


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
