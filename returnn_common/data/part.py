"""One part of a dataset: its options for RETURNN, and batches that are read through RETURNN."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from .hashing import stable_hash
from .reading import read_batches

if TYPE_CHECKING:
    from .dataset import Dataset


class Part:
    """
    One part of a dataset, such as its training data.

    :ivar keys: its data keys
    """

    def __init__(
        self, opts: Mapping[str, Any], *, keys: Sequence[str], dataset: Dataset | None = None
    ):
        """
        :param opts: of a RETURNN dataset
        :param keys: its data keys that a model takes
        :param dataset: whose part it is
        """
        self._opts = copy.deepcopy(dict(opts))
        self.keys = tuple(keys)
        self._dataset = dataset

    @property
    def opts(self) -> dict[str, Any]:
        """options of a RETURNN dataset, for ``train=``, ``dev=`` ... of a config; a new dict every time"""
        return copy.deepcopy(self._opts)

    @property
    def extern_data(self) -> dict[str, Any]:
        """templates of the data by key, those of the dataset; none for what :meth:`with_hdf` adds"""
        return self._dataset.extern_data if self._dataset else {}

    def batches(
        self,
        epoch: int = 1,
        *,
        batch_size: int,
        max_seqs: int | None = None,
        keys: Sequence[str] | None = None,
    ) -> Iterator[dict[str, numpy.ndarray]]:
        """
        Read one epoch through RETURNN.

        :param epoch: from 1 on; it selects the partition and seeds the order
        :param batch_size: at most this many frames with padding, of each key (a longer sequence is
            alone); for raw audio frames are samples
        :param max_seqs: at most this many sequences
        :param keys: data keys; ``"seq_tag"`` gives the names of the sequences. By default :attr:`keys`
        :return: batches: arrays `[B, T, ...]` by key, zero in the padding, and the lengths `[B]`
            under ``"KEY:size1"``
        """
        return read_batches(
            self.opts, epoch, batch_size=batch_size, max_seqs=max_seqs, keys=keys or self.keys
        )

    def in_processes(self, num_workers: int = 2, *, buffer_size: int = 100) -> Part:
        """
        :param num_workers: processes that read; one more decides on the order
        :param buffer_size: sequences that each process reads ahead
        :return: the same part, read by RETURNN's ``MultiProcDataset``. A script that reads batches
            of it needs ``if __name__ == "__main__":``, for each process imports the script
        """
        opts = {"class": "MultiProcDataset", "dataset": self.opts}
        return Part(
            {**opts, "num_workers": num_workers, "buffer_size": buffer_size},
            keys=self.keys,
            dataset=self._dataset,
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
        return Part(opts, keys=[*self.keys, *files], dataset=self._dataset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self._opts, self.keys) == (other._opts, other.keys)

    def __hash__(self) -> int:
        return stable_hash((self._opts, self.keys))
