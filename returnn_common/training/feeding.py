"""Batches from anywhere: ``tf.data``, TFDS, torch loaders, generators; and drawing them in the background."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy
from returnn.tensor import Dim, Tensor

from ..hints import valid_names
from ..nn._shapes import lengths_of

T = TypeVar("T")


def batches_from(iterable: Any, extern_data: Mapping[str, Tensor]) -> Batches:
    """
    Batches, as a session takes them, from an iterable of batches of another make.

    An item is a dict by the names of ``extern_data``, or a tuple in their order. Its values are arrays
    or tensors of any framework, with the batch first, or lists of sequences of different lengths, which
    are padded with zeros. Lengths are those of the sequences in a list, or ``NAME:size1`` in a dict;
    where there are none, all sequences are full.

    There is no config form of it: RETURNN's own loop needs a dataset of RETURNN's.

    :param iterable: a ``tf.data.Dataset`` (TFDS gives these), a torch ``DataLoader``, a list, a
        generator, ...; what can be iterated several times gives batches several times
    """
    if not hasattr(iterable, "__iter__"):
        raise TypeError(
            f"batches_from: {type(iterable).__name__} cannot be iterated, expected batches"
        )
    return Batches(iterable, extern_data)


class Batches:
    """What :func:`batches_from` gives: iterable, any number of times if its source is."""

    def __init__(self, source: Any, extern_data: Mapping[str, Tensor]):
        self.source, self.extern_data = source, dict(extern_data)

    def __iter__(self) -> Iterator[dict[str, numpy.ndarray]]:
        for item in _items(self.source):
            yield _batch(item, self.extern_data)

    @property
    def opts(self) -> NoReturn:
        raise ValueError(
            "batches_from has no config form: its source is a Python object; "
            "train with a session, or use a dataset of returnn_common.data"
        )


def _batch(item: Any, extern_data: Mapping[str, Tensor]) -> dict[str, numpy.ndarray]:
    named = item if isinstance(item, Mapping) else _by_order(item, extern_data)
    for name in named:
        if name.partition(":size")[0] not in extern_data:
            raise ValueError(f"batches_from: an item has {name!r}{valid_names(name, extern_data)}")
    batch: dict[str, numpy.ndarray] = {}
    lengths: dict[Dim, numpy.ndarray] = {}
    for name, value in named.items():
        if ":size" in name:
            batch[name] = _array(value).astype("int32")
            continue
        batch[name], sizes = _padded(value) if _is_ragged(value) else (_array(value), None)
        for axis, key, dim in lengths_of(name, extern_data[name]):
            if axis < batch[name].ndim:
                given = _array(named[key]) if key in named else sizes if axis == 1 else None
                if given is not None:
                    lengths[dim] = given.astype("int32")
    return {**batch, **_missing_lengths(batch, extern_data, lengths)}


def _missing_lengths(
    batch: Mapping[str, numpy.ndarray],
    extern_data: Mapping[str, Tensor],
    lengths: Mapping[Dim, numpy.ndarray],
) -> dict[str, numpy.ndarray]:
    """those that a dim has from elsewhere, or full ones"""
    missing = {}
    for name, array in batch.items():
        if ":size" in name:
            continue
        for axis, key, dim in lengths_of(name, extern_data[name]):
            if key not in batch and axis < array.ndim:
                full = numpy.full([array.shape[0]], array.shape[axis], dtype="int32")
                missing[key] = lengths.get(dim, full)
    return missing


def _by_order(item: Any, extern_data: Mapping[str, Tensor]) -> dict[str, Any]:
    if not isinstance(item, Sequence) or len(item) != len(extern_data):
        size = f" of {len(item)}" if isinstance(item, Sequence) else ""
        raise ValueError(
            f"batches_from: an item is a {type(item).__name__}{size}, expected a dict, or a tuple of "
            f"{', '.join(extern_data)}"
        )
    return dict(zip(extern_data, item))


def _is_ragged(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and numpy.ndim(_array(value[0])) > 0


def _padded(sequences: Sequence[Any]) -> tuple[numpy.ndarray, numpy.ndarray]:
    arrays = [_array(sequence) for sequence in sequences]
    lengths = numpy.array([len(array) for array in arrays], dtype="int32")
    out = numpy.zeros([len(arrays), lengths.max(), *arrays[0].shape[1:]], dtype=arrays[0].dtype)
    for row, array in zip(out, arrays):
        row[: len(array)] = array
    return out, lengths


def _array(value: Any) -> numpy.ndarray:
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
    return numpy.asarray(value)


def _items(source: Any) -> Iterator[Any]:
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        if isinstance(source, tf.data.Dataset):
            return _tensorflow_items(source)
    return iter(source)


def _tensorflow_items(dataset: Any) -> Iterator[Any]:
    """also where RETURNN has switched TensorFlow's eager mode off"""
    import tensorflow as tf

    if tf.executing_eagerly():
        yield from dataset.as_numpy_iterator()
        return
    graph = tf.compat.v1.get_default_graph()
    following = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    with tf.compat.v1.Session(graph=graph) as session:
        while True:
            try:
                item = session.run(following)
            except tf.errors.OutOfRangeError:
                return
            yield item


# --- in the background


_END = object()


def prefetch(source: Iterable[T], size: int = 2) -> Iterator[T]:
    """
    The same items, drawn in a thread of their own, at most ``size`` ahead, while the loop computes.

    An error of the source is raised where its item would have come. To save inside of an epoch,
    count outside: ``session.batches(prefetch(...))``.
    """
    if size < 1:
        raise ValueError(f"prefetch: size is {size}, expected at least 1")
    return _prefetched(source, size)


def _prefetched(source: Iterable[T], size: int) -> Iterator[T]:
    items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(size)
    stopped = threading.Event()
    thread = threading.Thread(target=_draw, args=(source, items, stopped), daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        while not items.empty():  # the thread may wait for a place
            items.get_nowait()
        thread.join(timeout=5)


def _draw(source: Iterable[Any], items: queue.Queue, stopped: threading.Event) -> None:
    def put(item: Any, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            try:
                return items.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    try:
        for item in source:
            put(item)
            if stopped.is_set():
                return
        put(_END)
    except BaseException as error:
        put(None, error)


__all__ = ["Batches", "batches_from", "prefetch"]
