"""Random numbers on the layers backend from (seed, number of the run, place), so that a resumed run goes on exactly."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ..nn import _returnn


@contextlib.contextmanager
def random_numbers_of(draw: Any) -> Iterator[None]:
    """
    Dropout in a net that is constructed inside takes its random numbers from the tensor ``draw``: (seed, number).

    Each place in the graph has random numbers of its own. Inside a loop over frames, where one place draws many times,
    TensorFlow's own generator stays, and a resumed run draws other numbers there.
    """
    with _returnn.replaced({_returnn.random_uniform_of_layers(): _Stateless(draw)}):
        yield


class _Stateless:
    """``tf.compat.v1.random_uniform`` without a state."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.seen: dict[str, int] = {}

    def __call__(
        self,
        original: Callable,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Any:
        import tensorflow as tf

        dtype = dtype or tf.float32
        if _in_loop(tf.compat.v1.get_default_graph()):
            return original(shape, minval, maxval, dtype=dtype, seed=seed, name=name)
        maxval = 1 if maxval is None and dtype.is_floating else maxval
        return tf.random.stateless_uniform(
            shape, self._seed(), minval=minval, maxval=maxval, dtype=dtype, name=name
        )

    def _seed(self) -> Any:
        import tensorflow as tf

        scope = tf.compat.v1.get_default_graph().get_name_scope()
        number = self.seen[scope] = self.seen.get(scope, 0) + 1
        place = zlib.crc32(f"{scope}:{number}".encode()) & 0x7FFFFFFF
        return tf.bitwise.bitwise_xor(self.draw, tf.constant([place, 0], tf.int32))


def _in_loop(graph: Any) -> bool:
    context = _returnn.control_flow_context(graph)
    while context is not None:
        if context.IsWhileContext():
            return True
        context = context.outer_context
    return False


__all__ = ["random_numbers_of"]
