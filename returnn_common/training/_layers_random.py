"""
Random numbers on layers from (seed, number of the run, place, frame), so that a resumed run goes on exactly.

They come from TensorFlow's stateless operations, whose generator is Philox
(https://www.thesalmons.org/john/random123/papers/random123sc11.pdf).
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ..nn import _returnn

_ALGORITHM = "philox"  # on every device


@contextlib.contextmanager
def random_numbers_of(draw: Any) -> Iterator[None]:
    """
    Dropout and random layers in a net that is constructed inside take their numbers from the tensor ``draw``:
    (seed, number).

    Each place in the graph has random numbers of its own, and in a loop each frame, unless the layer
    shares them over frames. What a function of an eval layer draws from TensorFlow itself stays as it is.
    """
    numbers = _Stateless(draw)
    generator = _returnn.generator_of_layers()
    with _returnn.replaced(
        {
            _returnn.random_uniform_of_layers(): numbers.random_uniform,
            _returnn.while_loop_of_layers(): numbers.while_loop,
            **{
                (generator, kind): functools.partial(numbers.of_generator, kind)
                for kind in ("uniform", "normal", "truncated_normal")
            },
        }
    ):
        yield


class _Stateless:
    """What stands for TensorFlow's functions with a state, and for the loops in which they are called."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.seen: dict[str, int] = {}  # draws by name scope
        # the number of the iteration by TensorFlow's context of the loop
        self.frames: dict[Any, Any] = {}

    def random_uniform(
        self,
        original: Callable,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Any:
        """as ``tf.compat.v1.random_uniform``"""
        import tensorflow as tf

        given = {"minval": minval, "maxval": maxval, "dtype": dtype or tf.float32, "name": name}
        numbers = self._seed()
        if numbers is None:
            return original(shape, seed=seed, **given)
        return tf.random.stateless_uniform(shape, numbers, alg=_ALGORITHM, **given)

    def of_generator(
        self, kind: str, original: Callable, generator: Any, shape: Any, *args: Any, **options: Any
    ) -> Any:
        """as the method ``kind`` of ``tf.random.Generator``; one of a subclass has no state, or one that is given"""
        import tensorflow as tf

        seed = self._seed() if type(generator) is tf.random.Generator else None
        if seed is None:
            return original(generator, shape, *args, **options)
        stateless = getattr(tf.random, f"stateless_{kind}")
        return stateless(shape, seed, *args, alg=_ALGORITHM, **options)

    def while_loop(
        self, original: Callable, cond: Callable, body: Callable, loop_vars: Any, **options: Any
    ) -> Any:
        """as ``tf.while_loop``, with the number of the iteration as a further variable, the first"""
        import tensorflow as tf

        def counted(number: Any, *values: Any) -> list[Any]:
            (loop,) = _returnn.loops_around(tf.compat.v1.get_default_graph())[-1:]
            self.frames[loop] = number
            return [number + 1, *_listed(body(*values))]

        if options.get("shape_invariants") is not None:
            options["shape_invariants"] = [tf.TensorShape([]), *options["shape_invariants"]]
        _, *values = original(
            lambda _, *values: cond(*values), counted, [tf.constant(0), *loop_vars], **options
        )
        return type(loop_vars)(values)

    def _seed(self) -> Any:
        """of the draw that is being constructed; None in a loop whose iterations are not counted"""
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        loops = _returnn.loops_around(graph)
        if any(loop not in self.frames for loop in loops):
            return None
        scope = graph.get_name_scope()
        number = self.seen[scope] = self.seen.get(scope, 0) + 1
        place = zlib.crc32(f"{scope}:{number}".encode()) & 0x7FFFFFFF
        seed = tf.bitwise.bitwise_xor(self.draw, tf.constant([place, 0], tf.int32))
        for loop in loops:
            seed = tf.random.fold_in(seed, self.frames[loop], alg=_ALGORITHM)
        return seed


def _listed(values: Any) -> list[Any]:
    """what the body of a loop gives: one tensor alone may stand for a list of one"""
    return list(values) if isinstance(values, (list, tuple)) else [values]


__all__ = ["random_numbers_of"]
