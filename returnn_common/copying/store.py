"""
What a folder of copies knows about them: ``.returnn_common/`` in it, which belongs into version
control like the copies.

``copied.json`` has the files of each entry, ``pristine/`` each file as it was copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..files import write_text

STORE = ".returnn_common"


@dataclass
class Store:
    """:param entries: full name of each copied entry -> its files, with ``/``"""

    folder: Path
    entries: dict[str, list[str]] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """all copied files, sorted"""
        return sorted({path for paths in self.entries.values() for path in paths})

    def place(self, path: str) -> Path:
        """
        :return: where this file of the copy is
        :raises ValueError: that is outside of the folder, e.g. behind a symbolic link
        """
        return _inside(self.folder, path)

    def pristine_place(self, path: str) -> Path:
        """:return: where its pristine text is"""
        return _inside(self.folder, f"{STORE}/pristine/{path}")

    def pristine(self, path: str) -> str | None:
        """:return: the file as it was copied; None where it was not"""
        return read_text(self.pristine_place(path))

    def current(self, path: str) -> str | None:
        """:return: the file as it is now; None where there is none"""
        return read_text(self.place(path))

    def write(self, path: str, text: str) -> None:
        """write the file"""
        _write(self.place(path), text)

    def write_pristine(self, path: str, text: str) -> None:
        """write its pristine text"""
        _write(self.pristine_place(path), text)

    def save(self) -> None:
        """write down which files belong to which entry"""
        text = json.dumps({"entries": self.entries}, indent=2, sort_keys=True) + "\n"
        _write(_inside(self.folder, f"{STORE}/copied.json"), text)


def open_store(folder: str | Path) -> Store:
    """
    :return: what is known about the copies in this folder, nothing at first
    :raises ValueError: ``copied.json`` there is broken
    """
    folder = Path(folder)
    path = folder / STORE / "copied.json"
    text = read_text(path)
    if text is None:
        return Store(folder)
    try:
        entries = json.loads(text)["entries"]
        store = Store(folder, {name: [str(p) for p in paths] for name, paths in entries.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected what returnn-common copy wrote there: {error}"
        ) from None
    for name in store.files:
        store.place(name)
    return store


def read_text(path: Path) -> str | None:
    """
    :return: the text with its own line ends; None where there is no such file
    :raises ValueError: it is not UTF-8
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8: {error}") from None


def _inside(folder: Path, path: str) -> Path:
    parts = PurePosixPath(path)
    place = folder / parts
    if parts.is_absolute() or not place.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{place} is outside of the folder {folder}")
    return place


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, text)
