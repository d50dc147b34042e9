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
from ..zoo import sources
from ..zoo.sources import Source
from .closure import is_inside, refuse

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


def copied(source: Source, root: str, plugin: Plugin) -> File:
    """
    :param root: the package whose modules are copied
    :param plugin: the origin, for the header
    :raises ValueError: an import of the copied part in a form that cannot be rewritten
    """
    origin = ", ".join(filter(None, [f"{plugin.owner} {plugin.version}".strip(), plugin.licence]))
    package = root.rpartition(".")[0]
    inner = source.module.removeprefix(f"{package}." if package else "")
    header = HEADER.format(file=_path(inner, source), origin=origin)
    return File(path_of(source, root), header + _rewritten(source, root))


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


def _rewritten(source: Source, root: str) -> str:
    lines = source.text.split("\n")
    for edit in sorted(_edits(source, root), reverse=True):
        (first, left), (last, right) = edit.start, edit.end
        joined = lines[first - 1][:left] + edit.text + lines[last - 1][right:]
        lines[first - 1 : last] = [joined]
    return "\n".join(lines)


def _edits(source: Source, root: str) -> Iterator[_Edit]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            base = sources.base_of(node, source)
            if any(f"{base}.{a.name}" == root for a in node.names):
                raise refuse(source, node, f"imports the package {root!r} itself")
            new = _new_base(node, base, source, root)
            if new is not None:
                yield _Edit(*_place_of_base(node, source), f" {new} ")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_inside(alias.name, root):
                    yield _as_from_import(node, alias, source, root)


def _new_base(node: ast.ImportFrom, base: str, source: Source, root: str) -> str | None:
    """:return: what stands between ``from`` and ``import`` in the copy; None where that stays"""
    if is_inside(base, root):
        return None if node.level else relative(base, source.package)
    return base if node.level else None


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


def _as_from_import(node: ast.Import, alias: ast.alias, source: Source, root: str) -> _Edit:
    """:return: ``import package.part as p`` as ``from . import part as p``"""
    parent, _, name = alias.name.rpartition(".")
    if alias.asname is None or not is_inside(parent, root) or len(node.names) > 1:
        hint = f"write 'from {parent or root} import {name}'"
        raise refuse(source, node, f"'import {alias.name}' cannot be made relative ({hint})")
    assert node.end_lineno is not None and node.end_col_offset is not None
    text = f"from {relative(parent, source.package)} import {name} as {alias.asname}"
    return _Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)
