"""What a copy would bring today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import plugins
from ..records import Entry
from ..zoo import description, registry
from . import closure
from .rewriting import File, copied, path_of
from .store import Store


@dataclass(frozen=True)
class Originals:
    """
    :param paths: the files of each copied entry that still exists
    :param files: these files by path
    """

    paths: dict[str, list[str]]
    files: dict[str, File]


def files_of(entry: Entry) -> list[File]:
    """
    :return: the files of a copy of this entry: its own and those that it needs
    :raises ValueError: one of them cannot be copied; the message has the place
    """
    plugin = next(p for p in plugins.all_plugins() if entry in p.entries)
    root, sources = closure.sources_of(entry)
    return copied(sources, root, plugin)


def import_line(name: str, folder: str | Path) -> str:
    """
    :param name: of an entry
    :param folder: of its copy
    :return: how its function is imported from there, if the folder above is on the path
    """
    entry = registry.find(name)
    root, _ = closure.sources_of(entry)
    source, node = description.find_definition(entry)
    parts = [Path(folder).resolve().name, *Path(path_of(source, root)).with_suffix("").parts]
    return f"from {'.'.join(p for p in parts if p != '__init__')} import {node.name}"


def originals_of(store: Store) -> Originals:
    """:return: what copies of the entries in the store would be today"""
    files = {e.full_name: files_of(e) for e in registry.entries() if e.full_name in store.entries}
    return Originals(
        {name: [file.path for file in listed] for name, listed in files.items()},
        {file.path: file for listed in files.values() for file in listed},
    )
