"""An entry's network as a tree of blocks: its modules, with what they take, give and own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..hints import valid_names
from ..records import Entry
from ..zoo import registry
from .calls import Call, output_of, recorded
from .dims import dims_as_text


@dataclass(frozen=True)
class Block:
    """
    A module, or several equal ones in a row.

    :param name: its attribute; ``layers.0`` in a list, ``layers.0-11`` for several
    :param module: its class
    :param source: the dims that it takes, as text; empty where it is not called
    :param out: the dims that it gives; of a whole model, those of its loss
    :param parameters: their number, of one
    :param layers: the number of layers in the lowered network; of several, what one more adds
    :param repeat: how many equal ones there are
    """

    name: str
    module: str
    source: str
    out: str
    parameters: int
    layers: int
    children: tuple[Block, ...] = ()
    repeat: int = 1


def blocks_of(name: str, **options: Any) -> Block:
    """
    :param name: of an entry
    :param options: as for ``zoo.get``
    :return: the root of its blocks, as the network is in training
    :raises ValueError: there is no such entry, or it is no network
    """
    from .. import nn

    entry = registry.find(name)
    model = registry.get(entry.full_name, **options)
    inputs = _inputs(entry, model)
    # before the lowering: a dim that turns out to be equal to another may get the other's name
    names = {dim: str(dim.name) for tensor in inputs.values() for dim in tensor.dims}

    def step(*, model: Any, extern_data: Any, **_: Any) -> None:
        out = output_of(entry.kind, model, extern_data)
        calls[""] = Call(0, extern_data["data"].dims, out.dims)
        out.mark_as_loss("out")

    with recorded(model) as calls:
        lowered = nn.lower(model, step, inputs)
    layers = _layers_of(lowered.config_text(), [path for path, _ in model.named_modules()])
    root = _Tree(model, calls, layers, names).block("", model, name=entry.full_name)
    return replace(root, out=f"loss {root.out}") if entry.kind == "segmental" else root


def _inputs(entry: Entry, model: Any) -> dict[str, Any]:
    from ..testing import kinds

    if entry.kind not in kinds.KINDS:
        raise ValueError(
            f"{entry.full_name} is a {entry.kind}, not a network{valid_names(entry.kind, kinds.KINDS)}"
        )
    return kinds.inputs(entry.kind, model)


def _layers_of(config: str, paths: Sequence[str]) -> dict[str, int]:
    """
    :param paths: of all modules
    :return: how many layers of the config belong to each module itself
    """
    prefixes = sorted(((p.replace(".", "_"), p) for p in paths), key=lambda pair: -len(pair[0]))
    counts: dict[str, int] = {}
    for layer in _layer_names(config):
        path = next(p for start, p in prefixes if not p or f"{layer}_".startswith(f"{start}_"))
        counts[path] = counts.get(path, 0) + 1
    return counts


def _layer_names(config: str) -> list[str]:
    for node in ast.parse(config).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "network":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError("the config has no network")


class _Tree:
    """Blocks from modules, the calls of them, and the number of layers of each."""

    def __init__(
        self, model: Any, calls: dict[str, Call], layers: dict[str, int], names: dict[Any, str]
    ):
        self.calls, self.layers, self.names = calls, layers, names
        # one that several modules share counts where it is first
        unique = {
            id(parameter): (path, parameter)
            for path, parameter in reversed([*model.named_parameters()])
        }
        self.sizes = {path: parameter.num_elements() for path, parameter in unique.values()}

    def block(self, path: str, module: Any, *, name: str) -> Block:
        """:return: the block of the module at this path, with all below it"""
        call = self.calls.get(path)
        children = [
            self.block(p, child, name=p.removeprefix(f"{path}.") if path else p)
            for p, child in self._children(path, module)
        ]
        return Block(
            name=name,
            module=type(module).__name__,
            source=dims_as_text(call.source, known=self.names) if call else "",
            out=dims_as_text(call.out, known=self.names) if call else "",
            parameters=sum(size for p, size in self.sizes.items() if _is_below(p, path)),
            layers=sum(number for p, number in self.layers.items() if _is_below(p, path)),
            children=tuple(_collapsed(children)),
        )

    def _children(self, path: str, module: Any) -> list[tuple[str, Any]]:
        """:return: the submodules in the order of their calls; lists of modules are looked through"""
        found: list[tuple[str, Any]] = []
        for name, child in module.named_children():
            full = f"{path}.{name}" if path else name
            is_list = full not in self.calls and next(iter(child.named_children()), None)
            found += self._children(full, child) if is_list else [(full, child)]
        last = len(self.calls)
        return sorted(
            found, key=lambda item: self.calls[item[0]].order if item[0] in self.calls else last
        )


def _is_below(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}.")


def _collapsed(blocks: list[Block]) -> list[Block]:
    """:return: equal neighbours in a list as one: the last, for the first makes what all share"""
    found: list[Block] = []
    for block in blocks:
        head, _, number = block.name.rpartition(".")
        before = found[-1] if found else None
        if before and number.isdigit() and _shape(before) == _shape(block):
            first, times = int(number) - before.repeat, before.repeat + 1
            if before.name == _name(head, first, before.repeat):
                found[-1] = replace(block, name=_name(head, first, times), repeat=times)
                continue
        found.append(block)
    return found


def _name(head: str, first: int, repeat: int) -> str:
    return f"{head}.{first}" if repeat == 1 else f"{head}.{first}-{first + repeat - 1}"


def _shape(block: Block) -> tuple[object, ...]:
    """:return: all but its name and its number of layers"""
    children = [(child.name, _shape(child)) for child in block.children]
    return (block.module, block.source, block.out, block.parameters, *children)
