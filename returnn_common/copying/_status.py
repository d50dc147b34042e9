"""What was changed since a copy was made, here and in the original."""

from __future__ import annotations

from pathlib import Path

from .changes import Change
from .merging import has_conflict
from .originals import originals_of
from .rewriting import File, body_of
from .store import Store, open_store

IN_CONFLICT = "in conflict"


def status(folder: str | Path) -> list[Change]:
    """
    What you and the original changed since the files were copied.

    :param folder: with copies
    :return: all files with their state: ``clean``, ``edited`` (by you), ``outdated`` (the original
        is another now), ``edited and outdated``, ``in conflict`` (an update waits for you),
        ``deleted`` (by you), and ``without original`` where the entry or its need of the file is
        gone. The texts are the pristine one and yours
    :raises ValueError: there are no copies in the folder
    """
    store = open_copies(folder)
    files = originals_of(store).files
    return [state_of(path, store, files.get(path)) for path in store.files]


def open_copies(folder: str | Path) -> Store:
    """
    :return: what is known about the copies in this folder
    :raises ValueError: there are none
    """
    store = open_store(folder)
    if not store.entries:
        raise ValueError(
            f"there are no copies in {folder}: expected a folder of `returnn-common copy`"
        )
    return store


def state_of(path: str, store: Store, original: File | None) -> Change:
    """:return: what :func:`status` says of this file"""
    pristine, current = store.pristine(path) or "", store.current(path)
    if current is None:
        return Change(path, "deleted", pristine)
    if has_conflict(current) or store.place(f"{path}.new").exists():
        return Change(path, IN_CONFLICT, pristine, current)
    changed = ["edited"] if current != pristine else []
    if original is None:
        changed.append("without original")
    elif body_of(pristine) != original.body:
        changed.append("outdated")
    return Change(path, " and ".join(changed) or "clean", pristine, current)
