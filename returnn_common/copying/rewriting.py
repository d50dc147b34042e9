"""
The text of a copied file: the original with a header and other imports.

Files keep their places relative to each other, so the imports between them stay as they are, and
the text differs from the original as little as possible.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from ..plugins import Plugin
from ..zoo.sources import Source, base_of, imports
from .closure import module_of, refuse

HEADER = (
    "# Copied from {file} of {origin}.\n"
    "# `returnn-common status` and `returnn-common update` compare it with the original.\n"
)
HEADER_LINES = HEADER.count("\n")


@dataclass(frozen=True)
class File:
    """A file of a copy: its path there, with ``/``, and its text, header included."""

    path: str
    text: str

    @property
    def body(self) -> str:
        """the text without the header, which changes with every version"""
        return body_of(self.text)


def body_of(text: str) -> str:
    """:return: a copied text without its header"""
    return "\n".join(text.split("\n")[HEADER_LINES:])


def copied(sources: list[Source], root: str, plugin: Plugin) -> list[File]:
    """
    :param sources: all files of the copy
    :param root: the package that they are from
    :param plugin: the origin, for the headers
    :return: the files as they are in the copy
    :raises ValueError: an import of a copied file in a form that cannot be rewritten
    """
    modules = {source.module for source in sources}
    return [
        File(
            path_of(source, root), _header(source, root, plugin) + _rewritten(source, root, modules)
        )
        for source in sources
    ]


def _header(source: Source, root: str, plugin: Plugin) -> str:
    origin = ", ".join(filter(None, [f"{plugin.owner} {plugin.version}".strip(), plugin.licence]))
    package = root.rpartition(".")[0]
    inner = source.module.removeprefix(f"{package}." if package else "")
    return HEADER.format(file=_path(inner, source), origin=origin)


def path_of(source: Source, root: str) -> str:
    """:return: where its copy is, with ``/``"""
    inner = "" if source.module == root else source.module.removeprefix(f"{root}.")
    return _path(inner, source)


def _path(module: str, source: Source) -> str:
    """:return: where the module is, with ``/``"""
    parts = [part for part in module.split(".") if part]
    if source.module == source.package:
        return "/".join([*parts, "__init__.py"])
    return "/".join(parts) + ".py"


# --- imports


@dataclass(frozen=True, order=True)
class _Edit:
    """replace the text between two places, each a line and a column"""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def _rewritten(source: Source, root: str, copied: set[str]) -> str:
    lines = source.text.split("\n")
    for edit in sorted(set(_edits(source, root, copied)), reverse=True):
        (first, left), (last, right) = edit.start, edit.end
        joined = lines[first - 1][:left] + edit.text + lines[last - 1][right:]
        lines[first - 1 : last] = [joined]
    return "\n".join(lines)


def _edits(source: Source, root: str, copied: set[str]) -> Iterator[_Edit]:
    modules: dict[ast.stmt, list[str]] = {}
    for item in imports(source):
        modules.setdefault(item.node, []).append(module_of(item, root))
    for node, targets in modules.items():
        inside = [module in copied for module in targets]
        if any(inside) and not all(inside):
            raise refuse(source, node, "one import takes copied and other modules: make two of it")
        if isinstance(node, ast.ImportFrom):
            yield from _edit_from(node, source, inside=inside[0])
        elif isinstance(node, ast.Import) and inside[0]:
            yield _as_from_import(node, source)


def _edit_from(node: ast.ImportFrom, source: Source, *, inside: bool) -> Iterator[_Edit]:
    """:return: what changes between ``from`` and ``import``"""
    base = base_of(node, source)
    if inside != bool(node.level):
        new = relative(base, source.package) if inside else base
        yield _Edit(*_place_of_base(node, source), f" {new} ")


def relative(module: str, package: str) -> str:
    """:return: `module` as it is imported in `package`, both in one package: ``..frontend.vgg``"""
    target, here = module.split("."), package.split(".")
    common = 0
    while common < min(len(target), len(here)) and target[common] == here[common]:
        common += 1
    return "." * (len(here) - common + 1) + ".".join(target[common:])


def _place_of_base(node: ast.ImportFrom, source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    """:return: from the end of ``from`` to the start of ``import``"""
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    start = (node.lineno, node.col_offset)
    word = next(token for token in tokens if token.start == start and token.string == "from")
    return word.end, next(token.start for token in tokens if token.string == "import")


def _as_from_import(node: ast.Import, source: Source) -> _Edit:
    """:return: ``import package.part as p`` as ``from . import part as p``"""
    alias = node.names[0]
    parent, _, name = alias.name.rpartition(".")
    if alias.asname is None or not parent or len(node.names) > 1:
        hint = f"; write 'from {parent} import {name}'" if parent else ""
        raise refuse(source, node, f"'import {alias.name}' cannot be made relative{hint}")
    assert node.end_lineno is not None and node.end_col_offset is not None
    text = f"from {relative(parent, source.package)} import {name} as {alias.asname}"
    return _Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)
