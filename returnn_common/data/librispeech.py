"""
LibriSpeech (https://www.openslr.org/12, https://www.openslr.org/11), read speech in English.

``returnn-common data prepare librispeech --from ...`` makes the archives that are read here.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..hints import valid_names
from .librispeech_files import DEV, PARTS, SAMPLE_RATE, TRAIN
from .librispeech_preparation import FOLDER
from .part import Part
from .paths import get_common_data_path
from .speech_dataset import SpeechDataset
from .vocab_base import Vocab
from .vocabularies import DEFAULT_BPE

PREPARE = "returnn-common data prepare librispeech --from DIR_OR_TAR"
# The sequence tags that RETURNN's documentation of LibriSpeechCorpus gives for its other readers.
SEQ_TAG_FORMAT = "%(subdir)s/%(speaker)i-%(chapter)i-%(seq)04i/%(speaker)i-%(chapter)i-%(seq)04i"


class Librispeech(SpeechDataset):
    """
    LibriSpeech as prepared: ``train`` are all ``train-*`` together, ``dev`` both ``dev-*``, ``eval``
    each ``dev-*`` and ``test-*`` by its name.

    The text is that of the corpus, in upper case; the audio is raw, 16 kHz, scaled to a peak of 1.
    """

    folder = FOLDER
    sample_rate = SAMPLE_RATE
    prepare = PREPARE

    def __init__(
        self,
        parts: Sequence[str] | None = None,
        *,
        vocab: Vocab | str = DEFAULT_BPE,
        partition_epoch: int = 20,
    ):
        """
        :param parts: names such as ``"train-clean-100"``; by default all those that are prepared,
            and a warning lists the others
        :param vocab: of the targets, or the name of one of ours
        :param partition_epoch: an epoch is this part of the training data. 20 is the value of the
            RETURNN recipes for the whole corpus; never more than there are sequences
        :raises ValueError: there is no part of this name
        """
        super().__init__(vocab=vocab, partition_epoch=partition_epoch)
        for part in parts or ():
            if part not in PARTS:
                raise ValueError(f"LibriSpeech has no part {part!r}{valid_names(part, PARTS)}")
        self.parts = None if parts is None else tuple(parts)

    def archives(self, part: str) -> list[str]:
        if part in ("train", "dev"):
            return [name for name in self._parts if name in (TRAIN if part == "train" else DEV)]
        return [part]

    @property
    def eval_names(self) -> list[str]:
        return [name for name in self._parts if name not in TRAIN]

    @functools.cached_property
    def _parts(self) -> tuple[str, ...]:
        if self.parts is not None:
            return self.parts
        there, missing = prepared_parts()
        if not there:
            raise FileNotFoundError(f"no part of LibriSpeech in {self._place}; {self._how}")
        if missing:
            warnings.warn(
                f"Librispeech: not prepared in {self._place}: {', '.join(missing)}", stacklevel=4
            )
        return there

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_parts"}


class LibrispeechFolder(Librispeech):
    """
    The same from the folder of the corpus itself, through RETURNN's ``LibriSpeechCorpus``: nothing
    is prepared, and every file of audio is opened on its own. RETURNN needs ``train-clean-100`` in
    it, whatever is read.
    """

    def __init__(self, path: str | os.PathLike, *, vocab: Vocab | str = DEFAULT_BPE):
        """
        :param path: the folder with ``train-clean-100`` and the others
        :param vocab: of the targets, or the name of one of ours
        """
        there = [part for part in PARTS if (Path(path) / part).is_dir()]
        super().__init__(there, vocab=vocab, partition_epoch=1)
        self.path = os.fspath(path)

    def _paths(self, part: str) -> list[str]:
        names = self.archives(part)
        if not names:
            raise FileNotFoundError(f"no folder for {part!r} in {self.path!r}")
        return names

    def _partition(self, paths: list[str]) -> int:
        return self.partition_epoch

    def _part(self, paths: list[str], targets: dict[str, Any], opts: dict[str, Any]) -> Part:
        post_process = self.vocab.post_process
        post = {"orth_post_process": post_process} if post_process else {}
        # RETURNN takes a prefix of the names.
        prefix = paths[0] if len(paths) == 1 else paths[0].split("-")[0]
        return Part(
            {
                "class": "LibriSpeechCorpus",
                "path": self.path,
                "prefix": prefix,
                "audio": self.audio_opts(),
                "targets": targets,
                "seq_tag_format": SEQ_TAG_FORMAT,
                **post,
                **opts,
            },
            keys=self.keys,
            dataset=self,
        )


def prepared_parts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """:return: names of the parts of LibriSpeech that are prepared, and of the others"""
    there = tuple(
        name for name in PARTS if Path(get_common_data_path(f"{FOLDER}/{name}.zip")).is_file()
    )
    return there, tuple(name for name in PARTS if name not in there)
