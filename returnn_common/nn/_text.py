"""A config as Python text: dims by name, layers one after another, the same bytes in every process."""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy
from returnn.tensor import Dim, single_step_dim

from ._config_calls import ConfigFunction
from ._config_functions import FUNCTIONS
from ._returnn import BEHAVIOR_VERSION, base_of, operation_of

_WIDTH = 110
_METHODS = {
    "truediv": "div_right",
    "truediv_left": "div_left",
    "ceildiv": "ceildiv_right",
    "ceildiv_left": "ceildiv_left",
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//"}
_HEAD = '''#!returnn.py
"""{title}"""

{imports}

use_tensorflow = True
behavior_version = {behavior_version}
{setup}'''
_NO_GPU = """if not tf.config.list_physical_devices("GPU"):
    os.environ.setdefault("DISABLE_CUDA", "1")  # RETURNN compiles its native ops for the CPU alone then
"""
_DEEP = "sys.setrecursionlimit(10**6)  # layers are constructed recursively\n"
_DIM_NAMES = ("Dim", "FeatureDim", "SpatialDim", "batch_dim", "single_step_dim")


class Dims:
    """The dims of one config: a Python name each, in the order in which they appear."""

    def __init__(self, reserved: set[str]):
        self.names: dict[Dim, str] = {}
        self.lines: list[str] = []
        self.reserved = reserved | {"batch_dim", "single_step_dim"}

    def ref(self, dim: Dim) -> str:
        """the expression that stands for ``dim`` in the config"""
        if dim.is_batch_dim():
            return "batch_dim"
        if dim == single_step_dim:
            return "single_step_dim"
        if dim.match_priority:
            return (
                f"{self.ref(dim.copy(match_priority=0))}.copy(match_priority={dim.match_priority})"
            )
        base = base_of(dim)
        operation = operation_of(base)
        if operation and operation.kind == "constant":
            return str(base.dimension)
        if base not in self.names:
            value = self._definition(base, name=dim.name or base.name or "dim")
            self.names[base] = self._unique(dim)
            self.lines.append(f"{self.names[base]} = {value}")
        return self.names[base]

    def _definition(self, dim: Dim, *, name: str) -> str:
        op = operation_of(dim)
        if op:
            a, *rest = (self.ref(operand) for operand in op.inputs)
            if op.kind in _METHODS:
                return f"{_receiver(a)}.{_METHODS[op.kind]}({', '.join(rest)})"
            return f" {_INFIX[op.kind]} ".join([a, *rest]).replace("+ -", "- ")
        if dim.kind == Dim.Types.Feature:
            return f"FeatureDim({_string(name)}, {dim.dimension})"
        size = f", {dim.dimension}" if dim.dimension is not None else ""
        return f"SpatialDim({_string(name)}{size})"

    def _unique(self, dim: Dim) -> str:
        name = (
            re.sub(r"[^a-zA-Z0-9]+", "_", dim.name or dim.description or "dim").strip("_").lower()
        )
        name = re.sub(r"(_dim)+$", "", name) or "dim"
        name = f"dim_{name}" if name[0].isdigit() else f"{name}_dim"
        candidate, i = name, 1
        while candidate in self.reserved:
            i += 1
            candidate = f"{name}{i}"
        self.reserved.add(candidate)
        return candidate


def _receiver(text: str) -> str:
    return f"Dim({text})" if text.isdigit() else text


def code(value: Any, dims: Dims, *, indent: int = 0, prefix: int = 0) -> str:
    """Python code for ``value``, on one line where it fits behind ``prefix`` characters"""
    flat = _flat(value, dims)
    if (
        len(flat) + indent + prefix <= _WIDTH
        or not isinstance(value, (dict, list, tuple))
        or not value
    ):
        return flat
    inner = " " * (indent + 4)
    if isinstance(value, dict):
        opening, closing = "{", "}"
        items = [_item(key, item, dims, indent=indent + 4) for key, item in value.items()]
    else:
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        items = [code(item, dims, indent=indent + 4) for item in value]
    return f"{opening}\n" + "".join(f"{inner}{item},\n" for item in items) + " " * indent + closing


def _item(key: Any, value: Any, dims: Dims, *, indent: int) -> str:
    name = _flat(key, dims)
    return f"{name}: {code(value, dims, indent=indent, prefix=len(name) + 2)}"


def _flat(value: Any, dims: Dims) -> str:
    if isinstance(value, Dim):
        return dims.ref(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_flat(key, dims)}: {_flat(item, dims)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_flat(item, dims) for item in value) + "]"
    if isinstance(value, tuple):
        return (
            "("
            + ", ".join(_flat(item, dims) for item in value)
            + ("," if len(value) == 1 else "")
            + ")"
        )
    if isinstance(value, (set, frozenset)):
        return (
            "{" + ", ".join(sorted(_flat(item, dims) for item in value)) + "}" if value else "set()"
        )
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, numpy.ndarray):
        return _array(value)
    if isinstance(value, numpy.generic):
        return repr(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return _string(value)
    if value is None or isinstance(value, (bool, int, float, ConfigFunction)):
        return repr(value)
    raise TypeError(
        f"a config text cannot hold {value!r} of type {type(value).__name__}; "
        f"expected numbers, strings, dims, numpy arrays, and lists, tuples, dicts and sets of these"
    )


def _string(value: str) -> str:
    text = repr(value)
    if text.startswith("'") and '"' not in text and "\\'" not in text:
        return f'"{text[1:-1]}"'
    return text


def _array(value: numpy.ndarray) -> str:
    if value.size <= 64:
        return f"numpy.array({value.tolist()!r}, dtype={value.dtype.name!r})"
    packed = base64.b85encode(zlib.compress(numpy.ascontiguousarray(value).tobytes(), 9)).decode(
        "ascii"
    )
    return (
        f"numpy.frombuffer(zlib.decompress(base64.b85decode({packed!r})), dtype={value.dtype.name!r})"
        f".reshape({value.shape!r})"
    )


_GET_NETWORK = '''
def get_network(epoch, **_):
    """RETURNN keeps the values of the parameters that the net before had under the same names"""
    return networks[max(first for first in networks if first <= epoch)]
'''.strip()


def layers_config(
    *,
    networks: Mapping[int, dict[str, Any]],
    extern_data: dict[str, Any],
    settings: dict[str, Any],
    functions: list[str],
    nested: bool,
) -> str:
    """
    The whole config for RETURNN's TensorFlow engine; it does not import this package. ``networks`` are net dicts by the
    epoch from which on they hold; one alone is ``network``.

    A net with other nets inside (``nested``: cond and rec layers) is constructed recursively:
    RETURNN's flat construction does not end there. All others are constructed flat, which is faster
    and needs no deep stack.
    """
    dims = Dims({"network", "networks", "get_network", "extern_data", *settings, *functions})
    extern_code = code(extern_data, dims)
    net_code = _networks(networks, dims)
    settings_code = "".join(f"{key} = {code(value, dims)}\n" for key, value in settings.items())
    body = extern_code + net_code + settings_code
    setup = (_DEEP if nested else "flat_net_construction = True\n") + _NO_GPU
    standard = {"import os", *(["import sys"] if nested else []), *array_imports(body)}
    arrays = sorted(standard & {"import numpy"})
    imports = [*sorted(standard - {"import numpy"}), "", *arrays, "import tensorflow as tf"]
    if used := _used(body, dims):
        imports.append("from returnn.tf.util.data import " + ", ".join(used))
    head = _HEAD.format(
        title="RETURNN config, made by returnn_common; runs with RETURNN alone.",
        imports="\n".join(imports),
        setup=setup,
        behavior_version=BEHAVIOR_VERSION,
    )
    parts = [
        head,
        "\n".join(dims.lines),
        f"extern_data = {extern_code}",
        *(FUNCTIONS[name].strip("\n") for name in functions),
        net_code,
        settings_code.rstrip("\n"),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def array_imports(body: str) -> list[str]:
    """the imports that code with arrays needs"""
    modules = {"base64": "base64.b85decode", "numpy": "numpy.", "zlib": "zlib.decompress"}
    return [f"import {module}" for module, use in modules.items() if use in body]


def _networks(networks: Mapping[int, dict[str, Any]], dims: Dims) -> str:
    if len(networks) == 1:
        (network,) = networks.values()
        return f"network = {_network(network, dims)}"
    parts = ["networks = {}  # by the epoch from which on each holds"]
    for epoch, network in sorted(networks.items()):
        parts.append(f"networks[{epoch}] = {_network(network, dims)}")
    return "\n\n".join([*parts, _GET_NETWORK])


def _network(network: dict[str, Any], dims: Dims) -> str:
    return (
        "{\n" + "".join(f"    {_item(k, v, dims, indent=4)},\n" for k, v in network.items()) + "}"
    )


def _used(body: str, dims: Dims) -> list[str]:
    text = body + "\n".join(dims.lines)
    return [name for name in _DIM_NAMES if re.search(rf"\b{name}\b", text)]
