"""Unpack tar files of others: nothing may get out of the folder that they are unpacked in."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from ..files import write_text
from .progress import progress_bar

_DONE = ".complete"
_MB = 10**6


def unpack(path: Path, folder: Path) -> Path:
    """
    Unpack a tar file, compressed or not, unless it already was.

    :param path: the tar file
    :param folder: in this one
    :return: the new folder with the content
    :raises ValueError: it is cut short or no tar file, or a member is anything but a file or folder
        with a plain relative name. Nothing of such a file is used
    """
    size = path.stat().st_size
    target = folder / f"{path.name}.{size}"
    if (target / _DONE).exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        _unpack_all(path, target, size)
    except ValueError:
        shutil.rmtree(target)
        raise
    write_text(target / _DONE, "")
    return target


def _unpack_all(path: Path, target: Path, size: int) -> None:
    try:
        with (
            open(path, "rb") as file,
            tarfile.open(fileobj=file) as archive,
            progress_bar(f"{path.name}, MB", size // _MB) as advance,
        ):
            for member in archive:
                _unpack_member(archive, member, target, path)
                advance(file.tell() // _MB)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:
            raise  # of the disk, not of the archive
        raise ValueError(f"{str(path)!r} is cut short or no tar file: {exc}") from exc


def _unpack_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, path: Path
) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name:
        raise ValueError(
            f"{str(path)!r} is refused: its member {member.name!r} leads out of the folder"
        )
    if member.isdir():
        (target / name).mkdir(parents=True, exist_ok=True)
    elif member.isfile():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None
        if (target / name).exists():
            raise ValueError(f"{str(path)!r} is refused: it has {member.name!r} twice")
        with content, open(target / name, "xb") as file:
            shutil.copyfileobj(content, file)
        os.utime(target / name, (member.mtime, member.mtime))
    else:
        raise ValueError(
            f"{str(path)!r} is refused: its member {member.name!r} is neither a file nor a folder"
        )
