"""Batches as dicts of numpy arrays, checked against the templates of the extern data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy
from returnn.tensor import Dim, Tensor

from ..hints import near_misses
from ..lines import calling_line
from ..nn._shapes import lengths_of


class Batch(NamedTuple):
    """Arrays by name in the types of the templates, padded to the longest sequence, and the lengths by dim."""

    arrays: dict[str, numpy.ndarray]
    lengths: dict[Dim, numpy.ndarray]
    num_seqs: int
    names: tuple[str, ...]  # of all that the user gave


def read_batch(
    batch: Mapping[str, Any], templates: Mapping[str, Tensor], needed: Iterable[str], step: str
) -> Batch:
    """
    What the step takes from a batch: ``NAME`` is the padded array, ``NAME:size1`` the lengths ``[B]`` over its axis 1.

    ``needed`` must be there; of the other templates what is there. Lengths of a dim that two
    arrays share need to be given once. Raises ValueError, with the user's line, for what is
    missing or of another shape.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"{calling_line()}{step} is called with a {type(batch).__name__}, expected a dict of arrays"
        )
    for name in needed:
        if name not in batch:
            raise lacks(name, batch, step)
    names = [name for name in templates if name in batch]
    arrays = {name: _array(name, batch[name], templates[name]) for name in names}
    lengths = _all_lengths(batch, {name: templates[name] for name in names}, arrays)
    for name in names:
        arrays[name] = _trimmed(arrays[name], templates[name], lengths)
    return Batch(arrays, lengths, _num_seqs(arrays, templates), tuple(batch))


def lacks(name: str, batch: Iterable[str], step: str) -> ValueError:
    """the error where the batch lacks what a step needs"""
    names = list(batch)
    return ValueError(
        f"{calling_line()}the batch lacks {name!r}, which {step} needs; "
        f"it has {', '.join(map(repr, names)) or 'nothing'}{near_misses(name, names)}"
    )


def _array(name: str, value: Any, template: Tensor) -> numpy.ndarray:
    array = numpy.asarray(value)
    if array.ndim != len(template.dims) or any(
        dim.is_static() and dim.dimension != size for dim, size in zip(template.dims, array.shape)
    ):
        raise ValueError(
            f"{calling_line()}{name!r} of the batch has the shape {list(array.shape)}, expected "
            f"[{', '.join(_size_text(dim) for dim in template.dims)}]"
        )
    if array.dtype != template.dtype and not numpy.can_cast(
        array.dtype, template.dtype, "same_kind"
    ):
        raise ValueError(
            f"{calling_line()}{name!r} of the batch is of type {array.dtype}, expected {template.dtype}"
        )
    return numpy.asarray(array, dtype=template.dtype, order="C")


def _size_text(dim: Dim) -> str:
    if dim.is_batch_dim():
        return "batch"
    return str(dim.dimension) if dim.is_static() else str(dim.name)


def _all_lengths(
    batch: Mapping[str, Any], templates: Mapping[str, Tensor], arrays: Mapping[str, numpy.ndarray]
) -> dict[Dim, numpy.ndarray]:
    lengths: dict[Dim, numpy.ndarray] = {}
    wanted: dict[Dim, str] = {}
    for name, template in templates.items():
        for axis, key, dim in lengths_of(name, template):
            wanted.setdefault(dim, key)
            if key in batch:
                _add_lengths(lengths, dim, key, batch[key], arrays[name].shape[axis])
    for dim, key in wanted.items():
        if dim not in lengths:
            raise ValueError(
                f"{calling_line()}the batch lacks {key!r}, the lengths [batch] over {dim.name}"
                f"{near_misses(key, batch)}"
            )
    return lengths


def _add_lengths(
    lengths: dict[Dim, numpy.ndarray], dim: Dim, key: str, value: Any, size: int
) -> None:
    array = numpy.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min(initial=0) < 0:
        raise ValueError(
            f"{calling_line()}{key!r} of the batch is of shape {list(array.shape)} and type {array.dtype}, "
            f"expected lengths: whole numbers [batch]"
        )
    if array.max(initial=0) > size:
        raise ValueError(
            f"{calling_line()}{key!r} of the batch says {array.max()}, but the array has only {size}"
        )
    if dim in lengths and not numpy.array_equal(lengths[dim], array):
        raise ValueError(
            f"{calling_line()}{key!r} of the batch is {array.tolist()}, but another array with the dim "
            f"{dim.name} has {lengths[dim].tolist()}"
        )
    lengths[dim] = array.astype("int32")


def _trimmed(
    array: numpy.ndarray, template: Tensor, lengths: Mapping[Dim, numpy.ndarray]
) -> numpy.ndarray:
    """without padding behind the longest sequence, which RETURNN does not expect"""
    ends = [
        lengths[dim].max(initial=0) if dim in lengths else size
        for dim, size in zip(template.dims, array.shape)
    ]
    return array if list(array.shape) == ends else array[tuple(slice(end) for end in ends)]


def _num_seqs(arrays: Mapping[str, numpy.ndarray], templates: Mapping[str, Tensor]) -> int:
    sizes = {
        name: array.shape[axis]
        for name, array in arrays.items()
        for axis, dim in enumerate(templates[name].dims)
        if dim.is_batch_dim()
    }
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"{calling_line()}the arrays of the batch differ in their number of sequences: {sizes}"
        )
    return next(iter(sizes.values()), 1)


__all__ = ["Batch", "lacks", "read_batch"]
