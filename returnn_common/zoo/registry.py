"""
Names of entries to what makes them. The entries come through the hook of :mod:`hookspecs`, our own
too.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import plugins
from ..hints import valid_names
from ..hookspecs import BACKENDS, KINDS
from ..plugins import register_module
from ..records import Entry
from .description import Info, describe

__all__ = ["entries", "find", "get", "info", "list_names", "load", "register_module"]


def get(name: str, **options: Any) -> Any:
    """
    :param name: of an entry, e.g. ``conformer`` or ``returnn_common/conformer``
    :param options: the arguments of its ``make_...`` function; each has a default
    :return: what that function makes: a module, a dataset, ...
    :raises ValueError: there is no such entry, or several packages have one of this name
    :raises TypeError: the entry has no such option
    """
    entry = find(name)
    maker = load(entry)
    valid = list(inspect.signature(maker).parameters)
    for option in options:
        if option not in valid:
            raise TypeError(f"{entry.name} has no option {option!r}{valid_names(option, valid)}")
    return maker(**options)


def list_names(
    pattern: str = "*", *, kind: str | None = None, backend: str | None = None
) -> list[str]:
    """
    :param pattern: with wildcards, e.g. ``"*former*"``; matches a name or a full name
    :param kind: only entries of this kind, e.g. ``"encoder"``
    :param backend: only entries that work there, e.g. ``"torch"``
    :return: the names of the entries, in natural order (``a2`` before ``a10``); the full name where
        several packages have an entry of one name
    :raises ValueError: there is no such kind or backend
    """
    return [short_name(entry) for entry in select(pattern, kind=kind, backend=backend)]


def info(name: str, *, size: bool = False) -> Info:
    """
    :param size: also make it with its defaults and count the parameters
    :return: what is known about an entry: its arguments, where it works, where it is from
    :raises ValueError: there is no such entry
    """
    entry = find(name)
    plugin = next(p for p in plugins.all_plugins() if entry in p.entries)
    found = describe(entry, plugin)
    return replace(found, num_parameters=_num_parameters(get(entry.full_name))) if size else found


def _num_parameters(made: Any) -> int | None:
    """:return: of a module; None for other things"""
    if not hasattr(made, "parameters"):
        return None
    return sum(parameter.num_elements() for parameter in made.parameters())


def entries() -> tuple[Entry, ...]:
    """
    :return: all entries
    :raises plugins.PluginError: in strict mode, where a plugin is broken
    """
    return plugins.all_entries()


def select(
    pattern: str = "*", *, kind: str | None = None, backend: str | None = None
) -> list[Entry]:
    """:return: the entries behind :func:`list_names`"""
    _check("kind", kind, KINDS)
    _check("backend", backend, BACKENDS)
    chosen = [
        entry
        for entry in entries()
        if kind in (None, entry.kind)
        and backend in (None, *entry.backends)
        and (
            fnmatch.fnmatchcase(entry.name, pattern)
            or fnmatch.fnmatchcase(entry.full_name, pattern)
        )
    ]
    return sorted(chosen, key=lambda entry: (_natural(entry.name), _natural(entry.owner)))


def _check(what: str, value: str | None, valid: tuple[str, ...]) -> None:
    if value is not None and value not in valid:
        raise ValueError(f"there is no {what} {value!r}{valid_names(value, valid)}")


def short_name(entry: Entry) -> str:
    """:return: its name, or full name where another entry has the name, too"""
    same = [other for other in entries() if other.name == entry.name]
    return entry.name if len(same) == 1 else entry.full_name


def find(name: str) -> Entry:
    """
    :return: the entry of this name, or full name ``owner/name``
    :raises ValueError: there is none, or several owners have it
    :raises TypeError: it is no name
    """
    if not isinstance(name, str):
        raise TypeError(f"expected the name of an entry, got {name!r}")
    owner, _, short = name.rpartition("/")
    found = [entry for entry in entries() if entry.name == short and _is_owner(owner, entry)]
    if len(found) == 1:
        return found[0]
    if found:
        names = " or ".join(repr(entry.full_name) for entry in found)
        raise ValueError(f"several packages have an entry {name!r}: write {names}")
    valid = [e.full_name if owner else short_name(e) for e in select()]
    raise ValueError(
        f"there is no entry {name!r}{valid_names(name, valid)}{hint_of_broken_plugins()}"
    )


def _is_owner(owner: str, entry: Entry) -> bool:
    return not owner or plugins.canonical(owner) == plugins.canonical(entry.owner)


def hint_of_broken_plugins() -> str:
    """:return: the broken plugins with their reasons, for whoever misses an entry of theirs"""
    failed = [f"{p.owner} ({p.reason})" for p in plugins.all_plugins() if p.state == "failed"]
    return f"; broken plugins: {', '.join(failed)}" if failed else ""


def load(entry: Entry) -> Callable[..., Any]:
    """
    :return: the function that makes this entry, its module imported now
    :raises ImportError: its module cannot be imported, or lacks the function
    """
    module, _, function = entry.target.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{entry.full_name}: {module} cannot be imported: {error}") from error
    try:
        return getattr(found, function)
    except AttributeError:
        hint = valid_names(function, [name for name in vars(found) if name.startswith("make_")])
        raise ImportError(f"{entry.full_name}: {module} has no {function!r}{hint}") from None


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
