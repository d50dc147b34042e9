"""
Conditions, loops and assignments as RETURNN's cond, rec and variable_assign layers.

What a branch or a loop body computes is a region of its own: one flat net dict inside the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import returnn.frontend as rf
import tree
from returnn.tensor import Dim, Tensor

from ._graph import Graph, Node, Region, add_node, layer, sub_output, tensor_of
from ._returnn import masked_select_with_batch


def _like_node(cls: str, tensor: Tensor, **opts: Any) -> Node:
    return Node(cls, opts, dims=tensor.dims, dtype=tensor.dtype)


def _named_copy(tensor: Tensor, name: str, *, is_output: bool = True) -> Tensor:
    """a copy with a fixed name in the current region, which other regions may read"""
    node = _like_node("copy", tensor, **{"from": tensor})
    node.name, node.is_output = name, is_output and name != "output"
    return add_node(node, sparse_dim=tensor.sparse_dim, feature_dim=tensor.feature_dim)


def _outputs(tensors: Sequence[Tensor]) -> list[Tensor]:
    """copies named as the outputs of the current region: ``output``, ``output_1``, ..."""
    return [_named_copy(t, f"output_{i}" if i else "output") for i, t in enumerate(tensors)]


def _output(parent: Tensor, i: int, inner: Tensor, dims: Sequence[Dim]) -> Tensor:
    """the output ``i`` of ``parent`` (from 1 on), which is ``inner`` in its region"""
    return sub_output(
        parent,
        f"output_{i}",
        dims=dims,
        dtype=inner.dtype,
        sparse_dim=inner.sparse_dim,
        feature_dim=inner.feature_dim,
    )


# --- cond


def cond(pred: Tensor, true_fn: Callable, false_fn: Callable) -> Any:
    """``true_fn()`` if ``pred`` else ``false_fn()``, of which only one runs; both give the same nested structure"""
    true, false = _Branch(true_fn), _Branch(false_fn)
    true_value, false_value = true.value, false.value
    try:
        tree.assert_same_structure(true_value, false_value)
    except (TypeError, ValueError) as exc:
        raise ValueError(
            f"nn.cond: the two branches give different structures: {true_value} and {false_value}"
        ) from exc
    assigned = {**true.assigned, **false.assigned}
    for branch in (true, false):
        branch.close([param for param, _ in assigned.values()])
    outputs = [value for value in tree.flatten(true_value) if isinstance(value, Tensor)]
    outputs += [value for _, value in assigned.values()]
    branches = {"true_layer": _subnet(true.region), "false_layer": _subnet(false.region)}
    first = outputs[0] if outputs else Tensor("nothing", dims=(), dtype="int32")
    node = _like_node("cond", first, **{"from": [], "condition": pred, **branches})
    results = [add_node(node, sparse_dim=first.sparse_dim, feature_dim=first.feature_dim)]
    results += [_output(results[0], i, t, t.dims) for i, t in enumerate(outputs[1:], start=1)]
    rest = iter(results)
    value = tree.map_structure(
        lambda value: next(rest) if isinstance(value, Tensor) else value, true_value
    )
    for (param, _), new in zip(assigned.values(), rest):
        assign(param, new, op="assign")
    return value


class _Branch:
    """One branch of a condition, traced: what it gives, and the values that it assigns to parameters."""

    def __init__(self, fn: Callable):
        graph = Graph.current
        self.assigned: dict[int, tuple[rf.Parameter, Tensor]] = {}
        self.before: list[tuple[rf.Parameter, Node]] = []
        outer, graph.branch = graph.branch, self
        try:
            with graph.inside(Region(graph.region, kind="cond")) as self.region:
                self.value = fn()
        finally:
            graph.branch = outer
            for param, node in reversed(self.before):
                param.raw_tensor = node

    def assign(self, param: rf.Parameter, value: Tensor) -> None:
        """later reads in this branch see the new value; all others when the condition is decided"""
        self.before.append((param, param.raw_tensor))
        value = rf.expand_dims(value, [dim for dim in param.dims if dim not in value.dims])
        value = value.copy_transpose(param.dims)
        self.assigned[id(param)] = (param, value)
        param.raw_tensor = value.raw_tensor

    def close(self, params: Sequence[rf.Parameter]) -> None:
        """name the outputs; those of ``params`` that this branch does not assign stay as they are"""
        values = [value for value in tree.flatten(self.value) if isinstance(value, Tensor)]
        with Graph.current.inside(self.region):
            for param in params:
                values.append(self.assigned.get(id(param), (param, Tensor.copy(param)))[1])
            _outputs(values or [rf.zeros((), dtype="int32")])


def _subnet(region: Region) -> dict[str, Any]:
    return {"class": "subnetwork", "from": [], "subnetwork": region}


# --- loops


def while_loop(condition: Callable, body: Callable, initial: Any) -> Any:
    """``while condition(state): state = body(state)`` as a rec layer; the state may be nested"""
    return cond(
        condition(initial), lambda: _at_least_once(condition, body, initial), lambda: initial
    )


def _at_least_once(condition: Callable, body: Callable, initial: Any) -> Any:
    axis = Dim(None, name="loop")
    with Graph.current.inside(Region(Graph.current.region, kind="loop")) as region:
        state = _loop_state(initial, body)
        end = _named_copy(rf.logical_not(condition(state)), "end", is_output=False)
        _named_copy(end, "output")
    node = Node(
        "rec",
        {"from": [], "unit": region, "axis": axis, "include_eos": True, "max_seq_len": 2**31 - 1},
        dims=[axis],
        dtype="bool",
    )
    loop = add_node(node)
    return tree.map_structure(lambda value: _last(loop, value), state)


def scan(
    *,
    spatial_dim: Dim,
    xs: Any = None,
    initial: Any = None,
    body: Callable[[Any, Any], tuple[Any, Any]],
) -> tuple[Any, Any]:
    """outputs and last state of ``y, state = body(x, state)`` as one rec layer over ``spatial_dim`` of dynamic size"""
    graph = Graph.current
    with graph.inside(Region(graph.region, kind="loop")) as region:
        frames = tree.map_structure(lambda x: _frame(x, spatial_dim), xs)
        y: Any = None

        def step(state: Any) -> Any:
            nonlocal y
            y, state = body(frames, state)
            return state

        state = _loop_state(initial, step)
        flat = _outputs(tree.flatten(y))
    first = flat[0]
    node = Node(
        "rec",
        {"from": [], "unit": region, "axis": spatial_dim},
        dims=[spatial_dim, *first.dims],
        dtype=first.dtype,
    )
    loop = add_node(node, sparse_dim=first.sparse_dim, feature_dim=first.feature_dim)
    stacked = [loop]
    for i, tensor in enumerate(flat[1:], start=1):
        stacked.append(_output(loop, i, tensor, [spatial_dim, *tensor.dims]))
    last = tree.map_structure(lambda value: _last(loop, value), state)
    return tree.unflatten_as(y, stacked), last


def _frame(x: Tensor, axis: Dim) -> Tensor:
    dims = [dim for dim in x.dims if dim != axis]
    return layer(
        "rec_unstack",
        {"from": x, "axis": axis},
        dims=dims,
        dtype=x.dtype,
        hint="frame",
        sparse_dim=x.sparse_dim,
        feature_dim=x.feature_dim,
    )


def _loop_state(initial: Any, body: Callable) -> Any:
    """run ``body`` once on references to the step before; give the new state as named layers"""
    flat = tree.flatten(initial)
    nodes = [_like_node("copy", value) for value in flat]
    previous = []
    for i, (value, node) in enumerate(zip(flat, nodes)):
        node.name = f"state_{i}"
        before = _like_node("prev", value, current=node)
        before.region = node.region = Graph.current.region
        previous.append(
            tensor_of(before, sparse_dim=value.sparse_dim, feature_dim=value.feature_dim)
        )
    new_state = body(tree.unflatten_as(initial, previous))
    tensors = []
    for value, new, node in zip(flat, tree.flatten(new_state), nodes):
        node.opts.update({"from": new, "initial_output": value})
        tensors.append(add_node(node, sparse_dim=value.sparse_dim, feature_dim=value.feature_dim))
    return tree.unflatten_as(initial, tensors)


def _last(loop: Tensor, state: Tensor) -> Tensor:
    state.raw_tensor.opts["need_last"] = True
    return layer(
        "rec_last_output",
        {"rec_layer": loop, "sub_layer_name": state.raw_tensor.name},
        dims=state.dims,
        dtype=state.dtype,
        hint="last_state",
        sparse_dim=state.sparse_dim,
        feature_dim=state.feature_dim,
    )


# --- assignments


def assign(param: rf.Parameter, value: Tensor, *, op: str) -> None:
    """change a parameter in the step; later reads in the same step see the new value"""
    graph = Graph.current
    if graph.region.kind == "loop":
        raise NotImplementedError(
            "Parameter.assign inside of a loop has no RETURNN layer; "
            "give the value out of the loop, and assign it there"
        )
    if graph.branch is not None:
        graph.branch.assign(param, param + value if op == "add" else value)
        return
    graph.assigned.setdefault(id(param), (param, param.raw_tensor))
    variable = _variable(param.copy())
    done = layer(
        "variable_assign",
        {"var": variable, "value": value, "op": op},
        dims=(),
        dtype="int32",  # a zero, when it is done
        hint=op,
    )
    graph.effects.append(done)
    after = layer(
        "variable_read",
        {"var": variable, "control_dependencies": [done]},
        dims=param.dims,
        dtype=param.dtype,
        hint="after",
    )
    param.raw_tensor = after.raw_tensor


def _variable(tensor: Tensor) -> Tensor:
    node = tensor.raw_tensor
    return node.opts["var"] if node.cls == "variable_read" else tensor


def masked_select_subset(
    tensor: Tensor, *, mask: Tensor, dims: Sequence[Dim], out_dim: Dim | None
) -> tuple[Tensor, Dim]:
    """the mask has further dims (e.g. batch) besides the one selected from: RF's own composition of other operations"""
    return masked_select_with_batch(tensor, mask=mask, dim=dims[0], out_dim=out_dim)
