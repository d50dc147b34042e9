"""
Runs of a TensorFlow session without what ``Session.run`` looks up and checks anew every time, about a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ..nn import _returnn


class Runs:
    """The runs of one session, each prepared once for what it fetches, does and is fed."""

    def __init__(self, session: Any):
        self.session = session
        self.prepared: dict[tuple[int, ...], _Run] = {}

    def __call__(
        self, key: object, fetches: Any, operations: Sequence[Any], feed: Mapping[Any, Any]
    ) -> Any:
        """
        The values of ``fetches``, a nested structure of tensors; ``operations`` are run, too.

        ``key`` stands for these two: the same object comes with the same fetches and operations.
        """
        whole = (id(key), len(operations), *map(id, feed))
        if whole not in self.prepared:
            self.prepared[whole] = _Run(self.session, key, fetches, operations, list(feed))
        return self.prepared[whole](feed)


class _Run:
    """One of them."""

    def __init__(
        self,
        session: Any,
        key: object,
        fetches: Any,
        operations: Sequence[Any],
        placeholders: list[Any],
    ):
        import tensorflow as tf

        self.key = key  # so that its id stays its own
        self.placeholders, self.fetches = placeholders, fetches
        self.types = [tensor.dtype.as_numpy_dtype for tensor in placeholders]
        self.flat = tf.nest.flatten(fetches)
        given = {tensor.ref() for tensor in placeholders}
        self.is_given = [tensor.ref() in given for tensor in self.flat]
        computed = [tensor for tensor in self.flat if tensor.ref() not in given]
        targets = [getattr(operation, "op", operation) for operation in operations]
        self.computes = bool(computed or targets)  # TensorFlow refuses to run nothing
        if self.computes:
            self.call = _returnn.callable_of_session(session, placeholders, computed, targets)

    def __call__(self, feed: Mapping[Any, Any]) -> Any:
        import tensorflow as tf

        values = [numpy.asarray(value, kind) for value, kind in zip(feed.values(), self.types)]
        computed = iter(self.call(*values) if self.computes else ())
        if not any(self.is_given):
            return tf.nest.pack_sequence_as(self.fetches, list(computed))
        fed = {tensor.ref(): value for tensor, value in zip(self.placeholders, values)}
        flat = [
            fed[tensor.ref()] if given else next(computed)
            for tensor, given in zip(self.flat, self.is_given)
        ]
        return tf.nest.pack_sequence_as(self.fetches, flat)


__all__ = ["Runs"]
