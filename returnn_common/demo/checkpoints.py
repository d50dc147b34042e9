"""
Which checkpoints are complete after an interruption.

RETURNN writes a checkpoint after every epoch and continues from the newest by itself. When it is killed while writing,
files can be left that it would take for a checkpoint: torch's and TensorFlow's writers rename whole files, so this is
rare, but a full disk or a lost machine leaves them too. `set_aside_incomplete` moves such files
away, and deletes none.

=============  ==================================================================
TensorFlow     ``net.003.index``, ``net.003.data-00000-of-00001``, ``net.003.meta``
torch          ``net.003.pt``, ``net.003.opt.pt`` (optimizer)
=============  ==================================================================
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

_EPOCH = re.compile(r"net\.(\d+)\.")


def epochs(folder: Path) -> list[int]:
    """:return: the epochs of which there is any file, sorted"""
    return sorted(
        {int(match[1]) for path in folder.glob("net.*") if (match := _EPOCH.match(path.name))}
    )


def set_aside_incomplete(folder: Path) -> list[Path]:
    """
    Move incomplete checkpoints, and files that a writer has not yet renamed, to the folder
    ``incomplete`` beside them. Checkpoints older than the newest complete one are not looked at.

    :return: the moved files, where they are now
    :raises ChildProcessError: if TensorFlow cannot say what is complete
    """
    moved = [path for path in folder.glob("net.*") if _is_temporary(path)]
    newest_first = epochs(folder)[::-1]
    for epoch in newest_first[: _count_incomplete(folder, newest_first)]:
        moved += [path for path in folder.glob(f"net.{epoch:03d}.*") if path not in moved]
    return [_set_aside(path) for path in sorted(moved)]


def _is_temporary(path: Path) -> bool:
    return "tempstate" in path.name or path.suffix == ".tmp_write"


def _count_incomplete(folder: Path, newest_first: list[int]) -> int:
    """:return: of how many checkpoints, from the newest on, files are missing or cut off"""
    bases = [folder / f"net.{epoch:03d}" for epoch in newest_first]
    if any(folder.glob("net.*.index")):
        return _count_incomplete_tensorflow(bases)
    complete = (all(map(_is_complete_torch, _torch_files(base))) for base in bases)
    return next((number for number, is_complete in enumerate(complete) if is_complete), len(bases))


def _torch_files(base: Path) -> list[Path]:
    return [base.with_name(base.name + end) for end in (".pt", ".opt.pt")]


def _is_complete_torch(path: Path) -> bool:
    """Torch writes zip files, which have checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _count_incomplete_tensorflow(bases: list[Path]) -> int:
    """In a process of its own, for TensorFlow prints a screenful when it is imported."""
    command = [sys.executable, "-c", _COUNT, *map(str, bases)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise ChildProcessError(f"TensorFlow cannot check {bases[0]}: {process.stderr[-500:]}")
    return int(process.stdout.split()[-1])


# Reading a tensor compares its checksum. The ``.meta`` file is not needed to continue.
_COUNT = """
import sys
import tensorflow as tf

def is_complete(base):
    try:
        reader = tf.train.load_checkpoint(base)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):  # how each fault shows
        return False
    return True

bases = sys.argv[1:]
print(next((number for number, base in enumerate(bases) if is_complete(base)), len(bases)))
"""


def _set_aside(path: Path) -> Path:
    folder = path.parent / "incomplete"
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 1
    while target.exists():
        target, number = folder / f"{path.name}.{number}", number + 1
    return path.rename(target)
