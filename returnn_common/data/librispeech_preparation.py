"""Make the archives of ``Librispeech()`` from what https://www.openslr.org/12 offers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..files import whole_file
from .librispeech_files import PARTS, SAMPLE_RATE, find_parts, scan
from .paths import get_common_data_path
from .preparation import Options, no_space_left, prepare_part, report_problems, work_folder
from .unpacking import unpack

FOLDER = "librispeech"
LM_TEXT = "librispeech-lm-norm.txt.gz"  # https://www.openslr.org/11
_TAR_ENDINGS = (".tar.gz", ".tgz", ".tar")


def prepare_librispeech(
    sources: Sequence[str | os.PathLike],
    to: str | os.PathLike | None = None,
    *,
    ogg: bool = False,
    skip_broken: bool = False,
    jobs: int | None = None,
) -> list[str]:
    """
    Make an archive of each part in the sources. The FLAC files are stored as they are; the same
    sources give the same bytes. What was done already is not done again.

    :param sources: folders of LibriSpeech or of its parts, their tar files, and
        ``librispeech-lm-norm.txt.gz``
    :param to: folder for the archives, by default ``get_common_data_path("librispeech")``
    :param ogg: store Ogg/Vorbis: a quarter of the size, but lossy, and other bytes every time
    :param skip_broken: leave out the utterances with problems, and list them in ``problems.txt``
    :param jobs: threads, by default as many as there are processors
    :return: the paths of the archives
    :raises ValueError: something is missing or broken: all of it is listed, and its part is not made
    """
    target = Path(to if to is not None else get_common_data_path(FOLDER))
    jobs = jobs or os.cpu_count() or 1
    options = Options(SAMPLE_RATE, jobs=jobs, ogg=ogg, skip_broken=skip_broken)
    problems: list[str] = []
    with work_folder(target) as work:
        folders = _folders(sources, target, work)
        for name in sorted(folders, key=PARTS.index):
            problems += prepare_part(name, scan(folders[name]), target, options)
        report_problems(problems, target, skip_broken=skip_broken)
    return [str(target / f"{name}.zip") for name in folders]


def _folders(
    sources: Sequence[str | os.PathLike], target: Path, work: Path
) -> dict[str, list[Path]]:
    """:return: for each part the folders with its utterances; tar files are unpacked"""
    folders: dict[str, list[Path]] = {}
    for source in map(Path, sources):
        if source.name == LM_TEXT and source.is_file():
            _copy(source, target / LM_TEXT)
            continue
        if source.is_file() and not source.name.endswith(_TAR_ENDINGS):
            raise ValueError(
                f"{str(source)!r} is neither a folder nor a file named *.tar.gz nor {LM_TEXT!r}"
            )
        for name, folder in find_parts(
            unpack(source, work) if source.is_file() else source
        ).items():
            if folder not in folders.setdefault(name, []):
                folders[name].append(folder)
    return folders


def _copy(source: Path, target: Path) -> None:
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    with no_space_left(target, source.stat().st_size), whole_file(target) as temporary:
        shutil.copyfile(source, temporary)
