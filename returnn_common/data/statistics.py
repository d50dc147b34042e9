"""What is in prepared archives: numbers, and a figure of how they are distributed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import whole_file
from .archives import read_entries, speaker_of
from .checking import find_archives
from .paths import get_common_data_path
from .vocab_base import Vocab
from .vocabularies import as_vocab

_BINS = 40


@dataclass(frozen=True)
class Statistics:
    """Of one archive."""

    name: str
    durations: list[float]  # seconds, of each utterance
    labels: list[int]  # number of each utterance
    words: int
    speakers: int

    def row(self) -> list[str]:
        """:return: under :data:`HEADER`"""
        hours = sum(self.durations) / 3600
        return [
            self.name,
            str(len(self.durations)),
            f"{hours:.2f}",
            str(self.speakers),
            str(self.words),
            _spread(self.durations, ".1f"),
            _spread(self.labels, ".0f"),
            f"{sum(self.labels) / sum(self.durations):.2f}",
        ]


HEADER = (
    "archive",
    "utterances",
    "hours",
    "speakers",
    "words",
    "seconds: min, mean, max",
    "labels: min, mean, max",
    "labels per second",
)


def statistics(folder: str | os.PathLike | None = None, *, vocab: Vocab | str) -> list[Statistics]:
    """
    :param folder: of archives, by default the common data folder
    :param vocab: for the labels
    :return: of each archive
    """
    vocab = as_vocab(vocab)
    archives = find_archives(folder if folder is not None else get_common_data_path())
    return [_of_archive(path, vocab) for path in archives]


def plot(found: list[Statistics], path: str | os.PathLike) -> None:
    """
    Draw histograms of durations and of label counts into a file.

    :raises ImportError: matplotlib is not installed, with the command that installs it
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ImportError(
            "the figure needs the package matplotlib: pip install matplotlib"
        ) from exc
    figure = Figure(figsize=(10, 4), layout="constrained")
    seconds, labels = figure.subplots(1, 2)
    _histogram(seconds, {item.name: item.durations for item in found}, "seconds of an utterance")
    _histogram(labels, {item.name: item.labels for item in found}, "labels of an utterance")
    labels.legend()
    with whole_file(path) as temporary:
        figure.savefig(
            temporary, format=Path(path).suffix[1:] or "png", metadata={"Software": None}
        )


def _of_archive(path: Path, vocab: Vocab) -> Statistics:
    entries = read_entries(path)
    return Statistics(
        path.stem,
        [entry.duration for entry in entries],
        [len(vocab.encode(entry.text)) for entry in entries],
        words=sum(len(entry.text.split()) for entry in entries),
        speakers=len({speaker_of(entry) for entry in entries}),
    )


def _histogram(axes: Any, values: dict[str, Any], label: str) -> None:
    axes.hist(list(values.values()), bins=_BINS, histtype="step", label=list(values))
    axes.set_xlabel(label)
    axes.set_ylabel("utterances")


def _spread(values: list[Any], form: str) -> str:
    mean = sum(values) / len(values)
    return ", ".join(format(value, form) for value in (min(values), mean, max(values)))
