"""
The 60 recordings of https://www.openslr.org/1 (public domain, 8 kHz, six minutes): one man says
"yes" or "no" eight times, in Hebrew. The names of the files are the transcripts::

    0_0_0_0_1_1_1_1.wav     0: "no", 1: "yes"

The first half is training data, as in Kaldi's recipe ``yesno``; the last ten are test data.
"""

from __future__ import annotations

import os
from pathlib import Path

from returnn_common.data import SpeechDataset, Vocab, get_common_data_path
from returnn_common.data.audio import read_audio
from returnn_common.data.oggzip import Utterance, write_ogg_zip

from .words import make_words

FOLDER, SAMPLE_RATE = "yes_no", 8_000
WORDS = {"0": "no", "1": "yes"}
NUM_TRAIN, NUM_DEV = 30, 20  # of the sorted recordings; the rest is "test"


class YesNo(SpeechDataset):
    """
    Yes and no in Hebrew, as :func:`prepare` has written them: raw audio of 8 kHz and words.

    :param vocab: of the targets; by default the two words
    :param partition_epoch: an epoch is this part of the training data
    """

    folder = FOLDER
    sample_rate = SAMPLE_RATE
    prepare = "python -m speech_extras.yes_no RECORDINGS"

    def __init__(self, *, vocab: Vocab | str | None = None, partition_epoch: int = 1):
        vocab = make_words() if vocab is None else vocab
        super().__init__(vocab=vocab, partition_epoch=partition_epoch)

    def archives(self, part: str) -> list[str]:
        return [part]

    @property
    def eval_names(self) -> list[str]:
        return ["test"]


def prepare(recordings: str | os.PathLike, to: str | os.PathLike | None = None) -> list[str]:
    """
    Write the archives "train", "dev" and "test".

    :param recordings: folder of the wav files
    :param to: folder for the archives; by default where :class:`YesNo` looks for them
    :return: their paths
    :raises ValueError: there are too few recordings for three parts
    """
    files = sorted(Path(recordings).glob("*.wav"))
    if len(files) <= NUM_TRAIN + NUM_DEV:
        raise ValueError(f"{recordings} has {len(files)} wav files, expected the 60 of OpenSLR 1")
    parts = {
        "train": files[:NUM_TRAIN],
        "dev": files[NUM_TRAIN : NUM_TRAIN + NUM_DEV],
        "test": files[NUM_TRAIN + NUM_DEV :],
    }
    folder = Path(get_common_data_path(FOLDER) if to is None else to)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_ogg_zip(folder / f"{part}.zip", map(_utterance, part_files), sample_rate=SAMPLE_RATE)
        for part, part_files in parts.items()
    ]


def _utterance(file: Path) -> Utterance:
    audio, _ = read_audio(file, sample_rate=SAMPLE_RATE)
    return Utterance(file.stem, audio, " ".join(WORDS[digit] for digit in file.stem.split("_")))


if __name__ == "__main__":
    import sys

    print("\n".join(prepare(*sys.argv[1:])))
