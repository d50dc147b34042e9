"""Numpy batches of a RETURNN dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy

from ..hints import valid_names

SEQ_TAG = "seq_tag"

_Seq = dict[str, numpy.ndarray]


def read_batches(
    opts: Mapping[str, Any],
    epoch: int,
    *,
    batch_size: int,
    max_seqs: int | None = None,
    keys: Sequence[str],
) -> Iterator[_Seq]:
    """
    One epoch of a RETURNN dataset; see :meth:`Part.batches`.

    :raises ValueError: the dataset has no such key, or `batch_size`, `max_seqs` or `epoch` is below 1
    """
    if epoch < 1:
        raise ValueError(f"epoch is {epoch!r}, expected a number from 1 on")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}, expected a number of frames from 1 on")
    if max_seqs is not None and max_seqs < 1:
        raise ValueError(f"max_seqs is {max_seqs!r}, expected a number of sequences from 1 on")
    dataset = _open(opts, epoch, keys)
    return _batches(dataset, batch_size=batch_size, max_seqs=max_seqs, keys=keys)


def _open(opts: Mapping[str, Any], epoch: int, keys: Sequence[str]) -> Any:
    from returnn.datasets.basic import init_dataset

    dataset = init_dataset(dict(opts))
    dataset.init_seq_order(epoch=epoch)
    valid = [*dataset.get_data_keys(), SEQ_TAG]
    for key in keys:
        if key not in valid:
            raise ValueError(f"the dataset has no key {key!r}{valid_names(key, valid)}")
    return dataset


def _batches(
    dataset: Any, *, batch_size: int, max_seqs: int | None, keys: Sequence[str]
) -> Iterator[_Seq]:
    try:
        seqs: list[_Seq] = []
        for seq in _seqs(dataset, keys):
            if seqs and (_frames([*seqs, seq]) > batch_size or len(seqs) == max_seqs):
                yield _stack(seqs)
                seqs = []
            seqs.append(seq)
        if seqs:
            yield _stack(seqs)
    finally:
        dataset.finish_epoch(free_resources=True)


def _seqs(dataset: Any, keys: Sequence[str]) -> Iterator[_Seq]:
    index = 0
    while dataset.is_less_than_num_seqs(index):
        dataset.load_seqs(index, index + 1)
        yield {
            key: numpy.array(dataset.get_tag(index))
            if key == SEQ_TAG
            else dataset.get_data(index, key)
            for key in keys
        }
        index += 1


def _frames(seqs: Sequence[_Seq]) -> int:
    """:return: frames of the batch of these sequences with padding, of the key with most"""
    lengths = [max((len(value) for value in seq.values() if value.ndim), default=1) for seq in seqs]
    return max(lengths) * len(seqs)


def _stack(seqs: Sequence[_Seq]) -> _Seq:
    batch: _Seq = {}
    for key, first in seqs[0].items():
        values = [seq[key] for seq in seqs]
        if not first.ndim:
            batch[key] = numpy.array([value.item() for value in values])
            continue
        lengths = numpy.array([len(value) for value in values], dtype="int32")
        batch[key] = numpy.zeros((len(seqs), lengths.max(), *first.shape[1:]), dtype=first.dtype)
        for row, value in zip(batch[key], values, strict=True):
            row[: len(value)] = value
        batch[f"{key}:size1"] = lengths
    return batch
