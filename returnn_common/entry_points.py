"""
Installed plugins: the entry points of the group ``returnn_common``.

Each is loaded on its own: one that is broken costs a line in the log and is listed as failed; the
others work. ``RETURNN_COMMON_PLUGINS=a,b`` in the environment, read when they are needed first, loads
only these, by the name of their entry point or of their distribution; empty, it loads none.
"""

from __future__ import annotations

import functools
import logging
import os
import traceback
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from . import hookspecs
from .hints import near_misses
from .records import Entry, Plugin, canonical, entries_of

GROUP = hookspecs.PROJECT
SELECTED = "RETURNN_COMMON_PLUGINS"


@functools.cache
def installed() -> tuple[Plugin, ...]:
    """:return: the plugins of other distributions, loaded now unless they are switched off"""
    plugins: list[Plugin] = []
    for distribution in _distributions():
        for new in _plugins_of(distribution):
            plugins.append(_load(new, plugins))
    plugins += _not_installed(plugins)
    for plugin in plugins:
        if plugin.state == "failed":
            _log(plugin)
    return tuple(plugins)


def _distributions() -> list[metadata.Distribution]:
    """:return: those that have plugins, but not our own, by name"""
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        if f"[{GROUP}]" in _entry_point_text(distribution) and _name(distribution):
            found.setdefault(canonical(_name(distribution)), distribution)  # the first on the path
    found.pop(canonical(GROUP), None)
    return [found[name] for name in sorted(found)]


def _entry_point_text(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _name(distribution: metadata.Distribution) -> str:
    return _field(distribution, "Name")


def _field(distribution: metadata.Distribution, name: str) -> str:
    """:return: the first value of this name in the metadata, empty where there is none"""
    return next(iter(distribution.metadata.get_all(name) or []), "")


def _plugins_of(distribution: metadata.Distribution) -> list[Plugin]:
    """:return: one for each entry point, not loaded"""
    new = functools.partial(
        Plugin,
        owner=_name(distribution),
        version=distribution.version,
        licence=_licence(distribution),
    )
    try:
        points = sorted((p.name, p.value) for p in distribution.entry_points if p.group == GROUP)
    except (TypeError, ValueError):
        reason = "its entry_points.txt cannot be read"
        return [new(name=_name(distribution), module="", state="failed", reason=reason)]
    return [new(name=name, module=value) for name, value in points]


def _licence(distribution: metadata.Distribution) -> str:
    """:return: what the metadata says in one of its three ways, in one line"""
    stated = _field(distribution, "License-Expression") or _field(distribution, "License")
    classifiers = distribution.metadata.get_all("Classifier") or []
    stated = stated or next((c for c in classifiers if c.startswith("License ::")), "")
    return stated.strip().partition("\n")[0].rpartition(":: ")[2]


def _load(plugin: Plugin, earlier: list[Plugin]) -> Plugin:
    """:return: the plugin, now loaded, failed or off"""
    selected = _selected()
    if plugin.state == "failed":
        return plugin
    if selected is not None and not selected & _names(plugin):
        return replace(plugin, state="off", reason=f"{SELECTED} does not name it")
    try:
        _check_unique(plugin, earlier)
        module = metadata.EntryPoint(plugin.name, plugin.module, GROUP).load()
        package = getattr(module, "__package__", None) or ""
        entries = entries_of(module, owner=plugin.owner, package=package)
        _check_unique_names(entries, earlier)
        return replace(plugin, entries=entries)
    except (Exception, SystemExit) as error:
        return replace(plugin, state="failed", reason=_reason(error))


def _selected() -> set[str] | None:
    """:return: canonical names of the plugins to load; None for all"""
    value = os.environ.get(SELECTED)
    if value is None:
        return None
    return {canonical(name.strip()) for name in value.split(",") if name.strip()}


def _names(plugin: Plugin) -> set[str]:
    return {canonical(plugin.name), canonical(plugin.owner)}


def _check_unique(plugin: Plugin, earlier: list[Plugin]) -> None:
    for other in earlier:
        if other.name == plugin.name and other.owner != plugin.owner and other.state == "loaded":
            raise ValueError(
                f"{other.owner} has an entry point of the name {plugin.name!r}, too; "
                f"{SELECTED}={plugin.owner} loads this one instead"
            )


def _check_unique_names(entries: tuple[Entry, ...], earlier: list[Plugin]) -> None:
    taken = {entry.full_name for plugin in earlier for entry in plugin.entries}
    for entry in entries:
        if entry.full_name in taken:
            raise ValueError(f"another entry point of this distribution has {entry.full_name}, too")


def _not_installed(plugins: list[Plugin]) -> list[Plugin]:
    """:return: those that are selected, but that nothing provides"""
    known = set().union(*map(_names, plugins)) if plugins else set()
    return [
        Plugin(
            name,
            name,
            "",
            state="failed",
            reason=f"{SELECTED} names it, but it is not installed{near_misses(name, known)}",
        )
        for name in sorted((_selected() or set()) - known)
    ]


def _reason(error: BaseException) -> str:
    """:return: one line: what was raised, and where in the plugin's code"""
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename)
    message = " ".join(str(error).split())
    if last.parent == Path(__file__).parent or {"importlib", "pluggy"} & set(last.parts):
        return f"{type(error).__name__}: {message}"
    return f"{type(error).__name__}: {message} ({last}:{frames[-1].lineno})"


def _log(plugin: Plugin) -> None:
    logging.getLogger(GROUP).warning(
        "%s: the plugin %r of %s is left out: %s", GROUP, plugin.name, plugin.owner, plugin.reason
    )
