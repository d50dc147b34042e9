"""Set up the common data folder of a project."""

from __future__ import annotations

import os
from pathlib import Path

from .paths import DEFAULT_FOLDER, VARIABLE


def link(folder: str | os.PathLike, *, at: str | os.PathLike = DEFAULT_FOLDER) -> str:
    """
    Make a symlink, so that ``get_common_data_path`` finds the data of everybody.

    :param folder: where the data is, or will be; made if needed
    :param at: the link
    :return: one line that says what is there now
    :raises ValueError: there is something else already
    """
    folder, at = Path(folder).absolute(), Path(at)
    if at.is_symlink() and at.resolve() == folder.resolve():
        return f"{at} is already a link to {folder}"
    if at.is_symlink() or at.exists():
        what = f"a link to {os.readlink(at)!r}" if at.is_symlink() else "no link"
        raise ValueError(
            f"{str(at)!r} exists and is {what}; remove it first, or set {VARIABLE}={folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    at.symlink_to(folder, target_is_directory=True)
    return f"{at} is a link to {folder} now"
