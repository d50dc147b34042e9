"""Updates of the variables on the layers backend: the rules as operations of the graph, and what they keep."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from returnn.tensor import Tensor

from ..nn import _returnn
from ._batches import Batch
from ._engine import Draw, Values, check_finite
from ._groups import Group
from .optimizers import Adam, AdamW, Nadam, Sgd

if TYPE_CHECKING:
    from ._layers import Compiled, LayersEngine

#: Rules that the fused operation ``ResourceApplyAdam`` computes.
_FUSED_ADAM = {Adam: False, AdamW: False, Nadam: True}


class Updates:
    """The update rules of a :class:`LayersEngine` in its graph."""

    #: In the message of an error of TensorFlow where a loss or the norm of the gradients is not finite.
    NOT_FINITE = "returnn_common: not finite"

    def __init__(self, engine: LayersEngine, groups: Sequence[Group]):
        self.engine, self.groups = engine, list(groups)
        self.group_of = {path: group for group in groups for path in group.paths}
        self.slots: dict[str, dict[str, Any]] = {}  # path -> name -> variable
        # loaded state of parameters not yet in the graph
        self.waiting: dict[str, numpy.ndarray] = {}
        self.empty: dict[str, Mapping[str, Any]] = {}  # slots without a value, their initial ones
        self.fed: dict[str, Any] = {}  # placeholders of gradients, by path
        self.applies: dict[tuple[str, ...], Any] = {}
        with engine.graph.as_default():
            self.numbers = [_Numbers(group) for group in groups]

    def feed(self, learning_rate: float) -> dict[Any, Any]:
        """the numbers of all rules for the next update"""
        return {numbers.placeholder: numbers.values(learning_rate) for numbers in self.numbers}

    # --- a step that updates

    def build(self, compiled: Compiled, paths: Sequence[str]) -> None:
        """the gradients of the step's objective, and the operation that updates from them"""
        import tensorflow as tf

        objective = sum(loss.objective for loss in compiled.losses.values() if loss.is_trained)
        compiled.gradients = self.gradients_of(objective, paths)
        if not compiled.gradients:
            raise ValueError(
                f"no loss of {compiled.name} depends on a parameter that it is to update"
            )
        # what a step assigns comes before the update, as on torch
        with tf.control_dependencies([_finite(objective), *compiled.effects]):
            compiled.update = self._apply(compiled.gradients)

    def gradients_of(self, objective: Any, paths: Sequence[str]) -> dict[str, Any]:
        """of those parameters that the objective depends on"""
        import tensorflow as tf

        if not isinstance(objective, tf.Tensor):  # no loss at all
            return {}
        grads = tf.gradients(objective, [self.engine.variables[path] for path in paths])
        found = {path: grad for path, grad in zip(paths, grads) if grad is not None}
        return {path: tf.convert_to_tensor(grad) for path, grad in found.items()}

    def _apply(self, gradients: Mapping[str, Any]) -> Any:
        """one update of these parameters, after all gradients are there"""
        import tensorflow as tf

        operations = []
        for group, numbers in zip(self.groups, self.numbers):
            paths = [path for path in group.paths if path in gradients]
            grads = _clipped([gradients[path] for path in paths], group.clip_norm)
            with tf.control_dependencies(list(gradients.values())):
                operations += [
                    self._update(path, grad, group, numbers) for path, grad in zip(paths, grads)
                ]
        update = tf.group(*operations)
        self._fill_slots()
        return update

    def _update(self, path: str, gradient: Any, group: Group, numbers: _Numbers) -> Any:
        if type(group.rule) in _FUSED_ADAM:
            return self._adam(path, gradient, group, numbers)
        if type(group.rule) is Sgd and not group.rule.momentum:
            return self._sgd(path, gradient, group, numbers)
        return self._rule(path, gradient, group, numbers)

    def _sgd(self, path: str, gradient: Any, group: Group, numbers: _Numbers) -> Any:
        import tensorflow as tf

        variable = self.engine.variables[path]
        rate, keep, _ = numbers.of(path)
        with tf.control_dependencies(_decay(variable, keep, group, path)):
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=rate, delta=gradient
            )

    def _adam(self, path: str, gradient: Any, group: Group, numbers: _Numbers) -> Any:
        import tensorflow as tf

        variable = self.engine.variables[path]
        rate, keep, _, power1, power2, epsilon = numbers.of(path)
        with tf.control_dependencies(None):
            zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
            slots = self._slots(path, {"m": zeros, "v": zeros})
        with tf.control_dependencies(_decay(variable, keep, group, path)):
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=slots["m"].handle,
                v=slots["v"].handle,
                beta1_power=power1,
                beta2_power=power2,
                lr=rate,
                beta1=group.rule.beta1,
                beta2=group.rule.beta2,
                epsilon=epsilon,
                grad=gradient,
                use_nesterov=_FUSED_ADAM[type(group.rule)],
            )

    def _rule(self, path: str, gradient: Any, group: Group, numbers: _Numbers) -> Any:
        """any rule, as the operations that it consists of"""
        import tensorflow as tf
        from returnn.tf.frontend_low_level import TFBackend

        variable, rule = self.engine.variables[path], group.rule
        rate, keep, step = numbers.of(path)[:3]
        rule.learning_rate = Tensor("learning_rate", (), "float32", raw_tensor=rate)
        rule.step = Tensor("step", (), "float32", raw_tensor=step)
        with _returnn.selected(TFBackend), _returnn.behavior_version():
            with tf.control_dependencies(None):
                initial = rule.initial_state(self._tensor(path, variable.read_value()))
                slots = self._slots(path, {name: t.raw_tensor for name, t in initial.items()})
            state = {name: _with_raw(t, slots[name].read_value()) for name, t in initial.items()}
            param = self._tensor(path, variable.read_value() * keep)
            new, new_state = rule.update(param, self._tensor(path, gradient), state)
            assigned = [variable.assign(new.copy_compatible_to_dims_raw(param.dims))]
            assigned += [
                slots[name].assign(new_state[name].copy_compatible_to_dims_raw(t.dims))
                for name, t in initial.items()
            ]
        return tf.group(*assigned)

    def _tensor(self, path: str, raw: Any) -> Tensor:
        param = self.engine.parameters[path]
        dims = [param.dims[axis] for axis in self.engine.axes[path]]
        return Tensor(path, dims, param.dtype, raw_tensor=raw)

    # --- several batches, and gradients from outside

    def accumulate(
        self, compiled: Compiled, batches: Sequence[Batch], draws: Sequence[Draw]
    ) -> list[Values]:
        """add up the gradients of all batches, from zero on"""
        engine = self.engine
        if compiled.accumulator is None:
            with engine.graph.as_default():
                compiled.accumulator = _Accumulator(self, compiled)
        accumulator = compiled.accumulator
        engine.session.run(accumulator.reset)
        values = []
        for batch, draw in zip(batches, draws):
            feed = engine.feed(compiled, batch, draw)
            operations = [accumulator.add, *compiled.effects]
            got = engine.runs(accumulator, compiled.fetches, operations, feed)
            values.append(engine.values_of(compiled, got))
        check_finite(values, compiled.name)
        accumulator.count_frames(values)
        return values

    def accumulated(self, compiled: Compiled) -> dict[str, numpy.ndarray]:
        """the gradients of the objective of all batches together, in RF's layout"""
        accumulator = compiled.accumulator
        got = self.engine.session.run(accumulator.gradients, accumulator.feed)
        return {path: self.engine.to_rf(path, value) for path, value in got.items()}

    def apply_accumulated(self, compiled: Compiled, learning_rate: float) -> None:
        accumulator = compiled.accumulator
        if accumulator.update is None:
            with self.engine.graph.as_default():
                accumulator.update = self._apply(accumulator.gradients)
        feed = {**accumulator.feed, **self.feed(learning_rate)}
        with self.engine.finite(compiled, feed):
            self.engine.session.run(accumulator.update, feed)

    def apply(self, gradients: Mapping[str, numpy.ndarray], learning_rate: float) -> None:
        """one update from these gradients, in RF's layout"""
        paths = tuple(sorted(gradients))
        if paths not in self.applies:
            with self.engine.graph.as_default():
                self.applies[paths] = self._apply({path: self._placeholder(path) for path in paths})
        feed = self.feed(learning_rate)
        for path in paths:
            feed[self.fed[path]] = numpy.transpose(gradients[path], self.engine.axes[path])
        self.engine.session.run(self.applies[paths], feed)

    def _placeholder(self, path: str) -> Any:
        import tensorflow as tf

        if path not in self.fed:
            variable = self.engine.variables[path]
            self.fed[path] = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
        return self.fed[path]

    # --- what rules keep

    def _slots(self, path: str, initial: Mapping[str, Any]) -> dict[str, Any]:
        """a variable for each name, made once; :meth:`_fill_slots` gives it the loaded or the initial value"""
        if path not in self.slots:
            self.slots[path] = {
                name: _zero_variable(value, f"{path}/{name}") for name, value in initial.items()
            }
            self.empty[path] = initial
        return self.slots[path]

    def _fill_slots(self) -> None:
        """when the operations are made: TensorFlow wants none changed behind a run"""
        values = self.engine.session.run(self.empty)
        self.empty = {}
        for path, slots in values.items():
            for name, value in slots.items():
                key, variable = f"{path}/{name}", self.slots[path][name]
                if key in self.waiting:
                    self._load(path, variable, self.waiting.pop(key))
                else:
                    self.engine.load(variable, value)

    def get_state(self) -> dict[str, numpy.ndarray]:
        got = self.engine.session.run(self.slots)
        inside = {
            f"{path}/{name}": self._transposed(path, value)
            for path, slots in got.items()
            for name, value in slots.items()
        }
        return {**self.waiting, **inside}

    def set_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        for key, value in values.items():
            path, _, name = key.rpartition("/")
            if path in self.slots and name in self.slots[path]:
                self._load(path, self.slots[path][name], value)
            else:
                self.waiting[key] = value

    def _transposed(self, path: str, value: numpy.ndarray) -> numpy.ndarray:
        return (
            self.engine.to_rf(path, value) if value.ndim == len(self.engine.axes[path]) else value
        )

    def _load(self, path: str, variable: Any, value: numpy.ndarray) -> None:
        axes = self.engine.axes[path]
        self.engine.load(
            variable, numpy.transpose(value, axes) if value.ndim == len(axes) else value
        )


class _Accumulator:
    """
    Sums of gradients over batches, one for the losses that are summed and one for each that is a mean over its frames:
    the mean over all batches is not the mean of their means.
    """

    def __init__(self, updates: Updates, compiled: Compiled):
        import tensorflow as tf

        trained = {name: loss for name, loss in compiled.losses.items() if loss.is_trained}
        summed = [loss.scale * loss.total for loss in trained.values() if not loss.is_mean]
        means = {name: loss.scale * loss.total for name, loss in trained.items() if loss.is_mean}
        self.frames = {name: tf.compat.v1.placeholder(tf.float32, ()) for name in means}
        self.feed: dict[Any, float] = {}
        self.update: Any = None
        adds, resets = [], []
        self.gradients: dict[str, Any] = {}
        parts = {**({"": sum(summed)} if summed else {}), **means}
        for name, objective in parts.items():
            grads = updates.gradients_of(objective, list(compiled.gradients))
            for path, grad in grads.items():
                total = _zero_variable(updates.engine.variables[path], f"{path}/gradient")
                adds.append(total.assign_add(grad))
                resets.append(total.assign(tf.zeros_like(total)))
                value = total.read_value()
                value = value / self.frames[name] if name else value
                before = self.gradients.get(path)
                self.gradients[path] = value if before is None else before + value
        self.add, self.reset = tf.group(*adds), tf.group(*resets)

    def count_frames(self, values: Sequence[Values]) -> None:
        self.feed = {
            placeholder: sum(one.losses[name][1] for one in values)
            for name, placeholder in self.frames.items()
        }


def _zero_variable(like: Any, name: str) -> Any:
    import tensorflow as tf

    with tf.control_dependencies(None):
        zeros = tf.zeros(like.shape, like.dtype.base_dtype)
        return tf.Variable(zeros, trainable=False, name=name.replace(".", "/"))


class _Numbers:
    """The scalars that the rule of a group needs for each parameter: one placeholder for all."""

    def __init__(self, group: Group):
        import tensorflow as tf

        self.group = group
        self.is_adam = type(group.rule) in _FUSED_ADAM
        self.columns = 6 if self.is_adam else 3
        shape = [len(group.paths) * self.columns]
        self.placeholder = tf.compat.v1.placeholder(tf.float32, shape, name="update_numbers")
        self.scalars = tf.unstack(self.placeholder) if shape[0] else []

    def of(self, path: str) -> list[Any]:
        """learning rate, what weight decay leaves, number of the update; for Adam powers of the betas and epsilon"""
        start = self.group.paths.index(path) * self.columns
        return self.scalars[start : start + self.columns]

    def values(self, learning_rate: float) -> numpy.ndarray:
        """for the placeholder"""
        rates = learning_rate * self.group.multipliers
        steps = self.group.counts + 1
        columns = [rates, 1 - rates * self.group.weight_decays, steps]
        if self.is_adam:
            rule = self.group.rule
            powers = [_powers(beta, steps) for beta in (rule.beta1, rule.beta2)]
            # TensorFlow adds its epsilon before the bias correction
            epsilon = rule.epsilon * numpy.sqrt(1 - powers[1].astype("float64"))
            columns += [*powers, epsilon]
        return numpy.stack(columns, axis=1).astype("float32").reshape(-1)


def _powers(base: float, exponents: numpy.ndarray) -> numpy.ndarray:
    """``base ** exponents`` by repeated multiplication in float32, as TensorFlow's Adam has them"""
    size = 1 << int(exponents.max(initial=1)).bit_length()
    return _table(base, size)[exponents]


@functools.lru_cache(maxsize=16)
def _table(base: float, size: int) -> numpy.ndarray:
    factors = numpy.full([size], base, dtype="float32")
    factors[0] = 1
    return numpy.cumprod(factors, dtype="float32")


def _decay(variable: Any, keep: Any, group: Group, path: str) -> list[Any]:
    if not group.weight_decays[group.paths.index(path)]:
        return []
    return [variable.assign(variable.read_value() * keep)]


def _with_raw(template: Tensor, raw: Any) -> Tensor:
    return Tensor(template.name, template.dims, template.dtype, raw_tensor=raw)


def _clipped(gradients: list[Any], norm: float | None) -> list[Any]:
    """scaled by ``min(1, norm / global norm)``"""
    import tensorflow as tf

    if norm is None or not gradients:
        return gradients
    total = tf.linalg.global_norm(gradients)
    with tf.control_dependencies([_finite(total)]):
        scale = tf.minimum(1.0, norm / total)
    return [gradient * scale for gradient in gradients]


def _finite(scalar: Any) -> Any:
    import tensorflow as tf

    return tf.debugging.check_numerics(scalar, Updates.NOT_FINITE)


__all__ = ["Updates"]
