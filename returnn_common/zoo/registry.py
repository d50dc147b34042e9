"""
Names of entries to what makes them. The entries come through the hook of :mod:`hookspecs`, our own
too.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from .. import plugins
from . import builtins

OWNER = "returnn_common"


def get(name: str, **options: Any) -> Any:
    """
    :param name: of an entry, e.g. ``conformer`` or ``returnn_common/conformer``
    :param options: the arguments of its ``make_...`` function; each has a default
    :return: what that function makes: a module, a dataset, ...
    :raises ValueError: there is no such entry
    :raises TypeError: the entry has no such option
    """
    entry = find(name)
    maker = load(entry)
    valid = list(inspect.signature(maker).parameters)
    for option in options:
        if option not in valid:
            raise TypeError(f"{entry.name} has no option {option!r}{_hint(option, valid)}")
    return maker(**options)


def list_names(pattern: str | None = None, *, kind: str | None = None) -> list[str]:
    """
    :param pattern: with wildcards, e.g. ``"*former*"``; by default all
    :param kind: only entries of this kind, e.g. ``"encoder"``
    :return: the names of the entries, in natural order (``a2`` before ``a10``)
    :raises ValueError: there is no such kind
    """
    kinds = plugins.hookspecs.KINDS
    if kind is not None and kind not in kinds:
        raise ValueError(f"there is no kind {kind!r}{_hint(kind, kinds)}")
    names = [entry.name for entry in entries() if kind in (None, entry.kind)]
    return sorted(fnmatch.filter(names, pattern or "*"), key=_natural)


@functools.cache
def entries() -> tuple[plugins.Entry, ...]:
    """:return: all entries"""
    return tuple(plugins.collect({OWNER: builtins}))


def find(name: str) -> plugins.Entry:
    """
    :return: the entry of this name, or full name ``owner/name``
    :raises ValueError: there is none
    """
    for entry in entries():
        if name in (entry.name, entry.full_name):
            return entry
    names = list_names()
    raise ValueError(f"there is no entry {name!r}{_hint(name, names)}")


def load(entry: plugins.Entry) -> Callable[..., Any]:
    """:return: the function that makes this entry, its module imported now"""
    module, _, function = entry.target.partition(":")
    package = __name__.removesuffix(".zoo.registry")  # ours has many names
    return getattr(importlib.import_module(module, package), function)


def _hint(name: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, valid, n=3)
    start = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ";"
    return f"{start} valid are: {', '.join(valid)}"


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
