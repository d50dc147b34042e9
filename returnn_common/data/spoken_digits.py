"""
Spoken digits: recordings in the layout of the Free Spoken Digit Dataset, one by one or spliced to
strings, or speech that eSpeak NG synthesises.

``returnn-common data prepare digits`` makes the archives that are read here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .archives import is_made_from, read_entries, remove_facts, write_facts
from .digits import LABELS, SAMPLE_RATE, list_recordings, split_recordings, spoken_strings
from .espeak import synthetic_strings
from .oggzip import Utterance, write_ogg_zip
from .paths import get_common_data_path
from .preparation import no_space_left, work_folder
from .speech_dataset import SpeechDataset
from .verification import sha256_of_files
from .vocab_base import Vocab
from .vocabularies import characters

PARTS = ("train", "dev", "test")
FOLDER = "digits"
PREPARE = "returnn-common data prepare digits"
_BYTES_PER_STRING = 50_000  # about 4 s of FLAC of 8 kHz


@dataclass(frozen=True)
class DigitStrings:
    """How many strings of how many digits are made of each part, and from whom."""

    num_strings: tuple[int, int, int] = (3000, 100, 200)  # train, dev, test
    lengths: tuple[int, int] = (3, 7)  # digits in a string of dev and test
    train_lengths: tuple[int, int] = (1, 7)
    hold_out: str | None = None  # a speaker who is only in test
    seed: int = 1


SINGLE_DIGITS = DigitStrings(lengths=(1, 1), train_lengths=(1, 1))


class SpokenDigits(SpeechDataset):
    """
    Spoken digits as prepared: "train", "dev" and "test", with the words in lower case ("four two")
    and raw audio of 8 kHz, scaled to a peak of 1.
    """

    sample_rate = SAMPLE_RATE
    prepare = PREPARE

    def __init__(
        self,
        folder: str = FOLDER,
        *,
        vocab: Vocab | str | None = None,
        partition_epoch: int = 1,
    ):
        """
        :param folder: below the common data folder, for several such corpora
        :param vocab: of the targets; by default the 16 characters of the words for digits, behind
            the three special labels
        :param partition_epoch: an epoch is this part of the training data
        """
        vocab = characters(LABELS) if vocab is None else vocab
        super().__init__(vocab=vocab, partition_epoch=partition_epoch)
        self.folder = folder

    def archives(self, part: str) -> list[str]:
        return [part]

    @property
    def eval_names(self) -> list[str]:
        return ["test"]

    def train_opts(self) -> dict[str, Any]:
        """:return: as for all speech, in bins of a hundred: the corpus is small"""
        return {"seq_ordering": "laplace:.100"}


def prepare_digits(
    source: str | os.PathLike | None = None,
    to: str | os.PathLike | None = None,
    *,
    strings: DigitStrings = DigitStrings(),
) -> list[str]:
    """
    Make the archives "train", "dev" and "test". The same arguments give the same bytes; what was
    made already is not made again.

    :param source: folder of recordings named ``DIGIT_SPEAKER_INDEX.wav``; None for synthetic speech
    :param to: folder for the archives, by default ``get_common_data_path("digits")``
    :param strings: what to make
    :return: the paths of the archives
    :raises ValueError: the recordings do not fit, or a speaker is held out of synthetic speech
    :raises ImportError: eSpeak NG is not installed, with the command that installs it
    """
    target = Path(to if to is not None else get_common_data_path(FOLDER))
    makers, origin = _makers(source, strings)
    with work_folder(target):
        return [
            _write(target / f"{part}.zip", make, {**origin, "part": part})
            for part, make in makers.items()
        ]


def _makers(
    source: str | os.PathLike | None, strings: DigitStrings
) -> tuple[dict[str, Callable[[], list[Utterance]]], dict[str, Any]]:
    """:return: what makes the utterances of each part, and what they depend on"""
    if source is None and strings.hold_out is not None:
        raise ValueError(
            f"hold_out={strings.hold_out!r} needs recordings, synthetic speech has no speakers"
        )
    origin: dict[str, Any] = {"strings": asdict(strings), "recordings": None}
    if source is None:
        return {part: partial(_make, synthetic_strings, strings, part) for part in PARTS}, origin
    recordings = list_recordings(source)
    parts = split_recordings(recordings, hold_out=strings.hold_out)
    origin["recordings"] = sha256_of_files([recording.path for recording in recordings])
    return {
        part: partial(_make, partial(spoken_strings, parts[part]), strings, part) for part in PARTS
    }, origin


def _make(
    make: Callable[..., list[Utterance]], strings: DigitStrings, part: str
) -> list[Utterance]:
    number = PARTS.index(part)
    lengths = strings.train_lengths if part == "train" else strings.lengths
    return make(
        strings.num_strings[number], lengths=lengths, seed=len(PARTS) * strings.seed + number
    )


def _write(path: Path, make: Callable[[], Sequence[Utterance]], origin: dict[str, Any]) -> str:
    origin = json.loads(json.dumps(origin))  # as it will be read
    if not is_made_from(path, origin):
        remove_facts(path)
        with no_space_left(path, origin["strings"]["num_strings"][0] * _BYTES_PER_STRING):
            write_ogg_zip(path, make(), sample_rate=SAMPLE_RATE)
            facts = {"sample_rate": SAMPLE_RATE, "source": origin, "left_out": []}
            write_facts(path, read_entries(path), facts)
    return str(path)
