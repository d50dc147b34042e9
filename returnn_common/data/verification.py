"""Read audio files in full to find out whether they are whole, in parallel, and remember what was found."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from .audio import import_soundfile

_MD5 = slice(
    26, 42
)  # of the samples: in the header of a FLAC file, https://www.rfc-editor.org/rfc/rfc9639
_AT_ONCE = 1000  # files
_FRAMES_AT_ONCE = 2**20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Verified:
    """An audio file that is whole."""

    size: int  # bytes
    sha256: str
    frames: int


def verify_audio(path: Path, *, sample_rate: int) -> Verified:
    """
    Decode a whole audio file.

    :param sample_rate: the expected one, in Hz
    :raises ValueError: it is empty, cut off or damaged, not mono, or of another rate
    """
    content = path.read_bytes()
    if not content:
        raise ValueError(f"{path}: is an empty file")
    soundfile = import_soundfile()
    try:
        with soundfile.SoundFile(os.fspath(path)) as file:
            frames = _decode(
                file, _md5_in_header(content, file), path=path, sample_rate=sample_rate
            )
    except soundfile.LibsndfileError as exc:
        raise ValueError(f"{path}: is cut off, damaged or not audio: {exc.error_string}") from exc
    return Verified(len(content), hashlib.sha256(content).hexdigest(), frames)


def _md5_in_header(content: bytes, file: Any) -> bytes | None:
    """:return: what the header says about the samples; None where it says nothing"""
    if file.format != "FLAC" or file.subtype != "PCM_16" or not any(content[_MD5]):
        return None
    return content[_MD5]


def _decode(file: Any, md5: bytes | None, *, path: Path, sample_rate: int) -> int:
    if file.samplerate != sample_rate:
        raise ValueError(f"{path}: is of {file.samplerate} Hz, expected {sample_rate} Hz")
    if file.channels != 1:
        raise ValueError(f"{path}: has {file.channels} channels, expected 1")
    digest, frames = hashlib.md5(), 0
    while len(block := file.read(_FRAMES_AT_ONCE, dtype="int16")):
        digest.update(block.astype("<i2").tobytes())
        frames += len(block)
    if frames < file.frames:
        raise ValueError(f"{path}: is cut off after {frames} of {file.frames} samples")
    if not frames:
        raise ValueError(f"{path}: has no samples")
    if md5 is not None and digest.digest() != md5:
        raise ValueError(
            f"{path}: is damaged: the checksum in its header is not that of its samples"
        )
    return frames


class Journal:
    """
    What was verified so far, in a file, so that an interrupted run can go on. A file that has
    changed since counts as new.
    """

    def __init__(self, path: Path):
        """:param path: of the journal; an existing one is read"""
        self._known: dict[tuple[str, int, int], Verified] = {}
        if path.exists():
            self._read(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._lock = threading.Lock()

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):  # the last line may be cut short
                name, size, time, verified = json.loads(line)
                self._known[name, size, time] = Verified(**verified)

    def verify(self, path: Path, *, sample_rate: int) -> Verified:
        """as :func:`verify_audio`, once"""
        status = path.stat()
        key = (str(path), status.st_size, status.st_mtime_ns)
        if key not in self._known:
            verified = verify_audio(path, sample_rate=sample_rate)
            with self._lock:
                self._known[key] = verified
                self._file.write(json.dumps([*key, asdict(verified)]) + "\n")
                self._file.flush()
        return self._known[key]

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def in_parallel(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, jobs: int
) -> Iterator[_Result | ValueError]:
    """
    :param function: releases Python's lock most of the time, as libsndfile and checksums do
    :param jobs: threads
    :return: in the order of the items, what the function gives, or the ValueError that it raises
    """

    def call(item: _Item) -> _Result | ValueError:
        try:
            return function(item)
        except ValueError as error:
            return error

    pool = ThreadPoolExecutor(jobs)
    try:
        for some in _chunks(items):
            yield from pool.map(call, some)
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption waits for what runs, for no more


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """not all at once: a pool holds what it was given"""
    rest = iter(items)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        yield some


def sha256_of_files(paths: Iterable[str | os.PathLike]) -> str:
    """:return: one checksum of the names and contents of files, in this order"""
    digest = hashlib.sha256()
    for path in paths:
        content = Path(path).read_bytes()
        digest.update(f"{Path(path).name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
