"""
Which checkpoints are complete after an interruption.

RETURNN writes a checkpoint after every epoch and continues from the newest by itself. When it is killed while writing,
files can be left that it would take for a checkpoint: torch's and TensorFlow's writers rename whole files, so this is
rare, but a full disk or a lost machine leaves them too. `set_aside_incomplete` moves such files away, and deletes none.

=============  ==================================================================
TensorFlow     ``net.003.index``, ``net.003.data-00000-of-00001``, ``net.003.meta``
torch          ``net.003.pt``, ``net.003.opt.pt`` (optimizer)
=============  ==================================================================
"""

from __future__ import annotations

import re
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
    Move incomplete checkpoints, and files that a writer has not yet renamed, to the folder ``incomplete`` beside them.

    :return: the moved files, where they are now
    """
    moved = [
        path
        for path in folder.glob("net.*")
        if "tempstate" in path.name or path.suffix == ".tmp_write"
    ]
    for epoch in reversed(epochs(folder)):
        if is_complete(folder, epoch):
            break
        moved += [path for path in folder.glob(f"net.{epoch:03d}.*") if path not in moved]
    return [_set_aside(path) for path in sorted(moved)]


def is_complete(folder: Path, epoch: int) -> bool:
    """:return: whether RETURNN can continue from there: all files exist and their checksums fit"""
    base = folder / f"net.{epoch:03d}"
    if base.with_name(base.name + ".index").exists():
        return _is_complete_tensorflow(base)
    return all(_is_complete_torch(base.with_name(base.name + end)) for end in (".pt", ".opt.pt"))


def _is_complete_torch(path: Path) -> bool:
    """Torch writes zip files."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _is_complete_tensorflow(base: Path) -> bool:
    """Reading a tensor compares its checksum. The ``.meta`` file is not needed to continue."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(base))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):  # how each fault shows
        return False
    return True


def _set_aside(path: Path) -> Path:
    folder = path.parent / "incomplete"
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 1
    while target.exists():
        target, number = folder / f"{path.name}.{number}", number + 1
    return path.rename(target)
