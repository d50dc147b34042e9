"""
The files that an entry needs, from the same part of its package: from ``zoo`` of ours, from the
whole package of a plugin. All other modules stay imports.
"""

from __future__ import annotations

import ast

from .. import plugins
from ..records import Entry
from ..zoo import description, sources
from ..zoo.sources import Source

# What calls these imports, or looks beside itself, in another place once it is copied.
_DYNAMIC = ("__import__", "import_module", "find_spec", "spec_from_file_location")
_PLACES = ("__file__", "__package__", "__path__", "__spec__")


def sources_of(entry: Entry) -> tuple[str, list[Source]]:
    """
    :return: the root, the package whose modules are copied, empty for a single file; and the
        modules in it that the entry needs, itself among them
    :raises ValueError: a module imports dynamically, looks for files beside itself, or imports its
        package in a form that cannot be rewritten; the message has the place
    """
    main, _ = description.find_definition(entry)
    root = _root(main, entry.owner)
    needed: dict[str, Source] = {}
    new = [main.module]
    while new:
        module = new.pop()
        if module not in needed:
            needed[module] = _read(module)
            new += _needs(needed[module], root)
    return root, [needed[module] for module in sorted(needed)]


def is_inside(module: str, root: str) -> bool:
    """:return: whether it is this package or a module in it"""
    return bool(root) and (module == root or module.startswith(f"{root}."))


def refuse(source: Source, node: ast.AST, why: str) -> ValueError:
    """:return: the error for a place of a file because of which it cannot be copied"""
    line = getattr(node, "lineno", 1)
    return ValueError(f"{source.file}:{line}: {why}, so the file cannot be copied")


def _root(main: Source, owner: str) -> str:
    if owner != plugins.OWNER:
        return main.package.partition(".")[0]
    part = main.module.removeprefix(f"{plugins.PACKAGE}.").partition(".")[0]
    return f"{plugins.PACKAGE}.{part}"


def _read(module: str) -> Source:
    source = sources.read(module)
    if source is None:
        raise ValueError(f"there is no Python source of {module!r}, which the copy needs")
    for node in ast.walk(source.tree):
        _check(node, source)
    return source


def _check(node: ast.AST, source: Source) -> None:
    """:raises ValueError: this would not work in a copy"""
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    if isinstance(node, ast.alias):
        name = node.name
    if name in _DYNAMIC:
        raise refuse(source, node, f"imports dynamically ({name})")
    if name in _PLACES:
        raise refuse(source, node, f"looks for its own place ({name})")


def _needs(source: Source, root: str) -> list[str]:
    """:return: the modules in `root` that are imported before or by this one"""
    needed = _parents(source.module, root)
    for item in sources.imports(source):
        full_name = f"{item.base}.{item.name}"
        is_module = bool(item.name) and sources.find_spec(full_name) is not None
        module = full_name if is_module and is_inside(full_name, root) else item.base
        if is_inside(module, root):
            needed += [module, *_parents(module, root)]
    return needed


def _parents(module: str, root: str) -> list[str]:
    """:return: its packages within `root`, without `root`: there, a copy has its own"""
    parent = module.rpartition(".")[0]
    if parent == root or not is_inside(parent, root):
        return []
    return [parent, *_parents(parent, root)]
