"""Files that appear whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """
    A temporary name in the same folder, which becomes `path` at the end. After an error, `path` is as before.

    :param path: an existing file is replaced
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def unfinished(folder: str | os.PathLike, name: str = "*") -> list[Path]:
    """:return: what :func:`whole_file` had begun of `name` in a folder when its process was killed"""
    return sorted(Path(folder).glob(f"{name}.*.tmp"))


def write_text(path: str | os.PathLike, text: str) -> None:
    """write the whole text, UTF-8, or nothing"""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
