"""
Archives of speech, deterministic to the byte, each with a small JSON file of facts beside it.

``train.zip`` is what RETURNN's ``OggZipDataset`` reads: ``train.txt``, a Python list with one dict
an utterance, and the folder ``train/`` with the audio::

    [{'text': 'ONE TWO', 'duration': 1.25, 'file': '17-3-0001.flac', 'seq_name': '17-3-0001'}, ...]

``train.json`` holds the numbers of utterances, speakers, words and seconds, and the size and
checksum of the archive; ``train.transcripts.txt`` the texts, one a line, for language models. The
JSON file is written last: an archive that has one is whole.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import whole_file, write_text

FORMAT = 1  # of the JSON file
_CHUNK = 2**20  # bytes


@dataclass(frozen=True)
class Entry:
    """An utterance of an archive."""

    name: str  # the sequence tag
    file: str  # of the audio, in the folder
    text: str
    duration: float  # seconds


def write_archive(
    path: str | os.PathLike, entries: Sequence[Entry], read: Callable[[Entry], bytes]
) -> None:
    """
    The same entries and audio give the same bytes: fixed dates and attributes, nothing compressed.
    The file appears whole or not at all.

    :param path: ends in ".zip"; an existing file is replaced
    :param entries: in the order in which they are to be stored
    :param read: gives the content of the audio file of an entry
    """
    name = Path(path).stem
    with (
        whole_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        _add(archive, f"{name}.txt", _listing(entries).encode())
        for entry in entries:
            _add(archive, f"{name}/{entry.file}", read(entry))


def read_entries(path: str | os.PathLike) -> list[Entry]:
    """
    :param path: an archive
    :raises ValueError: it is cut short, or no archive of this kind
    """
    with opened(path) as archive:
        listing = ast.literal_eval(archive.read(f"{Path(path).stem}.txt").decode())
    return [
        Entry(item.get("seq_name", item["file"]), item["file"], item["text"], item["duration"])
        for item in listing
    ]


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[zipfile.ZipFile]:
    """
    :return: the open archive
    :raises ValueError: it is cut short, or no archive of this kind
    """
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as exc:
        raise ValueError(f"{os.fspath(path)!r} is cut short or no zip file: {exc}") from exc
    with archive:
        listing = f"{Path(path).stem}.txt"
        if listing not in archive.namelist():
            raise ValueError(
                f"{os.fspath(path)!r} has no list of its utterances, expected a member {listing!r};"
                f" the archive must keep its name"
            )
        yield archive


def write_facts(path: str | os.PathLike, entries: Sequence[Entry], facts: dict[str, Any]) -> None:
    """
    Write what lies beside an archive: the transcripts, then the facts.

    :param path: the archive, which exists
    :param facts: further facts, such as the sample rate
    """
    path = Path(path)
    write_text(_transcripts_path(path), "".join(f"{entry.text}\n" for entry in entries))
    content = {
        "format": FORMAT,
        "utterances": len(entries),
        "speakers": len({speaker_of(entry) for entry in entries}),
        "words": sum(len(entry.text.split()) for entry in entries),
        "seconds": round(sum(entry.duration for entry in entries), 3),
        **facts,
        "bytes": path.stat().st_size,
        "sha256": sha256_of(path),
    }
    write_text(_facts_path(path), json.dumps(content, indent=2) + "\n")


def read_facts(path: str | os.PathLike) -> dict[str, Any] | None:
    """:return: the facts about an archive; None where there are none"""
    try:
        facts = json.loads(_facts_path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return facts if facts.get("format") == FORMAT else None


def is_made_from(path: str | os.PathLike, source: Any) -> bool:
    """
    :param source: what the facts of a current archive say under "source"
    :return: whether the archive is there, of the size that it had, and made from this
    """
    facts, path = read_facts(path), Path(path)
    return bool(
        facts
        and facts["source"] == source
        and path.exists()
        and path.stat().st_size == facts["bytes"]
    )


def remove_facts(path: str | os.PathLike) -> None:
    """before an archive is replaced"""
    _facts_path(path).unlink(missing_ok=True)


def num_utterances(path: str | os.PathLike) -> int:
    """:return: the number of utterances of an archive, without opening it where there are facts"""
    facts = read_facts(path)
    return facts["utterances"] if facts else len(read_entries(path))


def whole_archive(path: str | os.PathLike) -> None:
    """
    :raises ValueError: the archive has another size than when it was written
    """
    facts, size = read_facts(path), os.path.getsize(path)
    if facts and facts["bytes"] != size:
        raise ValueError(
            f"{os.fspath(path)!r} has {size} bytes, and {facts['bytes']} when it was written:"
            f" it is cut short or changed; prepare it again"
        )


def speaker_of(entry: Entry) -> str:
    """:return: the speaker: what is before the first "-" of the name of the file"""
    return entry.file.split("-")[0]


def sha256_of(path: str | os.PathLike) -> str:
    """:return: the checksum of a file, in hexadecimal digits"""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def transcripts_path(path: str | os.PathLike) -> str:
    """:return: the file with the texts of an archive"""
    return os.fspath(_transcripts_path(path))


def _transcripts_path(path: str | os.PathLike) -> Path:
    return Path(path).with_suffix(".transcripts.txt")


def _facts_path(path: str | os.PathLike) -> Path:
    return Path(path).with_suffix(".json")


def _listing(entries: Iterable[Entry]) -> str:
    lines = [
        repr({"text": e.text, "duration": e.duration, "file": e.file, "seq_name": e.name}) + ",\n"
        for e in entries
    ]
    return "[\n" + "".join(lines) + "]\n"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3  # Unix, on every system
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)
