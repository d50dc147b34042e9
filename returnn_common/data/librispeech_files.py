"""
Find the utterances of LibriSpeech, or of a corpus laid out like it, and everything wrong with them.

The layout is that of https://www.openslr.org/12::

    LibriSpeech/dev-clean/2412/153948/2412-153948-0000.flac
    LibriSpeech/dev-clean/2412/153948/2412-153948.trans.txt

with lines such as ``2412-153948-0000 IF THE READER WILL EXCUSE ME`` in the transcripts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PARTS = (
    "train-clean-100",
    "train-clean-360",
    "train-other-500",
    "dev-clean",
    "dev-other",
    "test-clean",
    "test-other",
)
TRAIN = PARTS[:3]
DEV = PARTS[3:5]
SAMPLE_RATE = 16_000  # Hz
AUDIO_ENDINGS = (".flac", ".wav", ".ogg", ".mp3")

_NAME = re.compile(r"\d+-\d+-\d+")
_TRANSCRIPTS = ".trans.txt"


@dataclass(frozen=True)
class Recording:
    """One utterance: audio file and text."""

    name: str  # SPEAKER-CHAPTER-NUMBER
    path: Path
    text: str


@dataclass
class Scan:
    """What is in the folders of one part: recordings sorted by name, and what is wrong."""

    recordings: list[Recording] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_parts(folder: Path) -> dict[str, Path]:
    """
    :param folder: a part of LibriSpeech, or the folder with its parts, or the folder with that one
    :return: the folders of the parts, by name
    :raises ValueError: there is no part
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}")
    if folder.name in PARTS:
        return {folder.name: folder}
    for parent in (folder, folder / "LibriSpeech"):
        parts = {name: parent / name for name in PARTS if (parent / name).is_dir()}
        if parts:
            return parts
    raise ValueError(
        f"no part of LibriSpeech in {str(folder)!r}, expected folders such as {PARTS[0]!r}"
        f" or LibriSpeech/{PARTS[0]}"
    )


def scan(folders: list[Path]) -> Scan:
    """
    :param folders: of one part
    :return: all utterances that have audio and text, and one line for everything else
    :raises OSError: a folder or a transcript cannot be read
    """
    audio: dict[str, Path] = {}
    texts: dict[str, tuple[str, Path]] = {}
    result = Scan()
    for path in (path for folder in folders for path in _files(folder)):
        if path.name.endswith(_TRANSCRIPTS):
            _read_transcripts(path, texts, result.problems)
        elif path.suffix in AUDIO_ENDINGS:
            _add_audio(path, audio, result.problems)
    _match(audio, texts, result)
    return result


def _files(folder: Path) -> Iterator[Path]:
    """sorted; unlike ``os.walk`` it does not pass over what it may not read"""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            yield from _files(Path(entry.path))
        else:
            yield Path(entry.path)


def _read_transcripts(path: Path, texts: dict[str, tuple[str, Path]], problems: list[str]) -> None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as exc:
        problems.append(f"{path}: is not text in UTF-8: {exc}")
        return
    for number, line in enumerate(lines, start=1):
        name, _, text = line.strip().partition(" ")
        where = f"{path}, line {number}"
        if not name:
            continue
        if not _NAME.fullmatch(name):
            problems.append(f"{where}: expected SPEAKER-CHAPTER-NUMBER and a text, got {line!r}")
        elif name in texts:
            problems.append(f"{where}: {name} is also in {texts[name][1]}, expected one transcript")
        else:
            texts[name] = text.strip(), path


def _add_audio(path: Path, audio: dict[str, Path], problems: list[str]) -> None:
    if path.stem in audio:
        problems.append(f"{path}: {path.stem} is also {audio[path.stem]}, expected one audio file")
    else:
        audio[path.stem] = path


def _match(audio: dict[str, Path], texts: dict[str, tuple[str, Path]], result: Scan) -> None:
    for name in sorted(audio.keys() | texts.keys()):
        if name not in audio:
            result.problems.append(f"{texts[name][1]}: {name} has a transcript, but no audio file")
        elif name not in texts:
            result.problems.append(f"{audio[name]}: there is no transcript of {name}")
        elif not texts[name][0]:
            result.problems.append(f"{texts[name][1]}: the transcript of {name} is empty")
        else:
            result.recordings.append(Recording(name, audio[name], texts[name][0]))
