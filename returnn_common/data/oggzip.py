"""
Write utterances that are in memory into an archive for RETURNN's ``OggZipDataset``; :mod:`archives`
describes its format.

The audio is FLAC: lossless (16 bit) and the same bytes every time, which Ogg/Vorbis is not.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy

from .archives import Entry, read_entries, write_archive
from .audio import import_soundfile


class Utterance(NamedTuple):
    """Audio with its text."""

    name: str  # the sequence tag, without slashes
    audio: numpy.ndarray  # [T], in [-1, 1]
    text: str


def write_ogg_zip(
    path: str | os.PathLike, utterances: Iterable[Utterance], *, sample_rate: int
) -> str:
    """
    Write an archive. The same utterances give the same bytes: sorted by name, with fixed dates and attributes.
    The file appears whole or not at all (it is written beside its place and renamed).

    :param path: the archive, ending in ".zip"; an existing one is replaced
    :param utterances: in any order
    :param sample_rate: in Hz
    :return: the path
    :raises ValueError: if the path has another ending, there is no utterance, or a name is given twice or has a slash
    """
    path = os.fspath(path)
    name, ext = os.path.splitext(os.path.basename(path))
    if ext != ".zip":
        raise ValueError(
            f"the archive is to be {path!r}, expected a name that ends in .zip, such as {name + '.zip'!r}"
        )
    utterances = sorted(utterances, key=lambda utterance: utterance.name)
    _check_names(utterances)
    audio = {utterance.name: utterance.audio for utterance in utterances}
    entries = [
        Entry(u.name, f"{u.name}.flac", u.text, round(len(u.audio) / sample_rate, 6))
        for u in utterances
    ]
    write_archive(path, entries, lambda entry: flac_bytes(audio[entry.name], sample_rate))
    return path


def read_texts(path: str | os.PathLike) -> dict[str, str]:
    """
    :param path: an archive
    :return: the text of each utterance, by name, sorted
    """
    return {entry.name: entry.text for entry in read_entries(path)}


def ogg_zip_opts(
    path: str, *, labels: list[str], seq_ordering: str = "sorted_reverse", **opts: Any
) -> dict[str, Any]:
    """
    :param path: the archive
    :param labels: the single characters that occur in the texts, in the order of their indices
    :param seq_ordering: how an epoch is ordered, see RETURNN's ``Dataset.get_seq_order_for_epoch``
    :param opts: further options of ``OggZipDataset``, such as ``partition_epoch``
    :return: options of a RETURNN dataset with the keys "data" (raw audio ``[T, 1]``, as it is in the archive)
        and "classes" (characters ``[S]``)
    """
    return {
        "class": "OggZipDataset",
        "path": path,
        "audio": {"features": "raw", "peak_normalization": False},
        "targets": {
            "class": "CharacterTargets",
            "vocab_file": None,
            "labels": labels,
            "unknown_label": None,
        },
        "seq_ordering": seq_ordering,
        **opts,
    }


def _check_names(utterances: list[Utterance]) -> None:
    if not utterances:
        raise ValueError("an archive needs at least one utterance, got none")
    for utterance, other in itertools.pairwise(utterances):
        if utterance.name == other.name:
            raise ValueError(
                f"two utterances are named {utterance.name!r}, expected different names"
            )
    for utterance in utterances:
        if not utterance.name or "/" in utterance.name or "\\" in utterance.name:
            raise ValueError(
                f"an utterance is named {utterance.name!r}, expected a name without slashes"
            )


def flac_bytes(audio: numpy.ndarray, sample_rate: int) -> bytes:
    """:return: the content of a FLAC file; samples are rounded to 16 bit here, for libsndfile cuts them off"""
    samples = numpy.clip(numpy.round(audio * 2**15), -(2**15), 2**15 - 1).astype("int16")
    file = io.BytesIO()
    import_soundfile().write(file, samples, sample_rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def ogg_bytes(audio: numpy.ndarray, sample_rate: int) -> bytes:
    """:return: the content of an Ogg/Vorbis file"""
    file = io.BytesIO()
    import_soundfile().write(file, audio, sample_rate, format="OGG", subtype="VORBIS")
    return file.getvalue()
