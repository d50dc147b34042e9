"""
Steps on the layers backend: lowered networks in one TensorFlow graph and session, with the same variables.

Each step function is lowered once and constructed by RETURNN's ``TFNetwork`` into the one graph; what it makes as a
parameter of the model is the variable that the other steps use. Nothing is built again between phases.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Tensor

from .. import nn
from ..lines import line_of, telling_line
from ..nn import _returnn
from ..nn._shapes import lengths_of
from ._batches import Batch
from ._engine import Draw, MarksLosses, Values, as_number_of_frames, not_finite, with_checks
from ._groups import Group
from ._layers_random import random_numbers_of
from ._layers_runs import Runs
from ._layers_updates import Updates
from ._layers_variables import SharedVariables


@dataclass
class Compiled:
    """A step in the graph."""

    name: str
    net: Any
    needed: list[str]
    templates: Mapping[str, Tensor]
    losses: dict[str, Any] = field(default_factory=dict)
    effects: list[Any] = field(default_factory=list)  # assignments in the step, running statistics
    fetches: dict[str, Any] = field(default_factory=dict)  # what values_of reads
    gradients: dict[str, Any] = field(default_factory=dict)  # of the objective, by path
    update: Any = None
    accumulator: Any = None

    @property
    def updated(self) -> list[str]:
        """the parameters that its losses depend on, which are updated"""
        return list(self.gradients)


class LayersEngine:
    """The engine of the layers backend."""

    def __init__(
        self,
        model: rf.Module,
        extern_data: Mapping[str, Any],
        groups: Sequence[Group],
        values: Mapping[str, numpy.ndarray],
    ):
        import returnn.tf.compat as tf_compat
        import tensorflow as tf

        _returnn.quiet_log()
        self.model, self.extern_data = model, extern_data
        self.parameters = dict(model.named_parameters())
        self.values = dict(values)  # of the parameters that no step has brought into the graph yet
        self.nets: list[Any] = []  # RETURNN's, one for each step
        self.shared = SharedVariables()
        self.variables, self.axes = self.shared.made, self.shared.axes
        self.others: dict[str, Any] = {}  # further variables, such as states of random generators
        self.waiting: Mapping[str, numpy.ndarray] = {}  # loaded values of others to come
        self.graph = tf.Graph()
        options = tf_compat.v1.ConfigProto(allow_soft_placement=True)
        options.gpu_options.allow_growth = True
        self.session = tf_compat.v1.Session(graph=self.graph, config=options)
        _returnn.quiet_devices()
        self.runs = Runs(self.session)
        with self.graph.as_default():
            self.draw = tf_compat.v1.placeholder(tf.int32, [2], name="random_draw")
        self.updates = Updates(self, groups)

    def close(self) -> None:
        self.session.close()

    # --- from a step to a graph

    def compile(self, step: Callable | nn.Stage, paths: Sequence[str] | None) -> Compiled:
        templates: Mapping[str, Tensor]
        if isinstance(step, nn.Stage):
            name, templates = step.title, step.templates
            lowered = step.lowered(self.model)
        else:
            name, templates = line_of(step), self.extern_data
            lowered = self._lowered(step, "train" if paths is not None else None)
        with self.graph.as_default():
            others = {id(e) for e in _returnn.effects_of_nets()}
            net = self._construct(lowered, train=paths is not None)
            self.nets.append(net)
            compiled = Compiled(name, net, sorted(net.used_data_keys), templates)
            compiled.effects = [e for e in _returnn.effects_of_nets() if id(e) not in others]
            compiled.effects += [
                layer.output.placeholder
                for layer in net.layers.values()
                if layer.layer_class == "variable_assign"
            ]
            if lowered.task == "train":
                losses = _returnn.loss_details_of_net(net)  # by name; here as marked
                compiled.losses = {key: losses[key] for key in lowered.network if key in losses}
            outputs = {name: net.get_layer(name).output for name in lowered.outputs}
            compiled.fetches = {
                "losses": {n: (x.total, x.inverse_frames) for n, x in compiled.losses.items()},
                "outputs": {n: _with_lengths(n, tensor) for n, tensor in outputs.items()},
            }
            if paths is not None:
                self.updates.build(compiled, [path for path in paths if path in self.variables])
        return compiled

    def _lowered(self, step: Callable, task: str | None) -> Any:
        with telling_line():
            if task is None:
                try:
                    return self._lower(step, "forward")
                except MarksLosses:
                    task = "train"
            return self._lower(step, task)

    def _lower(self, step: Callable, task: str) -> Any:
        try:
            return nn.lower(self.model, with_checks(step, task=task), self.extern_data, task=task)
        except ValueError as error:
            if "marks no" not in str(error):
                raise
            wanted = "loss" if task == "train" else "loss or output"
            raise ValueError(
                f"{line_of(step)} marks no {wanted}; call loss.mark_as_loss()"
            ) from None

    def _construct(self, lowered: Any, *, train: bool) -> Any:
        from returnn.config import Config, global_config_ctx
        from returnn.tf.network import TFNetwork

        config = Config(lowered.config())
        network = config.typed_value("network")
        network, names = self.shared.in_net(network, lowered.parameters)
        before = set(self._all_variables())
        with (
            _returnn.behavior_version(),
            self.graph.as_default(),  # first: RETURNN keeps the config in the graph
            global_config_ctx(config),
            self.shared.of_net(names),
            random_numbers_of(self.draw),
            _recursion(flat=config.bool("flat_net_construction", False)),
        ):
            net = TFNetwork(config=config, train_flag=train, eval_flag=True)
            net.construct_from_dict(network)
            if lowered.task == "train":
                _returnn.loss_details_of_net(net)
            _ = net.global_train_step  # made now, in this graph
            self._initialize([v for v in self._all_variables() if v not in before])
        return net

    def _all_variables(self) -> list[Any]:
        import returnn.tf.compat as tf_compat

        with self.graph.as_default():
            steps = tf_compat.v1.get_collection(tf_compat.v1.GraphKeys.GLOBAL_STEP)
            return [v.ref() for v in [*tf_compat.v1.global_variables(), *steps]]

    def _initialize(self, new: Sequence[Any]) -> None:
        """parameters from their values, all else as RETURNN says"""
        paths = {variable.ref(): path for path, variable in self.variables.items()}
        others = [ref.deref() for ref in new if ref not in paths]
        self.others.update({variable.name: variable for variable in others})
        self.session.run([variable.initializer for variable in others])
        self.set_other_state(self.waiting)
        self.set_parameters(
            {paths[ref]: self.values.pop(paths[ref]) for ref in new if ref in paths}
        )

    # --- runs

    def evaluate(self, compiled: Compiled, batch: Batch, draw: Draw) -> Values:
        feed = self.feed(compiled, batch, draw)
        got = self.runs(compiled, compiled.fetches, compiled.effects, feed)
        return self.values_of(compiled, got)

    def update(
        self,
        compiled: Compiled,
        batches: Sequence[Batch],
        draws: Sequence[Draw],
        learning_rate: float,
    ) -> list[Values]:
        if len(batches) > 1:
            values = self.updates.accumulate(compiled, batches, draws)
            self.updates.apply_accumulated(compiled, learning_rate)
            return values
        feed = self.feed(compiled, batches[0], draws[0])
        feed.update(self.updates.feed(learning_rate))
        with self.finite(compiled, feed):
            operations = [compiled.update, *compiled.effects]
            got = self.runs(compiled, compiled.fetches, operations, feed)
        return [self.values_of(compiled, got)]

    def gradients(
        self, compiled: Compiled, batches: Sequence[Batch], draws: Sequence[Draw]
    ) -> tuple[list[Values], dict[str, numpy.ndarray]]:
        values = self.updates.accumulate(compiled, batches, draws)
        return values, self.updates.accumulated(compiled)

    def apply(self, gradients: Mapping[str, numpy.ndarray], learning_rate: float) -> None:
        self.updates.apply(gradients, learning_rate)

    def values_of(self, compiled: Compiled, got: Mapping[str, Any]) -> Values:
        losses = {
            name: (float(total), as_number_of_frames(float(inverse)))
            for name, (total, inverse) in got["losses"].items()
        }
        outputs = {}
        for name, (value, lengths) in got["outputs"].items():
            outputs.update({name: value, **lengths})
        return Values(losses, outputs)

    def feed(self, compiled: Compiled, batch: Batch, draw: Draw) -> dict[Any, Any]:
        feed: dict[Any, Any] = {self.draw: [draw.seed, draw.number]}
        data = compiled.net.extern_data
        for name, array in batch.arrays.items():
            tensor, template = data.data[name], compiled.templates[name]
            feed[tensor.placeholder] = array
            for dim, given in zip(tensor.dims, template.dims):
                if given in batch.lengths:
                    feed[_returnn.raw_size_of(dim)] = batch.lengths[given]
        feed[_returnn.batch_size_of_net(compiled.net)] = batch.num_seqs
        feed[compiled.net.global_train_step] = draw.global_train_step
        compiled.net.set_run_opts(epoch=draw.epoch, dataset_name=None)
        return feed

    @contextlib.contextmanager
    def finite(self, compiled: Compiled, feed: dict[Any, Any]) -> Iterator[None]:
        """a check for finite numbers that fails inside is told in a sentence"""
        import tensorflow as tf

        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if Updates.NOT_FINITE not in str(error):
                raise
            values = self.values_of(compiled, self.session.run(compiled.fetches, feed))
        else:
            return
        bad = [
            f"the loss {name!r} is {total}"
            for name, (total, _) in values.losses.items()
            if not numpy.isfinite(total)
        ]
        raise not_finite(
            compiled.name, bad[0] if bad else "the norm of the gradients is not finite"
        )

    # --- state

    def get_parameters(self) -> dict[str, numpy.ndarray]:
        got = self.session.run(self.variables)
        inside = {path: self.to_rf(path, value) for path, value in got.items()}
        return {
            path: inside[path] if path in inside else self.values[path] for path in self.parameters
        }

    def set_parameters(self, values: Mapping[str, numpy.ndarray]) -> None:
        for path, value in values.items():
            if path in self.variables:
                self.load(self.variables[path], numpy.transpose(value, self.axes[path]))
            else:
                self.values[path] = value

    def load(self, variable: Any, value: numpy.ndarray) -> None:
        """set a variable, without a new operation in the graph"""
        self.session.run(variable.initializer, {variable.initializer.inputs[1]: value})

    def to_rf(self, path: str, value: numpy.ndarray) -> numpy.ndarray:
        """from the axes of the variable to those of the parameter"""
        return numpy.transpose(value, numpy.argsort(self.axes[path])) if value.ndim else value

    def get_optimizer_state(self) -> dict[str, numpy.ndarray]:
        return self.updates.get_state()

    def set_optimizer_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        self.updates.set_state(values)

    def get_other_state(self) -> dict[str, numpy.ndarray]:
        return {**self.waiting, **self.session.run(self.others)}

    def set_other_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        self.waiting = {name: value for name, value in values.items() if name not in self.others}
        for name in values.keys() - self.waiting.keys():
            self.load(self.others[name], values[name])


def _with_lengths(name: str, tensor: Tensor) -> tuple[Any, dict[str, Any]]:
    lengths = {key: _returnn.raw_size_of(dim) for _, key, dim in lengths_of(name, tensor)}
    return tensor.placeholder, lengths


@contextlib.contextmanager
def _recursion(*, flat: bool) -> Iterator[None]:
    """nets with loops are constructed recursively, for which their config raises the limit"""
    limit = sys.getrecursionlimit()
    try:
        if not flat:
            sys.setrecursionlimit(10**6)
        yield
    finally:
        sys.setrecursionlimit(limit)


__all__ = ["Compiled", "LayersEngine"]
