"""Verify prepared archives: what was written is still there, in full."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .archives import Entry, opened, read_entries, read_facts, sha256_of
from .audio import import_soundfile
from .paths import get_common_data_path
from .progress import progress_bar
from .verification import in_parallel

_TOLERANCE = 1e-3  # seconds, between a duration and what is stored of it


def find_archives(folder: str | os.PathLike) -> list[Path]:
    """
    :return: the archives in a prepared folder, or in the folders in it, sorted
    :raises ValueError: there is no archive
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; {_HOW}")
    found = sorted(folder.glob("*.zip")) or sorted(folder.glob("*/*.zip"))
    if not found:
        raise ValueError(f"there is no archive in {str(folder)!r}; {_HOW}")
    return found


_HOW = "returnn-common data prepare makes some, returnn-common data link names a folder with some"


def check(folder: str | os.PathLike | None = None, *, jobs: int | None = None) -> list[str]:
    """
    Verify all archives of a folder: their checksums, and that all audio decodes to its duration.

    :param folder: by default the common data folder
    :param jobs: threads, by default as many as there are processors
    :return: one line for each whole archive
    :raises ValueError: with a line for everything that is missing or broken
    """
    reports, problems = [], []
    for path in find_archives(folder if folder is not None else get_common_data_path()):
        entries, found = check_archive(path, jobs=jobs or os.cpu_count() or 1)
        problems += found
        hours = sum(entry.duration for entry in entries) / 3600
        if not found:
            reports.append(f"{path}: {len(entries)} utterances, {hours:.2f} h, all whole")
    if problems:
        raise ValueError("\n  ".join([f"{len(problems)} problems:", *problems, *reports]))
    return reports


def check_archive(path: Path, *, jobs: int) -> tuple[list[Entry], list[str]]:
    """:return: the utterances of an archive, and what is wrong with it, one line each"""
    try:
        entries = read_entries(path)
    except ValueError as error:
        return [], [str(error)]
    problems = _facts_problems(path, entries)
    with opened(path) as archive, progress_bar(path.stem, len(entries)) as advance:
        members = archive.namelist()
        wanted = {f"{path.stem}.txt", *(f"{path.stem}/{entry.file}" for entry in entries)}
        problems += [f"{path}: {name} is not in its list" for name in sorted({*members} - wanted)]

        def verify(entry: Entry) -> None:
            _verify_entry(archive, path, entry)

        for done, result in enumerate(in_parallel(verify, entries, jobs=jobs), 1):
            problems += [str(result)] if isinstance(result, ValueError) else []
            advance(done)
    return entries, problems


def _facts_problems(path: Path, entries: Sequence[Entry]) -> list[str]:
    facts = read_facts(path)
    if facts is None:
        return [f"{path}: there are no facts in {path.stem}.json; prepare it again"]
    if facts["sha256"] != sha256_of(path):
        return [f"{path}: its checksum is not the one it was written with; prepare it again"]
    if facts["utterances"] != len(entries):
        return [f"{path}: has {len(entries)} utterances, expected {facts['utterances']}"]
    return []


def _verify_entry(archive: zipfile.ZipFile, path: Path, entry: Entry) -> None:
    """:raises ValueError: the audio of an utterance is missing or broken, or its text empty"""
    soundfile = import_soundfile()
    where = f"{path}: {entry.name}"
    if not entry.text.strip():
        raise ValueError(f"{where} has no text")
    try:
        content = archive.read(f"{path.stem}/{entry.file}")
        audio, rate = soundfile.read(io.BytesIO(content), dtype="int16")
    except KeyError as exc:
        raise ValueError(f"{where} has no audio") from exc
    except (zipfile.BadZipFile, EOFError, soundfile.LibsndfileError) as exc:
        raise ValueError(f"{where} has broken audio: {exc}") from exc
    if abs(len(audio) / rate - entry.duration) > _TOLERANCE:
        raise ValueError(f"{where} has {len(audio) / rate} s, expected {entry.duration} s")
