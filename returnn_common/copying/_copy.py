"""The first copy of an entry."""

from __future__ import annotations

from pathlib import Path

from ..zoo import registry
from .changes import Change
from .originals import files_of
from .rewriting import File, body_of
from .store import Store, open_store


def copy(name: str, to: str | Path, *, dry_run: bool = False) -> list[Change]:
    """
    Copy an entry's file and those that it needs.

    :param name: of an entry, as for ``zoo.get``
    :param to: a folder that is, or becomes, a Python package; made where it is missing
    :param dry_run: only say what would be written
    :return: the files: ``copied``, or ``there`` for those that an earlier copy brought
    :raises ValueError: there is no such entry, its files cannot be copied, or one would replace a
        file; then nothing is written
    """
    entry = registry.find(name)
    _check_folder(Path(to))
    store = open_store(to)
    changes = [copy_of(file, store) for file in files_of(entry)]
    if not dry_run:
        _write(changes, store, entry.full_name)
    return changes


def copy_of(file: File, store: Store) -> Change:
    """
    :return: what copying this file changes
    :raises ValueError: there is another file in its place
    """
    pristine, current = store.pristine(file.path), store.current(file.path)
    if current is None:
        return Change(file.path, "copied", new=file.text)
    if current == file.text:
        return Change(file.path, "there", current, current)
    if file.path not in store.files or pristine is None:
        raise ValueError(f"{store.place(file.path)} is in the way; copy to another folder")
    if body_of(pristine) != file.body:
        raise ValueError(
            f"{store.place(file.path)} was copied from another version or another package: "
            f"`returnn-common update {store.folder}` first, or copy to another folder"
        )
    return Change(file.path, "there", current, current)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder")
    name = folder.resolve().name
    if not name.isidentifier():
        raise ValueError(
            f"the folder {name!r} cannot be imported; a name like {name.replace('-', '_')!r} can"
        )


def _write(changes: list[Change], store: Store, name: str) -> None:
    """The copies come last: if this is interrupted before, the same call goes on."""
    known = store.files
    for change in changes:
        if change.state == "copied" or change.path not in known:
            store.write_pristine(change.path, change.new)
    store.entries[name] = [change.path for change in changes]
    store.save()
    for change in changes:
        if change.state == "copied":
            store.write(change.path, change.new)
