"""
Who contributes entries: this package itself, installed plugins, modules that a recipe registers.

A plugin that is broken is left out (:mod:`entry_points`), unless ``RETURNN_COMMON_STRICT=1`` is set
in the environment: then it is an error.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

from . import __version__, hookspecs
from .entry_points import SELECTED, installed
from .records import Entry, Plugin, canonical, entries_of

__all__ = [
    "SELECTED",
    "Entry",
    "Plugin",
    "PluginError",
    "all_entries",
    "all_plugins",
    "canonical",
    "register_module",
]

OWNER = hookspecs.PROJECT
LICENCE = "Apache-2.0"  # of this package
STRICT = "RETURNN_COMMON_STRICT"
BUILTINS = (".zoo.builtins", ".data.entries")  # our own registration modules
PACKAGE = __name__.rpartition(".")[0]  # has many names: recipe.returnn_common, ...
_registered: dict[str, Plugin] = {}


class PluginError(ValueError):
    """A plugin is broken, in strict mode."""


def all_plugins() -> tuple[Plugin, ...]:
    """
    :return: our own registration modules, the installed plugins by distribution, the registered
        modules; also those that are broken or switched off
    """
    return (*builtin(), *installed(), *_registered.values())


def all_entries() -> tuple[Entry, ...]:
    """
    :return: the entries of all plugins that work
    :raises PluginError: in strict mode, where one is broken
    """
    plugins = all_plugins()
    failed = [f"{p.owner}: {p.reason}" for p in plugins if p.state == "failed"]
    if failed and is_strict():
        raise PluginError(f"broken plugins ({STRICT} is set): {'; '.join(failed)}")
    return tuple(entry for plugin in plugins for entry in plugin.entries)


def is_strict() -> bool:
    """:return: whether a broken plugin is an error"""
    return os.environ.get(STRICT, "") not in ("", "0")


@functools.cache
def builtin() -> tuple[Plugin, ...]:
    """:return: our own registration modules, installed or not"""
    return tuple(_builtin(importlib.import_module(name, PACKAGE)) for name in BUILTINS)


def _builtin(module: ModuleType) -> Plugin:
    entries = entries_of(module, owner=OWNER, package=PACKAGE)
    name = module.__name__.removeprefix(f"{PACKAGE}.")
    return Plugin(name, OWNER, module.__name__, __version__, LICENCE, entries=entries)


def register_module(module: ModuleType) -> None:
    """
    Add the entries of a registration module that is not installed, e.g. a file beside a recipe.

    Their full names begin with the module's name. Registering a module again replaces its entries.

    :param module: with the hook of :mod:`hookspecs`
    :raises TypeError: it is no module, or its hook returns something else than a list of dicts
    :raises ValueError: another plugin has this name; there is no hook, or a wrong record
    """
    if not isinstance(module, ModuleType):
        raise TypeError(f"register_module: expected a module, got {module!r}")
    name = module.__name__
    if canonical(name) in {canonical(p.owner) for p in (*builtin(), *installed())}:
        raise ValueError(f"register_module: there is a plugin {name!r} already; rename the module")
    package = module.__package__ or ""
    try:
        entries = entries_of(module, owner=name, package=package)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"register_module: {name}: {error}") from error
    _registered[name] = Plugin(name, name, name, entries=entries)
