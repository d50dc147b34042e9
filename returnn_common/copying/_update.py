"""Changes of the originals, brought into copies."""

from __future__ import annotations

from pathlib import Path

from ._copy import copy_of
from ._status import IN_CONFLICT, open_copies, state_of
from .changes import Change
from .merging import has_conflict, merge
from .originals import originals_of
from .rewriting import File
from .store import Store

UPDATED, MERGED, CONFLICTS = "updated", "merged", "merged with conflicts"
BESIDE, ADDED = "original beside it", "added"
WAITING = (CONFLICTS, BESIDE, IN_CONFLICT)  # for the user


def update(folder: str | Path, *, dry_run: bool = False) -> list[Change]:
    """
    Bring what changed in the originals into the copies; your edits stay.

    :param folder: with copies
    :param dry_run: only say what would be done
    :return: all files: ``updated``, ``added`` (the entry needs one more), ``merged``, ``merged with
        conflicts`` (look for the markers), ``original beside it`` (git is not installed: merge
        ``FILE.new`` by hand, then delete it), else what :func:`status` says. The texts are the ones
        before and after
    :raises ValueError: there are no copies in the folder, or a file is in the way of a new one; then
        nothing is written
    """
    store = open_copies(folder)
    originals = originals_of(store)
    paths = sorted({*store.files, *originals.files})
    changes = [_change(path, store, originals.files.get(path)) for path in paths]
    if not dry_run:
        for change in changes:
            _apply(change, store, originals.files)
        store.entries.update(originals.paths)
        store.save()
    return changes


def _change(path: str, store: Store, original: File | None) -> Change:
    """:return: what is to be done to this file"""
    if original is not None and path not in store.files:
        added = copy_of(original, store)
        return Change(path, ADDED, added.old, added.new)
    state = state_of(path, store, original).state
    current = store.current(path) or ""
    if original is not None and state == "outdated":
        return Change(path, UPDATED, current, original.text)
    if original is not None and state == "edited and outdated":
        return _merged(original, store, current)
    return Change(path, state, current, current)


def _merged(original: File, store: Store, current: str) -> Change:
    text = merge(current, store.pristine(original.path) or "", original.text)
    if text is None:
        return Change(original.path, BESIDE, current, original.text)
    return Change(original.path, CONFLICTS if has_conflict(text) else MERGED, current, text)


def _apply(change: Change, store: Store, originals: dict[str, File]) -> None:
    """The pristine text comes last: if this is interrupted before, the same call goes on."""
    if change.state not in (UPDATED, MERGED, CONFLICTS, BESIDE, ADDED):
        return
    store.write(f"{change.path}.new" if change.state == BESIDE else change.path, change.new)
    store.write_pristine(change.path, originals[change.path].text)
