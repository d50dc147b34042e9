"""
The interface of all datasets, and datasets in archives for RETURNN's ``OggZipDataset``.

A dataset is a description: it opens no file before a part of it is asked for, it pickles, equal
descriptions are equal and have one hash in every process, and what it returns are copies.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from .archives import num_utterances, whole_archive
from .paths import get_common_data_path
from .reading import read_batches
from .vocabularies import Vocab, as_vocab

# Sequences of training data on which the loss is computed like on dev data, as in the recipes of
# RWTH Aachen around RETURNN.
DEVTRAIN_SEQS = 3000


class Part:
    """
    One part of a dataset, such as its training data.

    :ivar keys: its data keys
    """

    def __init__(self, opts: Mapping[str, Any], *, keys: Sequence[str]):
        """
        :param opts: of a RETURNN dataset
        :param keys: its data keys that a model takes
        """
        self._opts = copy.deepcopy(dict(opts))
        self.keys = tuple(keys)

    @property
    def opts(self) -> dict[str, Any]:
        """options of a RETURNN dataset, for ``train=``, ``dev=`` ... of a config; a new dict every time"""
        return copy.deepcopy(self._opts)

    def batches(
        self, epoch: int = 1, *, batch_size: int, keys: Sequence[str] | None = None
    ) -> Iterator[dict[str, numpy.ndarray]]:
        """
        Read one epoch through RETURNN.

        :param epoch: from 1 on; it selects the partition and seeds the order
        :param batch_size: at most this many frames with padding, of each key (a longer sequence is
            alone); for raw audio frames are samples
        :param keys: data keys; ``"seq_tag"`` gives the names of the sequences. By default :attr:`keys`
        :return: batches: arrays `[B, T, ...]` by key, zero in the padding, and the lengths `[B]`
            under ``"KEY:size1"``
        """
        return read_batches(self.opts, epoch, batch_size=batch_size, keys=keys or self.keys)

    def in_processes(self, num_workers: int = 2, *, buffer_size: int = 100) -> Part:
        """
        :param num_workers: processes that read; one more decides on the order
        :param buffer_size: sequences that each process reads ahead
        :return: the same part, read by RETURNN's ``MultiProcDataset``. A script that reads batches
            of it needs ``if __name__ == "__main__":``, for each process imports the script
        """
        opts = {"class": "MultiProcDataset", "dataset": self.opts}
        return Part(
            {**opts, "num_workers": num_workers, "buffer_size": buffer_size}, keys=self.keys
        )

    def with_hdf(self, **files: str) -> Part:
        """
        :param files: for each new data key an HDF file of RETURNN with the same sequence tags, e.g.
            ``alignment="alignments.hdf"``
        :return: the same sequences in the same order, with these keys too
        """
        datasets = {key: {"class": "HDFDataset", "files": [file]} for key, file in files.items()}
        data_map = {key: ("main", key) for key in self.keys} | {key: (key, "data") for key in files}
        opts = {
            "class": "MetaDataset",
            "datasets": {"main": self.opts, **datasets},
            "data_map": data_map,
            "seq_order_control_dataset": "main",
        }
        return Part(opts, keys=[*self.keys, *files])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self._opts, self.keys) == (other._opts, other.keys)

    def __hash__(self) -> int:
        return stable_hash((self._opts, self.keys))


class Dataset:
    """
    Base of all datasets: the parts ``train``, ``dev``, ``devtrain`` and those of ``eval``, each a
    :class:`Part`, the vocabulary ``vocab``, and ``extern_data``.
    """

    vocab: Vocab

    @property
    def train(self) -> Part:
        """the training data"""
        raise NotImplementedError

    @property
    def dev(self) -> Part:
        """what the learning rate and the best epoch are chosen with"""
        raise NotImplementedError

    @property
    def devtrain(self) -> Part:
        """a fixed piece of the training data, read like :attr:`dev`"""
        raise NotImplementedError

    @property
    def eval(self) -> dict[str, Part]:
        """by name, what is recognised and scored"""
        raise NotImplementedError

    @property
    def extern_data(self) -> dict[str, Any]:
        """templates of the data by key, with named dims that are the same every time"""
        return dict(self._extern_data)

    @functools.cached_property
    def _extern_data(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def keys(self) -> list[str]:
        """the data keys, without making dims"""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """:return: the description, without what was computed from it"""
        return {k: v for k, v in self.__dict__.items() if k != "_extern_data"}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return stable_hash((type(self).__name__, self.__getstate__()))


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


def stable_hash(value: Any) -> int:
    """:return: a hash of plain values and our own objects, the same in every process"""
    return int(hashlib.sha256(_canonical(value).encode()).hexdigest()[:15], 16)


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(f"{_canonical(k)}: {_canonical(v)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_canonical, value))})"
    if isinstance(value, Vocab):
        return f"Vocab({value.content_hash})"
    return repr(value)
