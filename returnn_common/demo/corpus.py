"""
The corpora of the demo: strings of digits from recordings, or spoken by eSpeak NG.
"""

from __future__ import annotations

from pathlib import Path

from ..data.digits import SAMPLE_RATE, list_recordings, split_recordings, spoken_strings
from ..data.espeak import synthetic_strings
from ..data.oggzip import Utterance, write_ogg_zip

PARTS = ("train", "dev", "test")
LENGTHS = {"train": (1, 7), "dev": (3, 7), "test": (3, 7)}  # digits in a string


def write_corpus(
    folder: Path, *, data: str | None, hold_out: str | None, num_strings: dict[str, int], seed: int
) -> None:
    """
    Write ``train.zip``, ``dev.zip`` and ``test.zip``, those that are not there yet.

    :param folder: for the archives; made if needed
    :param data: folder of recordings in the FSDD layout; None for synthetic speech
    :param hold_out: a speaker who is in no part but "test"
    :param num_strings: of each part
    :param seed: the same seed gives the same archives
    :raises ValueError: if the recordings do not fit, or a speaker is held out of synthetic speech
    """
    folder.mkdir(parents=True, exist_ok=True)
    if data is None and hold_out is not None:
        raise ValueError(
            f"hold_out={hold_out!r} needs recordings (data), synthetic speech has no speakers"
        )
    recordings = split_recordings(list_recordings(data), hold_out=hold_out) if data else None
    for number, part in enumerate(PARTS):
        path = folder / f"{part}.zip"
        if path.exists():
            continue
        count, lengths, part_seed = num_strings[part], LENGTHS[part], len(PARTS) * seed + number
        utterances: list[Utterance]
        if recordings is None:
            utterances = synthetic_strings(count, lengths=lengths, seed=part_seed)
        else:
            utterances = spoken_strings(recordings[part], count, lengths=lengths, seed=part_seed)
        write_ogg_zip(path, utterances, sample_rate=SAMPLE_RATE)
