"""From nodes to a net dict: names, references between regions, and which layer creates which parameter."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from . import _expressions, _initial
from ._config_calls import ConfigFunction
from ._graph import Node, Region, walk
from ._program import Program

_INITIAL_OPTION = {
    ("linear", "W"): "forward_weights_init",
    ("linear", "b"): "bias_init",
    ("conv", "W"): "forward_weights_init",
    ("conv", "bias"): "bias_init",
    ("batch_norm", "batch_norm/v2_gamma"): "gamma_init",
    ("batch_norm", "batch_norm/v2_beta"): "beta_init",
}
_DEFAULT_INITIAL = {
    "W": _initial.GLOROT,
    "b": 0.0,
    "bias": 0.0,
    "scale": 1.0,
    "batch_norm/v2_gamma": 1.0,
    "batch_norm/v2_beta": 0.0,
    "batch_norm/v2_mean": 0.0,
    "batch_norm/v2_variance": 1.0,
}


@dataclass
class Variable:
    """Where a parameter lives in TensorFlow: its variable's name there, and RF's axes in the order of the variable."""

    path: str
    name: str
    axes: tuple[int, ...]


@dataclass
class Emitter:
    """Turns a :class:`Program` into a net dict whose values may be dims and :class:`ConfigFunction`."""

    program: Program
    modules: dict[int, str]
    reserved: tuple[str, ...] = ("data",)
    names: dict[int, str] = field(default_factory=dict)
    # id(node) -> the node that creates its parameters
    owners: dict[int, Node] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    functions: dict[str, None] = field(default_factory=dict)

    def net_dict(self) -> dict[str, Any]:
        """the whole net, parameters that no layer owns first"""
        self._find_owners()
        self._name_parameters()
        self._name_nodes()
        net = {
            self.names[id(node)]: self._variable(node, path)
            for node, path in self._free_parameters()
        }
        return {**net, **self._region(self.program.root)}

    # --- who owns which parameter

    def _find_owners(self) -> None:
        groups: dict[tuple, list[Node]] = {}
        for node in self._ordered():
            if node.opts.get("params"):
                groups.setdefault(_group_key(node), []).append(node)
        owning = [nodes for nodes in groups.values() if self._group_can_own(nodes)]
        taken = collections.Counter(
            name for nodes in owning for name in self._variable_names(nodes[0])
        )
        for nodes in owning:
            # two parameters of one module that are used alike would both be its variable "W"
            if all(taken[name] == 1 for name in self._variable_names(nodes[0])):
                self.owners.update((id(node), nodes[0]) for node in nodes)

    def _variable_names(self, node: Node) -> list[str]:
        """of the parameters of a layer that owns them"""
        params = node.opts["params"]
        return [f"{_scope(self._path(tensor))}/{role}" for role, tensor in params.items()]

    def _path(self, tensor: Tensor) -> str:
        return self.program.parameters[id(tensor.raw_tensor)][0]

    def _ordered(self) -> list[Node]:
        live = {id(node) for node in self.program.live}
        return [node for region in self._regions() for node in region.nodes if id(node) in live]

    def _regions(self) -> list[Region]:
        regions = [self.program.root]
        for region in regions:
            for node in region.nodes:
                regions += [value for value in walk(node.opts) if isinstance(value, Region)]
        return regions

    def _group_can_own(self, nodes: Sequence[Node]) -> bool:
        first = nodes[0]
        params = first.opts["params"]
        entries = [self.program.parameters.get(id(tensor.raw_tensor)) for tensor in params.values()]
        if any(entry is None for entry in entries):
            return False
        parents = {path.rpartition(".")[0] for path, _ in entries}  # type: ignore[misc]
        trained = {is_trained(param) for _, param in entries if not param.auxiliary}  # type: ignore[misc]
        users = {id(user) for tensor in params.values() for user in self.program.users(tensor)}
        in_root = all(node.region is self.program.root for node in nodes)
        initials = all(
            self._initial_fits(first.cls, role, tensor) for role, tensor in params.items()
        )
        float32 = all(tensor.dtype == "float32" for tensor in params.values())
        exclusive = users == {id(node) for node in nodes}
        return (
            in_root
            and exclusive
            and initials
            and float32
            and len(parents) == 1
            and len(trained) <= 1
        )

    def _initial_fits(self, cls: str, role: str, tensor: Tensor) -> bool:
        return (cls, role) in _INITIAL_OPTION or _is(self._initial(tensor), _DEFAULT_INITIAL[role])

    def _initial(self, tensor: Tensor) -> Any:
        _, param = self.program.parameters[id(tensor.raw_tensor)]
        option = _initial.option_of(param)
        return _initial.named(0.0 if option is None else option, param.dims)

    def _free_parameters(self) -> list[tuple[Node, str]]:
        owned = {
            id(t.raw_tensor)
            for node in self._ordered()
            if id(node) in self.owners
            for t in node.opts["params"].values()
        }
        live = {id(node): node for node in self.program.live}
        return [
            (live[key], path)
            for key, (path, _) in self.program.parameters.items()
            if key in live and key not in owned
        ]

    # --- names

    def _name_parameters(self) -> None:
        for node, path in self._free_parameters():
            self.names[id(node)] = _unique(path.replace(".", "_"), self._taken(self.program.root))
            self.variables.append(
                Variable(path, f"{path.replace('.', '/')}/param", tuple(range(len(node.dims))))
            )

    def _taken(self, region: Region) -> set[str]:
        fixed = {node.name for node in region.nodes if node.name}
        if region is not self.program.root:
            return {"data", *fixed}
        return {*self.reserved, *fixed, *self.names.values()}

    def _name_nodes(self) -> None:
        live = {id(node) for node in self.program.live}
        for region in self._regions():
            taken = self._taken(region)
            for node in region.nodes:
                if id(node) not in live or node.cls in ("data", "prev", "sub"):
                    continue
                name = node.name or _unique(self._suggestion(node), taken)
                taken.add(name)
                self.names[id(node)] = name

    def _suggestion(self, node: Node) -> str:
        path = self.modules.get(id(node.module), "").replace(".", "_")
        if not path:
            return _clean(node.hint)
        return path if node.opts.get("params") else f"{path}_{_clean(node.hint)}"

    def reference(self, node: Node, region: Region) -> str:
        """how a layer in ``region`` names ``node``"""
        if node.region is not None and not region.is_inside(node.region):
            raise ValueError(
                f"{node.tensor} is used outside the branch or loop that computes it; "
                f"return it from there (nn.cond, nn.while_loop and nn.scan give what their functions return)"
            )
        prefix = "base:" * region.depth_below(node.region)
        if node.cls == "data":
            return f"{prefix}data:{node.name}"
        if node.cls == "prev":
            return f"{prefix}prev:{self.names[id(node.opts['current'])]}"
        if node.cls == "sub":
            return f"{self.reference(node.opts['parent'].raw_tensor, region)}/{node.name}"
        return prefix + self.names[id(node)]

    # --- layer dicts

    def _region(self, region: Region) -> dict[str, Any]:
        live = {id(node) for node in self.program.live}
        nodes = [
            node
            for node in region.nodes
            if id(node) in live and node.cls not in ("data", "prev", "sub")
        ]
        return {self.names[id(node)]: self._layer(node, region) for node in nodes}

    def _layer(self, node: Node, region: Region) -> dict[str, Any]:
        opts = dict(node.opts)
        if node.cls == "expr":
            opts = {**_expressions.layer_options(opts.pop("expr")), **opts}
        else:
            opts = {"class": node.cls, **opts}
        params = opts.pop("params", None)
        filter_dims = opts.pop("filter_dims", None)
        if params:
            opts.update(self._parameter_options(node, params, filter_dims))
        if node.is_output:
            opts["is_output_layer"] = True
        return {key: self._value(_plain(key, value), region) for key, value in opts.items()}

    def _parameter_options(
        self, node: Node, params: dict[str, Tensor], filter_dims: Any
    ) -> dict[str, Any]:
        owner = self.owners.get(id(node))
        if owner is None:
            return self._borrowed(node, params, filter_dims)
        if owner is not node:
            return {"reuse_params": owner.tensor}
        options: dict[str, Any] = {}
        paths = [self._path(tensor) for tensor in params.values()]
        scope = _scope(paths[0])
        for (role, tensor), path in zip(params.items(), paths):
            initial, axes = self._initial(tensor), _axes(node.cls, role, tensor)
            if isinstance(initial, numpy.ndarray):  # RETURNN asks for the truth of what is no dict
                value = numpy.transpose(initial, axes)
                initial = {"class": "constant_initializer", "value": value}
            if not _is(initial, _DEFAULT_INITIAL[role]):
                options[_INITIAL_OPTION[node.cls, role]] = initial
            self.variables.append(Variable(path, "/".join(filter(None, (scope, role))), axes))
        entries = [self.program.parameters[id(t.raw_tensor)][1] for t in params.values()]
        if not all(is_trained(param) for param in entries if not param.auxiliary):
            options["trainable"] = False
        if scope != self.names[id(node)]:
            options["name_scope"] = f"/{scope}" if scope else ""
        return options

    @staticmethod
    def _borrowed(node: Node, params: dict[str, Tensor], filter_dims: Any) -> dict[str, Any]:
        if node.cls == "conv":
            bias = {"bias": params["bias"]} if "bias" in params else {}
            return {"filter": params["W"], "filter_size": filter_dims, **bias}
        return {
            "reuse_params": {
                "map": {role: {"layer_output": tensor} for role, tensor in params.items()}
            }
        }

    def _variable(self, node: Node, path: str) -> dict[str, Any]:
        _, param = self.program.parameters[id(node)]
        opts: dict[str, Any] = {"class": "variable", "shape": list(node.dims)}
        if node.dtype != "float32":
            opts["dtype"] = node.dtype
        initial = self._initial_of_variable(param)
        if not _is(initial, 0.0):
            opts["init"] = initial
        if not is_trained(param):
            opts["trainable"] = False
        return {**opts, "param_name": "param", "name_scope": "/" + path.replace(".", "/")}

    @staticmethod
    def _initial_of_variable(param: rf.Parameter) -> Any:
        option = _initial.option_of(param)
        option = 0.0 if option is None else option
        return _initial.named(option, param.dims) if len(param.dims) == 2 else option

    def _value(self, value: Any, region: Region) -> Any:
        if isinstance(value, Tensor):
            return self.reference(value.raw_tensor, region)
        if isinstance(value, Region):
            return self._region(value)
        if isinstance(value, ConfigFunction):
            self.functions[value.name] = None
            return value
        if isinstance(value, dict):
            return {key: self._value(item, region) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(item, region) for item in value)
        return value


def is_trained(param: rf.Parameter) -> bool:
    """whether the optimizer updates it: as set, and by default all but auxiliary ones (running statistics)"""
    if param.trainable is None:
        return not param.auxiliary and param.dtype.startswith(("float", "bfloat"))
    return param.trainable


def _is(option: Any, default: Any) -> bool:
    return not isinstance(option, numpy.ndarray) and option == default


def _plain(key: str, value: Any) -> Any:
    """a match priority tells the two axes of a square weight apart; as an option of a layer it says nothing"""
    if key in ("in_dim", "out_dim") and isinstance(value, Dim) and value.match_priority:
        return value.copy(match_priority=0)
    return value


def _scope(path: str) -> str:
    """the name scope of a parameter's module"""
    return path.rpartition(".")[0].replace(".", "/")


def _group_key(node: Node) -> tuple:
    return (
        node.cls,
        *((role, id(tensor.raw_tensor)) for role, tensor in node.opts["params"].items()),
    )


def _axes(cls: str, role: str, tensor: Tensor) -> tuple[int, ...]:
    """RF's filter [out, in, k...] is [k..., in, out] in RETURNN's conv layer; all else is alike"""
    num_axes = len(tensor.dims)
    if (cls, role) == ("conv", "W"):
        return (*range(2, num_axes), 1, 0)
    return tuple(range(num_axes))


def _clean(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", text).strip("_") or "layer"


def _unique(name: str, taken: set[str]) -> str:
    candidate, i = name, 0
    while candidate in taken:
        i += 1
        candidate = f"{name}_{i}"
    return candidate
