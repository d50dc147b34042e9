"""A session: the parameters of a model and the state of its training, for a loop that you write yourself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Tensor, TensorDict

from ..hints import near_misses, valid_names
from ._batches import read_batch
from ._engine import Average, Draw, Engine, Values
from ._groups import Group, make_groups, match
from ._initial import initial_values

BACKENDS = ("tensorflow-net-dict", "torch")
_ADAM = {"class": "adam"}


class Step:
    """
    A step function that is ready to run: what :meth:`Session.step` gives.

    Called with a batch it runs the step on it and gives ``{name: value}`` of what the step marked:
    the average of each loss (:class:`Average`), or outputs as arrays, with lengths under
    ``NAME:size1``. With several batches it updates once, from the gradients of all together.
    """

    def __init__(self, session: Session, compiled: Any, *, update: bool):
        self.session, self.update = session, update
        self._compiled = compiled

    def __repr__(self) -> str:
        return f"<Step {self._compiled.name}{'' if self.update else ', without update'}>"

    def __call__(self, *batches: Mapping[str, Any]) -> dict[str, Any]:
        return self.session._run(self._compiled, batches, update=self.update)


class Session:
    """
    The parameters of ``model`` and the state of its training on one backend; the loop stays yours.

    :param model: its parameters start from their ``initial``, drawn from ``seed``: the same values on both backends
    :param extern_data: templates of the data by name, as for :func:`nn.lower`
    :param optimizer: options such as ``{"class": "adam", "weight_decay": 0.01}``, an :class:`UpdateRule`, or a list
        of these with disjoint ``parameters``
    :param learning_rate: a number, or a function ``(epoch, step) -> float`` that is asked before each update
    :param backend: ``"tensorflow-net-dict"`` (RETURNN layers) or ``"torch"``
    :param seed: of initial values and of all random numbers in steps
    :raises ValueError: a name of a backend, optimizer, option or parameter is wrong
    """

    def __init__(
        self,
        model: rf.Module,
        *,
        extern_data: Mapping[str, Any],
        optimizer: Any = _ADAM,
        learning_rate: float | Callable[[int, int], float] = 1e-3,
        backend: str = "tensorflow-net-dict",
        seed: int = 1,
    ):
        if not isinstance(model, rf.Module):
            raise TypeError(
                f"Session: the model is a {type(model).__name__}, expected an nn.Module"
            )
        if backend not in BACKENDS:
            raise ValueError(
                f"Session: there is no backend {backend!r}{valid_names(backend, BACKENDS)}"
            )
        self.model, self.backend, self.seed = model, backend, seed
        self.learning_rate = learning_rate
        #: The running epoch, 1 for the first; 0 before it. See :meth:`epochs`.
        self.epoch = 0
        #: Updates so far, those of all optimizers.
        self.global_train_step = 0
        self._templates = _templates(extern_data)
        self._groups = make_groups(optimizer, model)
        self._runs = 0  # of all steps, for their random numbers
        values = initial_values(model, seed=seed)
        self._engine = _make_engine(backend, model, self._templates, self._groups, values)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """free what TensorFlow holds"""
        self._engine.close()

    # --- steps

    def step(self, step: Callable, update: bool | str | Sequence[str] = True) -> Step:
        """
        Make a step function ready, once; the result is called with batches.

        :param step: ``step(*, model, extern_data, **_)`` marks losses, or, without update, also outputs instead
        :param update: True to update all parameters that the losses depend on, patterns such as ``"encoder.*"`` to
            update only those, False for none: then the step runs as in validation, without dropout
        :raises ValueError: the step marks nothing, or one loss twice, or its losses depend on no parameter to update
        """
        if not callable(step):
            raise TypeError(
                f"Session.step: {step!r} is no function step(*, model, extern_data, **_)"
            )
        trained = [path for group in self._groups for path in group.paths]
        paths = None
        if not isinstance(update, bool):
            paths = match(update, trained, "update: the")
        elif update:
            paths = trained
        return Step(self, self._engine.compile(step, paths), update=paths is not None)

    def gradients(self, step: Step, *batches: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
        """
        The gradients of the step's losses on these batches together, by parameter, without an update.

        Parameters on which the losses do not depend are left out.
        """
        if not step.update:
            raise ValueError(f"Session.gradients: {step} was made with update=False")
        prepared = self._prepared(step._compiled, batches)
        _, gradients = self._engine.gradients(step._compiled, *prepared)
        return gradients

    def apply(self, gradients: Mapping[str, Any]) -> None:
        """one update from these gradients, by parameter, as the optimizers say"""
        trained = {path for group in self._groups for path in group.paths}
        arrays = self._checked(gradients, trained, "trained parameter")
        self._engine.apply(arrays, self.current_learning_rate())
        self._count_update(arrays)

    def current_learning_rate(self) -> float:
        """the learning rate of the next update, before the multipliers of parameters"""
        rate = self.learning_rate
        return float(rate(self.epoch, self.global_train_step) if callable(rate) else rate)

    def _run(
        self, compiled: Any, batches: Sequence[Mapping[str, Any]], *, update: bool
    ) -> dict[str, Any]:
        read, draws = self._prepared(compiled, batches)
        if not update:
            if len(read) > 1:
                raise ValueError(
                    f"{compiled.name} runs without update, on one batch at a time, got {len(read)}"
                )
            return _result([self._engine.evaluate(compiled, read[0], draws[0])])
        values = self._engine.update(compiled, read, draws, self.current_learning_rate())
        self._count_update(compiled.paths)
        return _result(values)

    def _prepared(
        self, compiled: Any, batches: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], list[Draw]]:
        if not batches:
            raise TypeError(f"{compiled.name} is called without a batch")
        read = [read_batch(b, self._templates, compiled.needed, compiled.name) for b in batches]
        draws = [Draw(self.seed, self._runs + i) for i in range(len(batches))]
        self._runs += len(batches)
        return read, draws

    def _count_update(self, paths: Any) -> None:
        self.global_train_step += 1
        for group in self._groups:
            group.counts[group.index(paths)] += 1

    # --- epochs

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """the numbers of the epochs to come, up to ``num_epochs``; the first is 1"""
        while self.epoch < num_epochs:
            self.epoch += 1
            yield self.epoch

    # --- parameters

    @property
    def parameters(self) -> dict[str, numpy.ndarray]:
        """the values of all parameters now, by name, in the layout of the model; a copy"""
        return self._engine.get_parameters()

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """set these parameters, by name; ValueError for a name or shape that the model does not have"""
        parameters = dict(self.model.named_parameters())
        self._engine.set_parameters(self._checked(values, parameters, "parameter"))

    def _checked(
        self, values: Mapping[str, Any], valid: Container[str], what: str
    ) -> dict[str, numpy.ndarray]:
        """arrays of the types of the parameters; ValueError for a name or shape that is not there"""
        parameters = dict(self.model.named_parameters())
        arrays = {}
        for path, value in values.items():
            if path not in valid:
                names = [name for name in parameters if name in valid]
                raise ValueError(f"the model has no {what} {path!r}{near_misses(path, names)}")
            param = parameters[path]
            arrays[path] = numpy.asarray(value, dtype=param.dtype)
            shape, given = [dim.dimension for dim in param.dims], list(arrays[path].shape)
            if given != shape:
                raise ValueError(f"the parameter {path!r} has the shape {shape}, got {given}")
        return arrays


def _templates(extern_data: Mapping[str, Any]) -> dict[str, Tensor]:
    from ..nn.lowering import with_feature_dim

    if not isinstance(extern_data, Mapping):
        raise TypeError(
            f"Session: extern_data is a {type(extern_data).__name__}, expected a dict of nn.Tensor templates"
        )
    templates = TensorDict()
    templates.update(dict(extern_data), auto_convert=True)
    return {
        name: with_feature_dim(tensor.copy_template()) for name, tensor in templates.data.items()
    }


def _make_engine(
    backend: str,
    model: rf.Module,
    templates: Mapping[str, Tensor],
    groups: Sequence[Group],
    values: Mapping[str, numpy.ndarray],
) -> Engine:
    if backend == "torch":
        from ._torch import TorchEngine

        return TorchEngine(model, templates, groups, values)
    from ._layers import LayersEngine

    return LayersEngine(model, templates, groups, values)


def _result(values: Sequence[Values]) -> dict[str, Any]:
    """averages over all batches, weighted by their frames; or outputs"""
    if values[0].outputs:
        return dict(values[0].outputs)
    return {
        name: Average(
            sum(one.losses[name][0] for one in values), sum(one.losses[name][1] for one in values)
        )
        for name in values[0].losses
    }


__all__ = ["BACKENDS", "Session", "Step"]
