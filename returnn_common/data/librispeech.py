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
from .archives import transcripts_path
from .dataset import Dataset, Part, SpeechDataset, capped_partition, checked_partition
from .librispeech_files import DEV, PARTS, SAMPLE_RATE, TRAIN
from .librispeech_preparation import FOLDER, LM_TEXT
from .paths import get_common_data_path
from .vocabularies import DEFAULT_BPE, Vocab, as_vocab

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
        )


class LibrispeechText(Dataset):
    """
    The text of LibriSpeech, for language models: the transcripts of the training data and, where it
    was prepared, the text of the books, ``librispeech-lm-norm.txt.gz``.

    The one data key is ``data``: the labels and the end of the sentence. What a model takes as input
    is that, shifted by one: ``nn.shift_right(data, axis=..., pad_value=vocab.bos_index)``.
    """

    def __init__(self, *, vocab: Vocab | str = DEFAULT_BPE, partition_epoch: int = 1):
        """
        :param vocab: of the labels, or the name of one of ours
        :param partition_epoch: an epoch is this part of the training data
        """
        self.vocab = as_vocab(vocab)
        self.partition_epoch = checked_partition(partition_epoch)

    @property
    def train(self) -> Part:
        files = self._transcripts(TRAIN)
        partition_epoch, text = self.partition_epoch, get_common_data_path(f"{FOLDER}/{LM_TEXT}")
        if Path(text).is_file():
            files.append(text)  # of 40 million lines
        else:
            num_lines = sum(Path(file).read_text(encoding="utf-8").count("\n") for file in files)
            partition_epoch = capped_partition(partition_epoch, num_lines)
        order = {"seq_ordering": "laplace:.1000", "partition_epoch": partition_epoch}
        return self._part(files, self._with_end(self.vocab.train_opts), order)

    @property
    def dev(self) -> Part:
        return self._eval_part(DEV)

    @property
    def devtrain(self) -> Part:
        return self._eval_part(TRAIN)

    @property
    def eval(self) -> dict[str, Part]:
        return {name: self._eval_part([name]) for name in prepared_parts()[0] if name not in TRAIN}

    @property
    def keys(self) -> list[str]:
        return ["data"]

    @functools.cached_property
    def _extern_data(self) -> dict[str, Any]:
        from returnn.tensor import Dim, Tensor, batch_dim

        label_dim = Dim(self.vocab.size, name="labels", kind=Dim.Types.Feature)
        time_dim = Dim(None, name="time", kind=Dim.Types.Spatial)
        return {"data": Tensor("data", [batch_dim, time_dim], "int32", sparse_dim=label_dim)}

    def _eval_part(self, names: Sequence[str]) -> Part:
        files = self._transcripts(names)
        return self._part(
            files, self._with_end(self.vocab.opts), {"seq_ordering": "sorted_reverse"}
        )

    def _transcripts(self, names: Sequence[str]) -> list[str]:
        there = [name for name in names if name in prepared_parts()[0]]
        if not there:
            place = get_common_data_path(FOLDER)
            raise FileNotFoundError(
                f"no transcripts of {' or '.join(names)} in {place!r}; make them with:  {PREPARE} --to {place}"
            )
        return [transcripts_path(get_common_data_path(f"{FOLDER}/{name}.zip")) for name in there]

    def _with_end(self, opts: dict[str, Any]) -> dict[str, Any]:
        """:raises ValueError: the vocabulary has no end of a sentence"""
        if self.vocab.eos_index is None:
            raise ValueError("a language model needs a vocabulary with an end of the sentence")
        if opts["class"] == "SentencePieces":
            return {**opts, "add_eos": True}
        return {**opts, "seq_postfix": [self.vocab.eos_index]}

    def _part(self, files: list[str], labels: dict[str, Any], opts: dict[str, Any]) -> Part:
        post_process = self.vocab.post_process
        post = {"orth_post_process": post_process} if post_process else {}
        texts = {"class": "LmDataset", "corpus_file": files, "orth_vocab": labels, "dtype": "int32"}
        return Part({**texts, **post, **opts}, keys=self.keys)


def prepared_parts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """:return: names of the parts of LibriSpeech that are prepared, and of the others"""
    there = tuple(
        name for name in PARTS if Path(get_common_data_path(f"{FOLDER}/{name}.zip")).is_file()
    )
    return there, tuple(name for name in PARTS if name not in there)
