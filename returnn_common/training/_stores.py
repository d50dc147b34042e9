"""What ``nn.store`` keeps for each sequence: arrays by name and sequence tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ..hints import near_misses
from ..lines import calling_line
from ..nn._shapes import lengths_of
from ..nn._stage import STORED, Stage

SEQ_TAG = "seq_tag"


class Stores:
    """Arrays by name and sequence tag, without padding."""

    def __init__(self, packed: Mapping[str, Any] | None = None):
        """
        :param packed: what :meth:`packed` gave
        """
        self.values: dict[str, dict[str, numpy.ndarray]] = {
            name: _unpacked(**group) for name, group in (packed or {}).items()
        }

    def put(self, stage: Stage, batch: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """keep what the stage computed for the sequences of the batch"""
        for name in stage.stored:
            key = STORED + name
            values = self.values.setdefault(name, {})
            for i, tag in enumerate(_tags(stage, batch)):
                array = numpy.asarray(result[key][i])
                lengths = [result.get(f"{key}:size{axis}") for axis in range(1, array.ndim + 1)]
                ends = [slice(None if length is None else length[i]) for length in lengths]
                values[tag] = array[tuple(ends)].copy()

    def get(self, stage: Stage, batch: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
        """what the stage loads for the sequences of the batch, in the form of a batch"""
        found: dict[str, numpy.ndarray] = {}
        for name, tensor in stage.loaded.items():
            values = self.values.get(name, {})
            tags = _tags(stage, batch)
            for tag in tags:
                if tag not in values:
                    hint = (
                        near_misses(tag, values) if values else "; nothing is stored under it yet"
                    )
                    raise ValueError(
                        f"{stage.title}: {name!r} has nothing of the sequence {tag!r}{hint}"
                    )
            arrays = [values[tag] for tag in tags]
            key = STORED + name
            found[key] = _padded(arrays, tensor.dtype)
            for axis, key_of_lengths, _ in lengths_of(key, tensor):
                lengths = [array.shape[axis - 1] for array in arrays]
                found[key_of_lengths] = numpy.array(lengths, dtype="int32")
        return found

    def packed(self) -> dict[str, Any]:
        """all of it as few arrays, for a checkpoint"""
        return {name: _packed(values) for name, values in self.values.items() if values}


def _tags(stage: Stage, batch: Mapping[str, Any]) -> list[str]:
    if SEQ_TAG not in batch:
        raise ValueError(
            f"{calling_line()}the batch lacks {SEQ_TAG!r}, the names of its sequences, which "
            f"nn.store and nn.load in {stage.title} need{near_misses(SEQ_TAG, batch)}"
        )
    return [str(tag) for tag in batch[SEQ_TAG]]


def _padded(arrays: Sequence[numpy.ndarray], dtype: str) -> numpy.ndarray:
    shape = numpy.max([array.shape for array in arrays], axis=0, initial=0).astype(int)
    out = numpy.zeros([len(arrays), *shape], dtype=dtype)
    for i, array in enumerate(arrays):
        place: tuple[Any, ...] = (i, *map(slice, array.shape))
        out[place] = array
    return out


def _packed(values: Mapping[str, numpy.ndarray]) -> dict[str, Any]:
    arrays = list(values.values())
    return {
        "tags": list(values),
        "shapes": numpy.array([array.shape for array in arrays], dtype="int64"),
        "values": numpy.concatenate([array.reshape(-1) for array in arrays]),
    }


def _unpacked(
    tags: Sequence[str], shapes: numpy.ndarray, values: numpy.ndarray
) -> dict[str, numpy.ndarray]:
    sizes = shapes.prod(axis=1, dtype="int64")
    pieces = numpy.split(values, numpy.cumsum(sizes)[:-1])
    return {tag: piece.reshape(shape) for tag, piece, shape in zip(tags, pieces, shapes)}


__all__ = ["SEQ_TAG", "Stores"]
