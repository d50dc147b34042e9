"""Speech in archives for RETURNN's ``OggZipDataset``, the base of our corpora."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

from .archives import num_utterances, whole_archive
from .dataset import Dataset
from .part import Part
from .paths import get_common_data_path
from .vocab_base import Vocab
from .vocabularies import as_vocab

# Sequences of training data on which the loss is computed like on dev data, as in the recipes of
# RWTH Aachen around RETURNN.
DEVTRAIN_SEQS = 3000


class SpeechDataset(Dataset):
    """
    Raw audio with text, in archives as ``returnn-common data prepare`` writes them, which RETURNN's
    ``OggZipDataset`` reads.

    For other needs, derive from a dataset and change what :meth:`audio_opts`, :meth:`train_opts` or
    :meth:`eval_opts` return; for another corpus, say where the archives are with the class
    attributes and :meth:`archives`.
    """

    folder: str  # below the common data folder
    sample_rate: int  # Hz
    prepare: str  # the command that makes the archives

    def __init__(self, *, vocab: Vocab | str, partition_epoch: int = 1):
        """
        :param vocab: of the targets, or the name of one of ours
        :param partition_epoch: an epoch is this part of the training data
        :raises ValueError: `partition_epoch` is not a number from 1 on
        """
        self.vocab = as_vocab(vocab)
        self.partition_epoch = checked_partition(partition_epoch)

    def archives(self, part: str) -> list[str]:
        """
        :param part: "train", "dev", or a name of :attr:`eval_names`
        :return: names of archives, without ".zip"
        """
        raise NotImplementedError

    @property
    def eval_names(self) -> list[str]:
        """the names in :attr:`eval`"""
        raise NotImplementedError

    def audio_opts(self) -> dict[str, Any]:
        """:return: RETURNN's options of the audio: raw, scaled to a peak of 1"""
        return {"features": "raw", "peak_normalization": True, "sample_rate": self.sample_rate}

    def train_opts(self) -> dict[str, Any]:
        """
        :return: options of ``OggZipDataset`` in training. Sorted up and down in bins of a thousand
            sequences: little padding, and yet another order in each epoch
        """
        return {"seq_ordering": "laplace:.1000"}

    def eval_opts(self) -> dict[str, Any]:
        """:return: options of ``OggZipDataset`` otherwise. Longest first: memory runs out soon or never"""
        return {"seq_ordering": "sorted_reverse"}

    @property
    def train(self) -> Part:
        paths = self._paths("train")
        partition = {"partition_epoch": self._partition(paths)}
        return self._part(paths, self.vocab.train_opts, {**partition, **self.train_opts()})

    @property
    def dev(self) -> Part:
        return self._part(self._paths("dev"), self.vocab.opts, self.eval_opts())

    @property
    def devtrain(self) -> Part:
        subset = {"fixed_random_subset": DEVTRAIN_SEQS}
        return self._part(self._paths("train"), self.vocab.opts, {**subset, **self.eval_opts()})

    @property
    def eval(self) -> dict[str, Part]:
        return {
            name: self._part(self._paths(name), self.vocab.opts, self.eval_opts())
            for name in self.eval_names
        }

    @property
    def keys(self) -> list[str]:
        return ["data", "classes"]

    @functools.cached_property
    def _extern_data(self) -> dict[str, Any]:
        from returnn.tensor import Dim, Tensor, batch_dim

        audio_dim = Dim(1, name="audio", kind=Dim.Types.Feature)
        label_dim = Dim(self.vocab.size, name="labels", kind=Dim.Types.Feature)
        time_dim, classes_dim = (
            Dim(None, name=name, kind=Dim.Types.Spatial) for name in ("time", "classes_time")
        )
        audio = [batch_dim, time_dim, audio_dim]
        labels = [batch_dim, classes_dim]
        return {
            "data": Tensor("data", audio, "float32", feature_dim=audio_dim),
            "classes": Tensor("classes", labels, "int32", sparse_dim=label_dim),
        }

    def _paths(self, part: str) -> list[str]:
        """:raises FileNotFoundError: an archive is not there, or not whole"""
        names = self.archives(part)
        paths = [get_common_data_path(f"{self.folder}/{name}.zip") for name in names]
        if not paths:
            raise FileNotFoundError(f"no archive for {part!r} in {self._place}; {self._how}")
        for path in paths:
            if not Path(path).is_file():
                raise FileNotFoundError(f"there is no archive {path!r}; {self._how}")
            whole_archive(path)
        return paths

    @property
    def _place(self) -> str:
        return repr(get_common_data_path(self.folder))

    @property
    def _how(self) -> str:
        return f"make it with:  {self.prepare} --to {get_common_data_path(self.folder)}"

    def _partition(self, paths: list[str]) -> int:
        return capped_partition(self.partition_epoch, sum(map(num_utterances, paths)))

    def _part(self, paths: list[str], targets: dict[str, Any], opts: dict[str, Any]) -> Part:
        post_process = self.vocab.post_process
        post = {"targets_post_process": post_process} if post_process else {}
        return Part(
            {
                "class": "OggZipDataset",
                "path": paths[0] if len(paths) == 1 else paths,
                "audio": self.audio_opts(),
                "targets": targets,
                **post,
                **opts,
            },
            keys=self.keys,
            dataset=self,
        )


def checked_partition(partition_epoch: int) -> int:
    """:raises ValueError: it is not a number from 1 on"""
    if not isinstance(partition_epoch, int) or partition_epoch < 1:
        raise ValueError(f"partition_epoch is {partition_epoch!r}, expected a number from 1 on")
    return partition_epoch


def capped_partition(partition_epoch: int, num_seqs: int) -> int:
    """:return: not more than there are sequences, with a warning: RETURNN would read empty epochs"""
    if partition_epoch <= num_seqs:
        return partition_epoch
    warnings.warn(
        f"partition_epoch={partition_epoch} is more than the {num_seqs} sequences of the training"
        f" data; an epoch is 1/{num_seqs} of them, one sequence",
        stacklevel=4,
    )
    return num_seqs
