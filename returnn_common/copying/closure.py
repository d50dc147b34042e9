"""
The files that an entry needs, from the same part of its package: from ``zoo`` of ours, from the
whole package of a plugin. All other modules stay imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .. import plugins
from ..records import Entry
from ..zoo import description, sources
from ..zoo.sources import Import, Source

# These import from another place, or look there, once their file is copied.
_DYNAMIC = ("__import__", "import_module", "find_spec", "spec_from_file_location")
_PLACES = ("__file__", "__package__", "__path__", "__spec__")


def sources_of(entry: Entry) -> tuple[str, list[Source]]:
    """
    :return: the root, the package whose modules are copied, empty for a single file; and the
        modules in it that the entry needs, itself among them. Others that look for files beside
        themselves are left out: they are imported from where they are
    :raises ValueError: a module imports dynamically, or the entry's own looks for files beside
        itself; the message has the place
    """
    main, _ = description.find_definition(entry)
    root = _root(main, entry.owner)
    _refuse(main, _PLACES, "looks for its own place")
    needed: dict[str, Source] = {}
    new, seen = [main.module], set()
    while new:
        module = new.pop()
        if module in seen:
            continue
        seen.add(module)
        source = _read(module)
        if next(_uses(source, _PLACES), None) is None:
            _refuse(source, _DYNAMIC, "imports dynamically")
            needed[module] = source
            new += _needs(source, root)
    return root, [needed[module] for module in sorted(needed)]


def module_of(item: Import, root: str) -> str:
    """:return: the module that is imported: ``package.part`` by ``from package import part``, too"""
    name = f"{item.base}.{item.name}"
    is_module = is_inside(name, root) and sources.find_spec(name) is not None
    return name if item.name and is_module else item.base


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
    return source


def _refuse(source: Source, names: tuple[str, ...], why: str) -> None:
    """:raises ValueError: the file uses one of these names"""
    for node, name in _uses(source, names):
        raise refuse(source, node, f"{why} ({name})")


def _uses(source: Source, names: tuple[str, ...]) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(source.tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            name = node.name
        if name in names:
            yield node, name


def _needs(source: Source, root: str) -> list[str]:
    """:return: the modules in `root` that are imported before or by this one"""
    needed = _parents(source.module, root)
    for item in sources.imports(source):
        module = module_of(item, root)
        if is_inside(module, root):
            needed += [module, *_parents(module, root)]
    return needed


def _parents(module: str, root: str) -> list[str]:
    """:return: its packages within `root`, without `root`: there, a copy has its own"""
    parent = module.rpartition(".")[0]
    if parent == root or not is_inside(parent, root):
        return []
    return [parent, *_parents(parent, root)]
