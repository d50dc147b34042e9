"""From a registration module to its entries: what the hook returns, checked."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs
from .hints import near_misses, valid_names

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_TARGET = re.compile(r"\.*\w+(\.\w+)*:\w+")
HOOK = hookspecs.returnn_common_entries.__name__


@dataclass(frozen=True)
class Entry:
    """A record of :func:`hookspecs.returnn_common_entries`, and who registered it."""

    kind: str
    name: str
    summary: str
    target: str  # absolute
    backends: tuple[str, ...]
    tiny: dict[str, Any]
    vary: dict[str, Any]
    owner: str

    @property
    def full_name(self) -> str:
        """``owner/name``, which is unique"""
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class Plugin:
    """
    A registration module, and what came of it.

    :param name: of its entry point; of the module, where there is none
    :param owner: the first part of its entries' full names: the distribution, or the module
    :param state: ``loaded``, ``failed`` or ``off``
    :param reason: why it failed
    """

    name: str
    owner: str
    module: str
    version: str = ""
    licence: str = ""
    state: str = "loaded"
    reason: str = ""
    entries: tuple[Entry, ...] = ()


def canonical(name: str) -> str:
    """:return: the name of a distribution as PyPI compares it: ``My_Package`` is ``my-package``"""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries_of(module: ModuleType, *, owner: str, package: str) -> tuple[Entry, ...]:
    """
    :param module: a registration module
    :param owner: first part of the full names of its entries
    :param package: what relative targets start from
    :return: its entries, in its order
    :raises ValueError: it is for another version of the hooks, has no hook or a misspelt one, or a
        record lacks a key, has an unknown one or a wrong value
    :raises TypeError: the hook returns something else than a list of dicts
    """
    _check_version(module)
    entries = tuple(_entry(record, owner, package) for record in _records(module))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} records have the name {name!r}")
    return entries


def _check_version(module: ModuleType) -> None:
    version = getattr(module, "returnn_common_api_version", 1)
    if version != hookspecs.API_VERSION:
        raise ValueError(
            f"it is for version {version!r} of the hooks, this returnn_common has version {hookspecs.API_VERSION}"
        )


def _records(module: ModuleType) -> Sequence[Any]:
    """:return: what the module's one hook returns"""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
    except pluggy.PluginValidationError as error:  # other arguments than the hook has
        raise ValueError(" ".join(str(error).split())) from error
    _check_names(manager, module)
    calls = manager.hook.returnn_common_entries.get_hookimpls()
    if not calls:
        raise ValueError(_no_hook(module))
    records = calls[0].function()
    if not isinstance(records, (list, tuple)):
        raise TypeError(f"{HOOK}() returned a {type(records).__name__}, expected a list of dicts")
    return records


def _check_names(manager: pluggy.PluginManager, module: ModuleType) -> None:
    """:raises ValueError: a hook of the module is none of ours"""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        ours = [hook.name for hook in manager.get_hookcallers(module) or [] if hook.has_spec()]
        theirs = [hook.name for hook in manager.get_hookcallers(module) or []]
        name = next(name for name in theirs if name not in ours)
        raise ValueError(f"there is no hook {name!r}{near_misses(name, [HOOK])}") from error


def _no_hook(module: ModuleType) -> str:
    if hasattr(module, HOOK):
        return f"its {HOOK} is not marked with pluggy.HookimplMarker({hookspecs.PROJECT!r})"
    return f"{getattr(module, '__name__', module)} has no hook {HOOK}"


def _entry(record: Any, owner: str, package: str) -> Entry:
    if not isinstance(record, dict):
        raise TypeError(f"a record is a {type(record).__name__}, expected a dict")
    who = f"the record {record.get('name')!r}"
    _check_keys(record, who)
    _check_values(record, who)
    return Entry(
        **{
            **record,
            "target": _absolute(record["target"], package, who),
            "backends": tuple(record["backends"]),
            "owner": owner,
        }
    )


def _check_keys(record: dict[Any, Any], who: str) -> None:
    wanted = [field.name for field in fields(Entry) if field.name != "owner"]
    for key in record:
        if key not in wanted:
            raise ValueError(f"{who} has the key {key!r}{valid_names(key, wanted)}")
    missing = [key for key in wanted if key not in record]
    if missing:
        raise ValueError(f"{who} lacks {', '.join(missing)}")


def _check_values(record: dict[str, Any], who: str) -> None:
    """:raises ValueError, TypeError: see :func:`entries_of`"""
    for key in ("kind", "name", "summary", "target"):
        if not isinstance(record[key], str):
            raise TypeError(f"{who}: {key} is {record[key]!r}, expected a str")
    for key in ("tiny", "vary"):
        if not isinstance(record[key], dict) or not all(isinstance(k, str) for k in record[key]):
            raise TypeError(f"{who}: {key} is {record[key]!r}, expected a dict of arguments")
    if not _NAME.fullmatch(record["name"]):
        raise ValueError(f"{who}: expected a name of letters, digits and '_'")
    if not record["summary"].strip() or "\n" in record["summary"]:
        raise ValueError(f"{who}: expected a summary of one line, got {record['summary']!r}")
    if not _TARGET.fullmatch(record["target"]):
        raise ValueError(
            f"{who}: expected a target like 'module:function', got {record['target']!r}"
        )
    if record["kind"] not in hookspecs.KINDS:
        raise ValueError(
            f"{who}: there is no kind {record['kind']!r}{valid_names(record['kind'], hookspecs.KINDS)}"
        )
    _check_backends(record["backends"], who)


def _check_backends(backends: Any, who: str) -> None:
    if not isinstance(backends, (list, tuple)) or not backends:
        raise TypeError(f"{who}: backends is {backends!r}, expected a list of names")
    for backend in backends:
        if backend not in hookspecs.BACKENDS:
            raise ValueError(
                f"{who}: there is no backend {backend!r}{valid_names(backend, hookspecs.BACKENDS)}"
            )


def _absolute(target: str, package: str, who: str) -> str:
    try:
        return importlib.util.resolve_name(target, package)
    except ImportError:
        raise ValueError(
            f"{who}: the target {target!r} is relative, but {package!r} is no package with such a parent"
        ) from None
