"""A session: the parameters of a model and the state of its training, for a loop that you write yourself."""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Tensor

from ..hints import near_misses, valid_names
from ..nn._stage import Stage
from ..nn.lowering import fed_templates
from . import checkpoints
from ._batches import read_batch
from ._distributed import Alone, connect
from ._engine import Average, Draw, Engine, Values
from ._groups import Group, make_groups, match
from ._initial import initial_values
from ._state import get_random_states, join, set_random_states, split

BACKENDS = ("tensorflow-net-dict", "torch")
_ADAM = {"class": "adam"}


@dataclass
class Place:
    """Where in the data of an epoch a run is."""

    loop: int = 0  # loops over batches that are done
    number: int = 0  # batches of the next one that were given
    is_done: bool = True
    is_inside: bool = False
    started: int = 0  # loops that this process has begun in this epoch

    def saved(self, epoch_is_done: bool | None) -> dict[str, Any]:
        """for a checkpoint"""
        is_done = not self.is_inside if epoch_is_done is None else epoch_is_done
        loop, number = (0, 0) if is_done else (self.loop, self.number)
        return {"loop": loop, "number": number, "is_done": is_done}


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

    In several processes that ``torchrun`` has started, on the torch backend, all train one model: each runs the same
    program, and updates are those by the batches of all processes together.

    :param model: its parameters start from their ``initial``, drawn from ``seed``: the same values on both backends
    :param extern_data: templates of the data by name, as for :func:`nn.lower`
    :param optimizer: options such as ``{"class": "adam", "weight_decay": 0.01}``, an :class:`UpdateRule`, or a list
        of these with disjoint ``parameters``
    :param learning_rate: a number, or a function ``(epoch, step) -> float`` that is asked before each update
    :param backend: ``"tensorflow-net-dict"`` (RETURNN layers) or ``"torch"``
    :param seed: of initial values and of all random numbers in steps
    :raises ValueError: a name of a backend, optimizer, option or parameter is wrong; or there are several processes,
        and the backend is not torch
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
        self._ranks = connect(backend)
        #: The number of this process, 0 for the first, and of how many.
        self.rank, self.world_size = self._ranks.rank, self._ranks.size
        self.learning_rate = learning_rate
        #: The running epoch, 1 for the first; 0 before it. See :meth:`epochs`.
        self.epoch = 0
        #: Updates so far, those of all optimizers.
        self.global_train_step = 0
        #: The step from which this process goes on: 0, or that of the checkpoint.
        self.first_train_step = 0
        self._templates = _templates(extern_data)
        self._groups = make_groups(optimizer, model)
        self._runs = 0  # of all steps, for their random numbers
        #: Of your own, saved in checkpoints: numbers, strings, arrays, and dicts and lists of these.
        self.state: dict[str, Any] = {}
        #: False once :meth:`resume` has found a checkpoint.
        self.is_new_run = True
        self._place = Place()
        self._folder: Path | None = None  # whose checkpoints are of this run
        values = initial_values(model, seed=seed)
        self._engine = _make_engine(
            backend, model, self._templates, self._groups, values, self._ranks
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is None:
            self.close()
        else:  # the process group could wait for the other processes, which torchrun ends
            self._engine.close()

    def close(self) -> None:
        """free what TensorFlow holds, and the process group, if it is of this session"""
        self._engine.close()
        self._ranks.close()

    # --- steps

    def step(self, step: Callable | Stage, update: bool | str | Sequence[str] = True) -> Step:
        """
        Make a step function ready, once; the result is called with batches.

        :param step: ``step(*, model, extern_data, **_)`` marks losses, or, without update, also outputs instead; or
            a declared stage, which says itself what it updates
        :param update: True to update all parameters that the losses depend on, patterns such as ``"encoder.*"`` to
            update only those, False for none: then the step runs as in validation, without dropout
        :raises ValueError: the step marks nothing, or one loss twice, or its losses depend on no parameter to update
        """
        if isinstance(step, Stage):
            update = step.update
        elif not callable(step):
            raise TypeError(
                f"Session.step: {step!r} is no function step(*, model, extern_data, **_)"
            )
        trained = [path for group in self._groups for path in group.paths]
        paths = None
        if not isinstance(update, bool):
            paths = match(update, trained, "update")
        elif update:
            paths = trained
        return Step(self, self._engine.compile(step, paths), update=paths is not None)

    def gradients(self, step: Step, *batches: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
        """
        The gradients of the step's losses on these batches together, by parameter, without an update.

        Parameters on which the losses do not depend are left out. In several processes, these are the batches of all,
        and all get the same gradients.
        """
        if not step.update:
            raise ValueError(f"Session.gradients: {step} was made with update=False")
        prepared = self._prepared(step._compiled, batches)
        _, gradients = self._engine.gradients(step._compiled, *prepared)
        return gradients

    def apply(self, gradients: Mapping[str, Any]) -> None:
        """
        One update from these gradients, by parameter, as the optimizers say.

        In several processes, all must give the same ones, else RuntimeError.
        """
        trained = {path for group in self._groups for path in group.paths}
        arrays = self._checked(gradients, trained, "trained parameter")
        self._engine.apply(arrays, self.current_learning_rate())
        self._count_update(arrays)

    def averages(self, step: Step, batches: Iterable[Mapping[str, Any]]) -> dict[str, Average]:
        """
        The average of each loss of a step without update over all batches.

        Several processes share the batches out, and all get the averages over all of them.
        """
        if step.update:
            raise ValueError(f"Session.averages: {step} updates; make it with update=False")
        values = []
        for batch in self.share(batches):
            read, draws = self._prepared(step._compiled, [batch])
            values.append(self._engine.evaluate(step._compiled, read[0], draws[0]))
        gathered = self._ranks.gather(values, "session.averages")
        return _averages([one for theirs in gathered for one in theirs])

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
        self._count_update(compiled.updated)
        return _result(values)

    def _prepared(
        self, compiled: Any, batches: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], list[Draw]]:
        if not batches:
            raise TypeError(f"{compiled.name} is called without a batch")
        read = [read_batch(b, compiled.templates, compiled.needed, compiled.name) for b in batches]
        step = self.global_train_step
        draws = [Draw(self.seed, self._runs + i, step, self.epoch) for i in range(len(batches))]
        self._runs += len(batches)
        return read, draws

    def _count_update(self, paths: Any) -> None:
        self.global_train_step += 1
        for group in self._groups:
            group.counts[group.index(paths)] += 1

    # --- epochs, and the place in their data

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """
        The numbers of the epochs to come, up to ``num_epochs``; the first is 1.

        A continued run begins with the epoch in which its checkpoint was saved, if that was inside of it.
        """
        while True:
            if self.epoch + self._place.is_done > num_epochs:
                return
            if self._place.is_done:
                self.epoch += 1
                self._place = Place()
            self._place.is_done = False
            yield self.epoch
            self._place = Place(is_done=True)

    def batches(self, source: Iterable[Any] | Callable[[int], Iterable[Any]]) -> Iterator[Any]:
        """
        All that ``source`` gives, counted, so that a continued run goes on behind what it had.

        There may be several such loops in an epoch, one after the other. A continued run draws again
        what it had, and leaves it out; where that takes too long, give a function ``source(number)`` that
        begins behind the first ``number`` batches. Save behind the step that used the batch.

        In several processes, each must draw the same batches, and gets its share: of each round of as many batches as
        there are processes, one. An incomplete last round is left out, so that all make the same number of steps.
        """
        place = self._place
        loop, place.started = place.started, place.started + 1
        if loop < place.loop:  # this one is done
            return
        done = place.number if loop == place.loop else 0
        place.loop, place.number, place.is_inside = loop, done, True
        rest = source(done) if callable(source) else itertools.islice(source, done, None)
        try:
            for item in self._ranks.share(rest):
                place.number += self.world_size
                yield item
        finally:  # also when the loop is left early
            place.loop, place.number, place.is_inside = loop + 1, 0, False

    def share(self, source: Iterable[Any]) -> Iterator[Any]:
        """
        What of ``source`` is for this process, of all that there are: one of each ``world_size``.

        For steps without update, of which processes may make different numbers. Nothing is left out, nor counted.
        """
        return itertools.islice(source, self.rank, None, self.world_size)

    def gather(self, value: Any) -> list[Any]:
        """the values of all processes, ``[world_size]`` in the order of their ranks; all must call it"""
        return self._ranks.gather(value, "session.gather")

    # --- checkpoints

    def save(
        self,
        folder: str | os.PathLike = "checkpoints",
        *,
        metrics: Mapping[str, float] | None = None,
        epoch_is_done: bool | None = None,
    ) -> Path:
        """
        Save all that is needed to go on exactly, as a new folder in ``folder``, whole or not at all.

        In several processes, all must call it; the first one writes, what of ``state`` and ``metrics`` it has, and the
        others wait. Where it fails, all raise its error.

        :param metrics: numbers such as ``{"dev_loss": 0.3}``, by which :func:`checkpoints.best` finds it again
        :param epoch_is_done: whether a continued run begins with the next epoch; by default so outside of the loops
            over :meth:`batches`. Say False between two of these loops
        :raises ValueError: the folder has checkpoints of another run
        """
        own = self._ranks.gather(
            {"random": get_random_states(), "runs": self._runs}, "session.save"
        )

        def write() -> Path:
            if self._folder != Path(folder).resolve() and checkpoints.paths(folder):
                raise ValueError(
                    f"{os.fspath(folder)!r} has checkpoints of another run; continue it with "
                    f"session.resume({os.fspath(folder)!r}), or give another folder"
                )
            arrays, info = self._saved(metrics, epoch_is_done, own[1:])
            return checkpoints.write(folder, self.global_train_step, arrays, info)

        path = self._ranks.on_first(write, "session.save")
        self._folder = Path(folder).resolve()
        return path

    def _saved(
        self,
        metrics: Mapping[str, float] | None,
        epoch_is_done: bool | None,
        other_ranks: Sequence[dict[str, Any]],
    ) -> tuple[dict[str, dict[str, numpy.ndarray]], dict[str, Any]]:
        others: dict[str, numpy.ndarray] = {}
        state = {
            "user": self.state,
            "random": get_random_states(),
            "other_ranks": list(other_ranks),
            self.backend: self._engine.get_other_state(),
        }
        info = {
            "epoch": self.epoch,
            "global_train_step": self.global_train_step,
            "learning_rate": None if callable(self.learning_rate) else float(self.learning_rate),
            "metrics": {name: float(value) for name, value in (metrics or {}).items()},
            "optimizers": [type(group.rule).__name__ for group in self._groups],
            "place": self._place.saved(epoch_is_done),
            "runs": self._runs,
            "seed": self.seed,
            "state": split(state, others, "state"),
            "updates": {p: int(n) for g in self._groups for p, n in zip(g.paths, g.counts)},
        }
        arrays = {
            "parameters": self._engine.get_parameters(),
            "optimizer": self._engine.get_optimizer_state(),
            "state": others,
        }
        return arrays, info

    def resume(self, folder: str | os.PathLike = "checkpoints") -> bool:
        """
        Continue from the newest checkpoint in ``folder``, on whichever backend it was saved; False where there is none.

        On the backend on which it was saved, the run goes on exactly as it would have, if steps, data, and the number
        of processes are the same.

        :raises ValueError: the model or the optimizers are others
        """
        found = self._ranks.on_first(lambda: checkpoints.paths(folder)[-1:], "session.resume")
        if not found:
            return False
        self._restore(found[0])
        self._folder = Path(folder).resolve()
        self.is_new_run = False
        return True

    def _restore(self, path: Path) -> None:
        info = checkpoints.read_info(path)
        rules = [type(group.rule).__name__ for group in self._groups]
        if info["optimizers"] != rules:
            raise ValueError(
                f"{os.fspath(path)!r} is of a run with the optimizers {info['optimizers']}, here are {rules}"
            )
        values = self._fitting(checkpoints.read_parameters(path), strict=True, source=path)
        optimizer = checkpoints.read_arrays(path / "optimizer.safetensors")
        state = join(info["state"], checkpoints.read_arrays(path / "state.safetensors"))
        for group in self._groups:
            group.counts[:] = [info["updates"].get(name, 0) for name in group.paths]
        self._engine.set_parameters(values)
        self._engine.set_optimizer_state(optimizer)
        self._engine.set_other_state(state.get(self.backend, {}))
        self.epoch, self.global_train_step = info["epoch"], info["global_train_step"]
        self.first_train_step = self.global_train_step
        self._runs, self.seed, self.state = info["runs"], info["seed"], state["user"]
        if info["learning_rate"] is not None and not callable(self.learning_rate):
            self.learning_rate = info["learning_rate"]
        self._place = Place(**info["place"])
        other_ranks = state.get("other_ranks", [])
        if self.rank and len(other_ranks) == self.world_size - 1:
            state["random"] = other_ranks[self.rank - 1]["random"]
            self._runs = other_ranks[self.rank - 1]["runs"]
        set_random_states(state["random"])

    def load(
        self,
        path: str | os.PathLike,
        *,
        rename: Mapping[str, str] | Callable[[str], str | None] | None = None,
        only: str | Sequence[str] = "*",
        strict: bool = True,
    ) -> list[str]:
        """
        Initial values of parameters for a new run; a continued run has its own, and there this does nothing.

        :param path: a checkpoint, a .safetensors file, or a checkpoint of RETURNN's engines, as for
            :func:`checkpoints.read_parameters`
        :param rename: ``{prefix there: prefix here}``, or a function that gives the name here, or None to leave it out
        :param only: patterns of names here
        :param strict: whether all parameters of the model that ``only`` matches must be there, and no others
        :return: the names of what was loaded
        :raises ValueError: names are missing or unexpected (if strict), shapes differ, a prefix matches nothing
        """
        if not self.is_new_run:
            return []
        values = checkpoints.read_parameters(path)
        values = checkpoints.renamed(values, rename) if rename is not None else values
        fitting = self._fitting(values, only=only, strict=strict, source=path)
        self._engine.set_parameters(fitting)
        return list(fitting)

    def _fitting(
        self,
        values: Mapping[str, numpy.ndarray],
        *,
        only: str | Sequence[str] = "*",
        strict: bool,
        source: str | os.PathLike,
    ) -> dict[str, numpy.ndarray]:
        parameters = dict(self.model.named_parameters())
        wanted = match(only, parameters, "only")
        patterns = [only] if isinstance(only, str) else only
        chosen = {
            n: v for n, v in values.items() if any(fnmatch.fnmatchcase(n, p) for p in patterns)
        }
        shapes = {name: [dim.dimension for dim in parameters[name].dims] for name in wanted}
        return checkpoints.compared(chosen, shapes, strict=strict, source=repr(os.fspath(source)))

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
    if not isinstance(extern_data, Mapping):
        raise TypeError(
            f"Session: extern_data is a {type(extern_data).__name__}, expected a dict of nn.Tensor templates"
        )
    return fed_templates(extern_data)


def _make_engine(
    backend: str,
    model: rf.Module,
    templates: Mapping[str, Tensor],
    groups: Sequence[Group],
    values: Mapping[str, numpy.ndarray],
    ranks: Alone,
) -> Engine:
    if backend == "torch":
        from ._torch import TorchEngine

        return TorchEngine(model, templates, groups, values, ranks)
    from ._layers import LayersEngine

    return LayersEngine(model, templates, groups, values)


def _result(values: Sequence[Values]) -> dict[str, Any]:
    """averages over all batches, weighted by their frames; and outputs, of the first one"""
    return {**_averages(values), **values[0].outputs}


def _averages(values: Sequence[Values]) -> dict[str, Average]:
    names = dict.fromkeys(name for one in values for name in one.losses)
    parts = {name: [one.losses[name] for one in values if name in one.losses] for name in names}
    return {name: Average(*map(sum, zip(*losses))) for name, losses in parts.items()}


__all__ = ["BACKENDS", "Session", "Step"]
