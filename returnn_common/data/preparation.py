"""
Make archives from files: verified, whole or not at all, the same bytes however often it was
interrupted.

All work of a run goes on in one folder ``.prepare`` in the target, which the last step removes; a
lock there keeps a second run out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import unfinished, write_text
from .archives import Entry, is_made_from, read_facts, remove_facts, write_archive, write_facts
from .audio import read_audio
from .librispeech_files import Recording, Scan
from .oggzip import flac_bytes, ogg_bytes
from .progress import progress_bar
from .verification import Journal, Verified, in_parallel

WORK, LOCK = ".prepare", "lock"
PROBLEMS = "problems.txt"
SHOWN_PROBLEMS = 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LISTING_BYTES = 1000  # per utterance, at most: its line in the listing, and the headers in the zip

_Whole = list[tuple[Recording, Verified]]


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """
    :param target: the folder of the archives; made if needed
    :return: a folder in it for this run alone, which stays after an error, with what was done
    :raises ValueError: another process prepares into this target now
    """
    work = target / WORK
    work.mkdir(parents=True, exist_ok=True)
    with open(work / LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ValueError(
                f"another process prepares data in {str(target)!r} now; wait for it"
            ) from exc
        for left in unfinished(target):
            left.unlink()
        try:
            yield work
        except BaseException:
            _remove_unless_used(work)
            raise
        shutil.rmtree(work)


def _remove_unless_used(work: Path) -> None:
    """An error before any work leaves nothing behind, not even the folder of the archives."""
    if [path.name for path in work.iterdir()] == [LOCK]:
        shutil.rmtree(work)
        with contextlib.suppress(OSError):  # it is not empty
            work.parent.rmdir()


@dataclass(frozen=True)
class Options:
    """How archives are made; see :func:`prepare_librispeech`."""

    sample_rate: int  # Hz
    jobs: int
    ogg: bool = False
    skip_broken: bool = False


def prepare_part(name: str, found: Scan, target: Path, options: Options) -> list[str]:
    """
    Write the archive `name` with what lies beside it, unless it is there already.

    :param found: what it is made from
    :param target: folder; its work folder is :data:`WORK`
    :return: problems, one line each. With any, no archive is written unless ``options.skip_broken``
    """
    path = target / f"{name}.zip"
    source = _fingerprint(found.recordings, ogg=options.ogg)
    facts = read_facts(path)
    if facts and is_made_from(path, source) and not facts["left_out"]:
        return found.problems
    whole, problems = _verify(name, found, target / WORK / f"{name}.journal", options)
    if not whole:
        problems.append(f"{name}: has no utterance with whole audio and text")
    if not whole or (problems and not options.skip_broken):
        return problems
    remove_facts(path)
    entries = [_entry(name, rec, audio, options) for rec, audio in whole]
    kept = {recording.name for recording, _ in whole}
    left_out = [recording.name for recording in found.recordings if recording.name not in kept]
    more_facts = {"sample_rate": options.sample_rate, "source": source, "left_out": left_out}
    with no_space_left(path, sum(audio.size + _LISTING_BYTES for _, audio in whole)):
        _write(path, entries, whole, ogg=options.ogg)
        write_facts(path, entries, more_facts)
    return problems


def _fingerprint(recordings: Sequence[Recording], *, ogg: bool) -> str:
    """:return: changes when a recording or a text is added, removed or changed"""
    digest = hashlib.sha256(b"ogg" if ogg else b"flac")
    for recording in recordings:
        facts = (recording.name, recording.path.suffix, recording.path.stat().st_size)
        digest.update(repr((*facts, recording.text)).encode())
    return digest.hexdigest()


def _verify(name: str, found: Scan, journal: Path, options: Options) -> tuple[_Whole, list[str]]:
    whole, problems = [], list(found.problems)
    with Journal(journal) as known, progress_bar(name, len(found.recordings)) as advance:

        def verify(recording: Recording) -> Verified:
            return known.verify(recording.path, sample_rate=options.sample_rate)

        results = in_parallel(verify, found.recordings, jobs=options.jobs)
        for done, (recording, result) in enumerate(zip(found.recordings, results, strict=True), 1):
            if isinstance(result, ValueError):
                problems.append(str(result))
            else:
                whole.append((recording, result))
            advance(done)
    return whole, problems


def _entry(part: str, recording: Recording, audio: Verified, options: Options) -> Entry:
    """the name of the sequence is the one that RETURNN's tools give LibriSpeech"""
    ending = ".ogg" if options.ogg else ".flac"
    duration = round(audio.frames / options.sample_rate, 6)
    tag = f"{part}/{recording.name}/{recording.name}"
    return Entry(tag, recording.name + ending, recording.text, duration)


def _write(path: Path, entries: Sequence[Entry], whole: _Whole, *, ogg: bool) -> None:
    by_file = {entry.file: item for entry, item in zip(entries, whole, strict=True)}

    def read(entry: Entry) -> bytes:
        recording, found = by_file[entry.file]
        return _stored_bytes(recording.path, found, ogg=ogg)

    write_archive(path, entries, read)


def _stored_bytes(path: Path, found: Verified, *, ogg: bool) -> bytes:
    """:return: the bytes of a FLAC file as they are, other audio as FLAC, or all as Ogg/Vorbis"""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != found.sha256:
        raise ValueError(f"{path}: has changed while it was prepared; run the same command again")
    if path.suffix == ".flac" and not ogg:
        return content
    audio, rate = read_audio(path)
    return ogg_bytes(audio, rate) if ogg else flac_bytes(audio, rate)


@contextlib.contextmanager
def no_space_left(path: Path, needed: int) -> Iterator[None]:
    """
    :param needed: about as many bytes as will be written
    :raises OSError: there is less space than that, or it runs out, with what to do
    """
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(_no_space(path, needed, free))
    try:
        yield
    except OSError as exc:
        if exc.errno not in _NO_SPACE:
            raise
        raise OSError(_no_space(path, needed, shutil.disk_usage(path.parent).free)) from exc


def _no_space(path: Path, needed: int, free: int) -> str:
    return (
        f"no space left for {str(path)!r}: it needs about {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB"
        f" are free. Nothing of it was kept; make space and run the same command again"
    )


def report_problems(problems: Sequence[str], target: Path, *, skip_broken: bool) -> None:
    """
    List all problems in ``problems.txt``, or remove that file where there are none.

    :raises ValueError: with the first ones, unless `skip_broken`
    """
    log = target / PROBLEMS
    if not problems:
        log.unlink(missing_ok=True)
        return
    write_text(log, "".join(f"{problem}\n" for problem in problems))
    if skip_broken:
        return
    shown = "".join(f"\n  {problem}" for problem in problems[:SHOWN_PROBLEMS])
    raise ValueError(
        f"{len(problems)} problems, all listed in {str(log)!r}:{shown}\nNo archive is made of a part"
        f" with problems. Repair them, or leave these utterances out with --skip-broken"
    )
