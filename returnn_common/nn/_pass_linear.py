"""
The linear layers of a program: a product with a weight, and the bias that is added to it, become one layer.
"""

from __future__ import annotations

from typing import Any

from returnn.tensor import Dim, Tensor

from ._graph import Node
from ._program import Program


def bias_add(program: Program, node: Node) -> tuple[Node, Tensor] | None:
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


def fuse_linear(program: Program) -> None:
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
    with_bias = bias_add(program, node)
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
    parts = bias_add(program, user)
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
