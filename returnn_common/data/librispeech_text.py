"""The text of LibriSpeech, for language models (https://www.openslr.org/11)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .archives import transcripts_path
from .dataset import Dataset
from .librispeech import PREPARE, prepared_parts
from .librispeech_files import DEV, TRAIN
from .librispeech_preparation import FOLDER, LM_TEXT
from .part import Part
from .paths import get_common_data_path
from .speech_dataset import capped_partition, checked_partition
from .vocab_base import Vocab
from .vocabularies import DEFAULT_BPE, as_vocab


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
        return Part({**texts, **post, **opts}, keys=self.keys, dataset=self)
