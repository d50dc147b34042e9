"""
The source of modules that are not imported: where it is, what it defines, what it imports.

Describing and copying an entry read it, so that neither imports a framework.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """The text of a module. Its `package` is what relative imports in it start from."""

    module: str
    file: str
    text: str
    package: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """
        the syntax tree

        :raises ValueError: it is not Python
        """
        try:
            return ast.parse(self.text, self.file)
        except SyntaxError as error:
            raise ValueError(f"{self.file}:{error.lineno}: {error.msg}") from error


@dataclass(frozen=True)
class Import:
    """
    One ``from base import name`` of a module; ``import base`` has an empty name.

    :param base: absolute
    """

    node: ast.Import | ast.ImportFrom
    base: str
    name: str


def read(module: str) -> Source | None:
    """:return: the module's source; None where there is no such module, or no Python source of it"""
    spec = find_spec(module)
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_source"):
        return None
    text = spec.loader.get_source(spec.name)
    if text is None:
        return None
    is_package = spec.submodule_search_locations is not None
    package = module if is_package else module.rpartition(".")[0]
    return Source(module, spec.origin or "", text, package)


def find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """:return: what `importlib.util.find_spec` gives, but no parent package is imported"""
    loaded = sys.modules.get(module)
    if loaded is not None and getattr(loaded, "__spec__", None) is not None:
        return loaded.__spec__
    if loaded is not None and getattr(loaded, "__file__", None):  # a script
        return importlib.util.spec_from_file_location(module, loaded.__file__)
    parent = module.rpartition(".")[0]
    parent_spec = find_spec(parent) if parent else None
    path = parent_spec.submodule_search_locations if parent_spec else None
    if parent and path is None:
        return None
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    specs = (finder.find_spec(module, path) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


def imports(source: Source) -> Iterator[Import]:
    """:return: every imported name, also those inside functions"""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (Import(node, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, source)
            yield from (Import(node, base, alias.name) for alias in node.names)


def base_of(node: ast.ImportFrom, source: Source) -> str:
    """
    :return: the absolute name of the module after ``from``
    :raises ValueError: a relative import leaves the topmost package
    """
    name = "." * node.level + (node.module or "")
    try:
        return importlib.util.resolve_name(name, source.package).rstrip(".")
    except ImportError:
        raise ValueError(
            f"{source.file}:{node.lineno}: 'from {name} import' leaves the package {source.package!r}"
        ) from None


def definition(target: str) -> tuple[Source, ast.FunctionDef | ast.ClassDef] | None:
    """
    Where a function or class is defined, also through ``from .other import function``.

    :param target: ``"module:function"``, absolute
    :return: the module's source and the node in it; None where it cannot be found by reading
    """
    module, _, name = target.partition(":")
    source = read(module)
    if source is None:
        return None
    for node in source.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return source, node
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(f"{base_of(node, source)}:{alias.name}")
    return None
