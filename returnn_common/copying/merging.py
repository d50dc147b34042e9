"""Three texts to one: what a user changed and what the original changed, with ``git merge-file``."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

_START, _END = "<<<<<<< ", ">>>>>>> "


def merge(current: str, pristine: str, new: str) -> str | None:
    """
    :param current: the copy with the user's edits
    :param pristine: what both started from
    :param new: the original now
    :return: the text with both changes, with conflict markers where they touch each other; None
        where git is not installed
    :raises RuntimeError: git fails
    """
    names = ("yours", "as copied", "original")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(i)) for i in range(len(names))]
        for path, text in zip(paths, (current, pristine, new)):
            path.write_bytes(text.encode("utf-8"))
        labels = [part for name in names for part in ("-L", name)]
        command = ["git", "merge-file", "--stdout", *labels, *map(str, paths)]
        try:
            result = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return None
    if result.returncode not in range(128):  # the number of conflicts
        raise RuntimeError(f"git merge-file failed: {result.stderr.decode(errors='replace')}")
    return result.stdout.decode("utf-8")


def has_conflict(text: str) -> bool:
    """:return: whether conflict markers are left in the text"""
    lines = text.split("\n")
    return any(line.startswith(_START) for line in lines) and any(
        line.startswith(_END) for line in lines
    )
