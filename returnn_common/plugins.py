"""Collects the records that the hooks return, from registration modules that are given directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs


@dataclass(frozen=True)
class Entry:
    """A record of :func:`hookspecs.returnn_common_entries`, and who registered it."""

    kind: str
    name: str
    summary: str
    target: str
    backends: tuple[str, ...]
    tiny: dict[str, Any]
    vary: dict[str, Any]
    owner: str

    @property
    def full_name(self) -> str:
        """``owner/name``, which is unique"""
        return f"{self.owner}/{self.name}"


def collect(modules: Mapping[str, ModuleType]) -> list[Entry]:
    """
    :param modules: registration modules by their owner
    :return: their entries, in the order of the modules
    :raises ValueError: a record lacks a key, has an unknown one, or an unknown kind or backend
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for owner, module in modules.items():
        manager.register(module, name=owner)
    manager.check_pending()
    calls = manager.hook.returnn_common_entries.get_hookimpls()
    return [_entry(record, call.plugin_name) for call in calls for record in _records(call)]


def _records(call: pluggy.HookImpl) -> list[dict[str, Any]]:
    return call.function()  # type: ignore[return-value]


def _entry(record: dict[str, Any], owner: str) -> Entry:
    wanted = {field.name for field in fields(Entry)} - {"owner"}
    if set(record) != wanted:
        raise ValueError(
            f"{owner}: a record has the keys {sorted(record)}, expected {sorted(wanted)}"
        )
    entry = Entry(**{**record, "backends": tuple(record["backends"]), "owner": owner})
    if entry.kind not in hookspecs.KINDS:
        raise ValueError(
            f"{entry.full_name}: kind {entry.kind!r} is none of {', '.join(hookspecs.KINDS)}"
        )
    for backend in entry.backends:
        if backend not in hookspecs.BACKENDS:
            raise ValueError(
                f"{entry.full_name}: backend {backend!r} is none of {', '.join(hookspecs.BACKENDS)}"
            )
    return entry
