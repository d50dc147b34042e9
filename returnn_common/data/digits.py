"""
Spoken digits in the file layout of the Free Spoken Digit Dataset (FSDD), and strings of digits spliced from them.

The layout is ``{digit}_{speaker}_{index}.wav``, in the folder itself or in its sub-folder ``recordings``::

    recordings/7_jackson_32.wav

https://github.com/Jakobovski/free-spoken-digit-dataset (CC BY-SA 4.0)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy

from ..hints import valid_names
from .audio import normalise, read_audio
from .oggzip import Utterance

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LABELS = sorted(set(" ".join(WORDS)))  # the space and 15 letters
SAMPLE_RATE = 8000  # Hz

_FILE_NAME = re.compile(r"(?P<digit>[0-9])_(?P<speaker>[^_]+)_(?P<index>[0-9]+)\.wav")


@dataclass(frozen=True, order=True)
class Recording:
    """One spoken digit."""

    digit: int
    speaker: str
    index: int
    path: str


def list_recordings(folder: str | os.PathLike) -> list[Recording]:
    """
    :param folder: the folder of the recordings, or one with a sub-folder ``recordings``
    :return: sorted
    :raises ValueError: if there is no such folder, no recording in it, or a wav file with another name
    """
    folder = os.fspath(folder)
    if not os.path.isdir(folder):
        raise ValueError(
            f"no folder {folder!r}; expected one with recordings named DIGIT_SPEAKER_INDEX.wav"
        )
    if os.path.isdir(os.path.join(folder, "recordings")):
        folder = os.path.join(folder, "recordings")
    recordings = sorted(
        _parse(folder, name) for name in os.listdir(folder) if name.endswith(".wav")
    )
    if not recordings:
        raise ValueError(f"no wav file in {folder!r}, expected names such as 7_jackson_32.wav")
    return recordings


def _parse(folder: str, name: str) -> Recording:
    match = _FILE_NAME.fullmatch(name)
    if not match:
        raise ValueError(
            f"{name!r} in {folder!r} is not named DIGIT_SPEAKER_INDEX.wav, such as 7_jackson_32.wav"
        )
    return Recording(
        int(match["digit"]), match["speaker"], int(match["index"]), os.path.join(folder, name)
    )


def split_recordings(
    recordings: Iterable[Recording], *, hold_out: str | None = None
) -> dict[str, list[Recording]]:
    """
    The split of FSDD by index: test 0-4, dev 5-9, train from 10 on.

    :param recordings: all
    :param hold_out: a speaker who is in no other part than "test", where all his recordings are, and nobody else's
    :return: "train", "dev" and "test"
    :raises ValueError: if there is no such speaker, or a part would be empty
    """
    recordings = list(recordings)
    _check_speaker(hold_out, sorted({recording.speaker for recording in recordings}))
    parts: dict[str, list[Recording]] = {"train": [], "dev": [], "test": []}
    for recording in recordings:
        part = "test" if recording.index < 5 else "dev" if recording.index < 10 else "train"
        if recording.speaker == hold_out:
            parts["test"].append(recording)
        elif part != "test" or hold_out is None:
            parts[part].append(recording)
    for part, members in parts.items():
        if not members:
            raise ValueError(
                f"no recording for {part}; expected indices 0-4 for test, 5-9 for dev, others for train"
            )
    return parts


def _check_speaker(speaker: str | None, speakers: list[str]) -> None:
    if speaker is not None and speaker not in speakers:
        raise ValueError(f"there is no speaker {speaker!r}{valid_names(speaker, speakers)}")


def draw_strings(
    recordings: Sequence[Recording],
    num_strings: int,
    *,
    lengths: tuple[int, int],
    rng: numpy.random.Generator,
) -> list[list[Recording]]:
    """
    Draw strings of recordings. Each string is of one speaker, the speakers take turns, and a speaker's recordings are
    dealt out like a shuffled pack of cards, so that all occur about equally often.

    :param recordings: to draw from
    :param num_strings: how many
    :param lengths: the shortest and the longest string, in recordings; lengths between are equally likely
    :param rng: the source of randomness
    """
    speakers = sorted({recording.speaker for recording in recordings})
    cards = {speaker: [rec for rec in recordings if rec.speaker == speaker] for speaker in speakers}
    packs: dict[str, list[Recording]] = {speaker: [] for speaker in speakers}
    strings = []
    for i in range(num_strings):
        speaker = speakers[i % len(speakers)]
        pack, length = packs[speaker], int(rng.integers(lengths[0], lengths[1] + 1))
        while len(pack) < length:
            pack.extend(cards[speaker][j] for j in rng.permutation(len(cards[speaker])))
        strings.append(pack[:length])
        del pack[:length]
    return strings


def splice(
    audios: Sequence[numpy.ndarray],
    *,
    gap: tuple[float, float],
    sample_rate: int,
    rng: numpy.random.Generator,
) -> numpy.ndarray:
    """
    Join audio with silent gaps of random length between, scaled to a common level
    (speakers of FSDD differ by a factor of nine).

    :param audios: each ``[T_i]``
    :param gap: the shortest and the longest gap, in seconds
    :param sample_rate: in Hz
    :param rng: the source of randomness
    :return: float32 ``[T]``
    """
    pieces = [audios[0]]
    for audio in audios[1:]:
        pieces += [numpy.zeros(round(rng.uniform(*gap) * sample_rate), dtype="float32"), audio]
    return normalise(numpy.concatenate(pieces))


def spoken_strings(
    recordings: Sequence[Recording],
    num_strings: int,
    *,
    lengths: tuple[int, int],
    gap: tuple[float, float] = (0.02, 0.2),
    seed: int,
) -> list[Utterance]:
    """
    :param recordings: to splice; those of another rate than `SAMPLE_RATE` are resampled
    :param num_strings: how many utterances
    :param lengths: the shortest and the longest string, in recordings
    :param gap: the shortest and the longest gap between two recordings, in seconds
    :param seed: the same seed gives the same utterances
    :return: utterances of one speaker each, with the digits as words ("four two"), `SAMPLE_RATE`
    """
    rng = numpy.random.default_rng(seed)
    audios = {rec: read_audio(rec.path, sample_rate=SAMPLE_RATE)[0] for rec in recordings}
    utterances = []
    for i, string in enumerate(draw_strings(recordings, num_strings, lengths=lengths, rng=rng)):
        audio = splice([audios[rec] for rec in string], gap=gap, sample_rate=SAMPLE_RATE, rng=rng)
        text = " ".join(WORDS[rec.digit] for rec in string)
        utterances.append(Utterance(f"{string[0].speaker}-{i:05d}", audio, text))
    return utterances
