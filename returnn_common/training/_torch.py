"""Steps on the torch backend: run eagerly, with the parameters of the model as torch parameters."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Tensor, TensorDict, batch_dim

from ..hints import valid_names
from ..lines import calling_line, line_of, telling_line
from ..nn import _returnn
from ..nn._held import hold
from ..nn._shapes import lengths_of
from ..nn._stage import Stage
from ..nn.lowering import fed_templates
from ._batches import Batch, lacks
from ._distributed import Alone
from ._engine import Draw, MarksLosses, Values, check_finite, with_checks
from ._groups import Group
from ._replay import step_of
from ._torch_updates import Updates


@dataclass
class Compiled:
    """A step; ``task`` is found out in the first run."""

    name: str
    step: Callable
    paths: list[str] | None
    task: str | None
    templates: Mapping[str, Tensor]
    needed: tuple[str, ...] = ()  # whatever the step reads
    is_declared: bool = False  # a stage, which may mark nothing
    updated: tuple[str, ...] = ()  # parameters in the last update: those that the losses depend on

    @property
    def short_name(self) -> str:
        """without its file, whose folder may be another one on each machine"""
        return self.name.partition(" (")[0]


class TorchEngine:
    """The engine of the torch backend."""

    def __init__(
        self,
        model: rf.Module,
        extern_data: Mapping[str, Tensor],
        groups: Sequence[Group],
        values: Mapping[str, numpy.ndarray],
        ranks: Alone,
    ):
        import torch

        self.extern_data, self.ranks = extern_data, ranks
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.parameters = dict(model.named_parameters())
        trained = {path for group in groups for path in group.paths}
        hold(model)
        with self._backend():
            for path, param in self.parameters.items():
                value = torch.tensor(values[path], device=self.device)
                param.raw_tensor = torch.nn.Parameter(value, requires_grad=path in trained)
        self.raw = {path: param.raw_tensor for path, param in self.parameters.items()}
        self.updates = Updates(self.parameters, groups)
        self.model, self.is_first_update = model, True
        # RETURNN keeps the length behind an even filter at the dim of the filter, for all batches alike
        dims = dict.fromkeys(dim for param in self.parameters.values() for dim in param.dims)
        self.filter_dims = [dim for dim in dims if not dim.is_feature_dim()]
        ranks.broadcast(self.raw.values(), "the initial values of a session")

    def close(self) -> None:
        """nothing is held; the session made the process group"""

    @contextlib.contextmanager
    def _backend(self) -> Iterator[None]:
        """RETURNN's torch backend selected, with our pinned behavior version and our device"""
        with (
            _returnn.behavior_version(),
            _returnn.selected(type(_returnn.global_backend)),
            rf.set_default_device_ctx(self.device),
        ):
            rf.select_backend_torch()
            yield

    def compile(self, step: Callable | Stage, paths: Sequence[str] | None) -> Compiled:
        paths = None if paths is None else list(paths)
        if isinstance(step, Stage):
            templates = fed_templates(step.templates)
            function = step_of(step, self.model)
            return Compiled(step.title, function, paths, "train", templates, is_declared=True)
        task = None if paths is None else "train"
        return Compiled(line_of(step), step, paths, task, self.extern_data)

    # --- runs

    def evaluate(self, compiled: Compiled, batch: Batch, draw: Draw) -> Values:
        import torch

        with torch.no_grad(), self._run(compiled, batch, draw) as ctx:
            return _values(ctx)

    def update(
        self,
        compiled: Compiled,
        batches: Sequence[Batch],
        draws: Sequence[Draw],
        learning_rate: float,
    ) -> list[Values]:
        place = f"an update by {compiled.short_name} with the learning rate {learning_rate}"
        if self.is_first_update and self.ranks.size > 1:
            self._warn_of_the_same_batch(batches[0], place)
        self.is_first_update = False
        values = self._backward(compiled, batches, draws, place)
        gradients = self._gradients(compiled)
        compiled.updated = tuple(gradients)
        self.updates.apply(gradients, learning_rate, compiled.name)
        return values

    def gradients(
        self, compiled: Compiled, batches: Sequence[Batch], draws: Sequence[Draw]
    ) -> tuple[list[Values], dict[str, numpy.ndarray]]:
        place = f"the gradients of {compiled.short_name}"
        values = self._backward(compiled, batches, draws, place)
        return values, {path: _numpy(grad) for path, grad in self._gradients(compiled).items()}

    def apply(self, gradients: Mapping[str, numpy.ndarray], learning_rate: float) -> None:
        import torch

        self.ranks.gather(None, f"an update by gradients with the checksum {_checksum(gradients)}")
        tensors = {path: torch.tensor(grad, device=self.device) for path, grad in gradients.items()}
        self.updates.apply(tensors, learning_rate, "the gradients")

    def _warn_of_the_same_batch(self, batch: Batch, place: str) -> None:
        checksums = self.ranks.gather(_checksum(batch.arrays), place)
        if self.ranks.rank == 0 and len(set(checksums)) == 1:
            warnings.warn(
                f"{calling_line()}all {self.ranks.size} processes train on the same batch; "
                f"loop over session.batches(...), which gives each process its share",
                stacklevel=2,
            )

    def _backward(
        self, compiled: Compiled, batches: Sequence[Batch], draws: Sequence[Draw], place: str
    ) -> list[Values]:
        """the gradients of all batches of all ranks into ``.grad``"""
        for raw in self.raw.values():
            raw.grad = None
        if len(batches) > 1:
            values = self._accumulate(compiled, batches, draws, place)
        elif self.ranks.size > 1:
            values = self._backward_of_rank(compiled, batches[0], draws[0], place)
        else:
            with self._run(compiled, batches[0], draws[0]) as ctx:
                self._differentiate(compiled, ctx.total_loss())
                values = [_values(ctx)]
        check_finite(values, compiled.name)
        if self.ranks.size > 1:
            self._add_up(compiled)
        return values

    def _backward_of_rank(
        self, compiled: Compiled, batch: Batch, draw: Draw, place: str
    ) -> list[Values]:
        """the share of this rank in the gradients; a loss that is to be a mean is one over the frames of all ranks"""
        with self._run(compiled, batch, draw) as ctx:
            values = self._of_all_ranks([_values(ctx)], compiled, place)
            parts = [
                part / _frames(values, name) if name else part for name, part in _parts(ctx).items()
            ]
            self._differentiate(compiled, sum(parts))
        return values

    def _accumulate(
        self, compiled: Compiled, batches: Sequence[Batch], draws: Sequence[Draw], place: str
    ) -> list[Values]:
        """the mean of a loss over all batches is not the mean of their means: sums first, then all by all frames"""
        values: list[Values] = []
        sums: dict[str, dict[str, Any]] = {}
        for batch, draw in zip(batches, draws):
            with self._run(compiled, batch, draw) as ctx:
                parts = _parts(ctx)
                for name, part in parts.items():
                    self._differentiate(compiled, part, again=len(parts) > 1)
                    _add(sums.setdefault(name, {}), self._take_gradients(compiled))
                values.append(_values(ctx))
        values = self._of_all_ranks(values, compiled, place)
        for name, gradients in sums.items():
            frames = _frames(values, name) if name else 1.0
            for path, gradient in gradients.items():
                before = self.raw[path].grad
                gradient = gradient / frames if name else gradient
                self.raw[path].grad = gradient if before is None else before + gradient
        return values

    def _of_all_ranks(
        self, values: Sequence[Values], compiled: Compiled, place: str
    ) -> list[Values]:
        """
        With the losses of all ranks; outputs stay where they are. The ranks agree here that they are at the same place,
        and on what is not finite.
        """
        gathered = self.ranks.gather([one.losses for one in values], place)
        if len(gathered) == 1:
            return list(values)
        for rank, theirs in enumerate(gathered):
            check_finite([Values(losses) for losses in theirs], f"{compiled.name} on rank {rank}")
        first, *others = (Values(losses) for theirs in gathered for losses in theirs)
        return [Values(first.losses, values[0].outputs), *others]

    def _add_up(self, compiled: Compiled) -> None:
        """the gradients of all ranks into ``.grad``, and what is not trained, as running statistics, from rank 0"""
        import torch

        trained = [self.raw[path] for path in compiled.paths or ()]
        auxiliary = [self.raw[path] for path, p in self.parameters.items() if p.auxiliary]
        has = torch.tensor([float(raw.grad is not None) for raw in trained], device=self.device)
        gradients = [torch.zeros_like(r) if r.grad is None else r.grad for r in trained]
        of_first = [r if self.ranks.rank == 0 else torch.zeros_like(r) for r in auxiliary]
        has, *sums = self.ranks.add_up([has, *gradients, *of_first])
        for raw, number, gradient in zip(trained, has.tolist(), sums):
            raw.grad = gradient if number else None
        with torch.no_grad():
            for raw, value in zip(auxiliary, sums[len(trained) :]):
                raw.copy_(value)
        if not any(raw.grad is not None for raw in trained):
            raise _depends_on_nothing(compiled)

    def _take_gradients(self, compiled: Compiled) -> dict[str, Any]:
        taken = self._gradients(compiled)
        for path in taken:
            self.raw[path].grad = None
        return taken

    def _differentiate(self, compiled: Compiled, loss: Any, *, again: bool = False) -> None:
        raw = loss.raw_tensor if isinstance(loss, Tensor) else None
        if raw is None or not raw.requires_grad:
            if self.ranks.size > 1:  # a loss of another rank may
                return
            raise _depends_on_nothing(compiled)
        raw.backward(inputs=[self.raw[path] for path in compiled.paths or ()], retain_graph=again)

    def _gradients(self, compiled: Compiled) -> dict[str, Any]:
        found = {path: self.raw[path].grad for path in compiled.paths or ()}
        return {path: grad for path, grad in found.items() if grad is not None}

    @contextlib.contextmanager
    def _run(self, compiled: Compiled, batch: Batch, draw: Draw) -> Iterator[rf.RunCtx]:
        """what the step marked on this batch"""
        if compiled.task is None:
            try:
                with self._run_as("forward", compiled, batch, draw) as ctx:
                    compiled.task = "forward"
                    yield ctx
                    return
            except MarksLosses:
                compiled.task = "train"
        with self._run_as(compiled.task, compiled, batch, draw) as ctx:
            yield ctx

    @contextlib.contextmanager
    def _run_as(
        self, task: str, compiled: Compiled, batch: Batch, draw: Draw
    ) -> Iterator[rf.RunCtx]:
        data, train = self._tensors(compiled, batch), compiled.paths is not None
        with self._backend(), _random_numbers(draw, self.ranks.rank, self.device):
            try:
                with (
                    _returnn.extern_data_of_step(data),
                    _returnn.run_ctx(
                        task, train_flag=train, step=draw.global_train_step, epoch=draw.epoch
                    ) as ctx,
                ):
                    with telling_line():
                        with_checks(compiled.step, task=task)(model=self.model, extern_data=data)
                    if not compiled.is_declared:
                        _check_marks(ctx, task, compiled)
                    yield ctx
            except _Lacks as error:
                raise lacks(error.args[0], batch.names, compiled.name) from None
            finally:
                _returnn.reset_dims([batch_dim, *batch.lengths, *self.filter_dims])

    def _tensors(self, compiled: Compiled, batch: Batch) -> TensorDict:
        import torch

        sizes = {
            dim: Tensor(f"{dim.name}_size", [batch_dim], "int32", raw_tensor=torch.tensor(lengths))
            for dim, lengths in batch.lengths.items()
        }
        for dim, size in sizes.items():
            _returnn.set_size(dim, size)
        number = torch.tensor(batch.num_seqs, dtype=torch.int32)
        _returnn.set_size(batch_dim, Tensor("batch", (), "int32", raw_tensor=number))
        data = TensorDict()
        data.data = _Given(compiled.templates)
        for name, array in batch.arrays.items():
            data.data[name] = compiled.templates[name].copy_template()
            data.data[name].raw_tensor = torch.from_numpy(array).to(self.device)
        return data

    # --- state

    def get_parameters(self) -> dict[str, numpy.ndarray]:
        return {path: _numpy(raw) for path, raw in self.raw.items()}

    def set_parameters(self, values: Mapping[str, numpy.ndarray]) -> None:
        import torch

        with torch.no_grad():
            for path, value in values.items():
                self.raw[path].copy_(torch.tensor(value))
        self.ranks.broadcast((self.raw[path] for path in values), "setting parameters")

    def get_optimizer_state(self) -> dict[str, numpy.ndarray]:
        return self.updates.get_state()

    def set_optimizer_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        self.updates.set_state(values)

    def get_other_state(self) -> dict[str, numpy.ndarray]:
        return {}

    def set_other_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        """there is none: random numbers come from (seed, number of the run)"""


class _Lacks(Exception):
    """A step asks for extern data that the batch lacks."""


class _Given(dict):
    """Tensors by name, which tells what is missing."""

    def __init__(self, templates: Mapping[str, Tensor]):
        super().__init__()
        self.templates = templates

    def __contains__(self, name: object) -> bool:
        return name in self.templates

    def __missing__(self, name: str) -> Tensor:
        if name in self.templates:
            raise _Lacks(name)
        raise KeyError(f"extern data has no {name!r}{valid_names(name, self.templates)}")


@contextlib.contextmanager
def _random_numbers(draw: Draw, rank: int, device: str) -> Iterator[None]:
    """torch's generators seeded for this run of this rank, and afterwards as before"""
    import torch

    cuda = device == "cuda"
    before = torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None
    seed = int(numpy.random.SeedSequence([draw.seed, draw.number, rank]).generate_state(1)[0])
    torch.default_generator.manual_seed(seed)
    if cuda:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        if cuda:
            torch.cuda.set_rng_state(before[1])


def _check_marks(ctx: rf.RunCtx, task: str, compiled: Compiled) -> None:
    if not (ctx.losses if task == "train" else ctx.outputs.data):
        wanted = "loss" if compiled.paths is not None else "loss or output"
        raise ValueError(f"{compiled.name} marks no {wanted}; call loss.mark_as_loss()")


def _parts(ctx: rf.RunCtx) -> dict[str, Any]:
    """what to differentiate: the summed losses together under "", and the sum of each loss that is to be a mean"""
    trained = {name: loss for name, loss in ctx.losses.items() if not loss.as_error and loss.scale}
    scaled = {name: loss.get_summed_loss() * loss.scale for name, loss in trained.items()}
    means = {name: scaled.pop(name) for name, loss in trained.items() if loss.use_normalized_loss}
    return {**({"": sum(scaled.values())} if scaled else {}), **means}


def _values(ctx: rf.RunCtx) -> Values:
    """the losses and outputs that were marked"""
    losses = {
        name: (_number(loss.get_summed_loss()), _number(loss.get_inv_norm_factor()))
        for name, loss in ctx.losses.items()
    }
    return Values(losses, _outputs(ctx))


def _number(value: Any) -> float:
    return float(value.raw_tensor.detach()) if isinstance(value, Tensor) else float(value)


def _outputs(ctx: rf.RunCtx) -> dict[str, numpy.ndarray]:
    outputs = {}
    for name, tensor in ctx.outputs.data.items():
        outputs[name] = _numpy(tensor.raw_tensor)
        for _, key, dim in lengths_of(name, tensor):
            outputs[key] = _numpy(_returnn.raw_size_of(dim))
    return outputs


def _frames(values: Sequence[Values], name: str) -> float:
    return sum(one.losses[name][1] for one in values if name in one.losses)


def _depends_on_nothing(compiled: Compiled) -> ValueError:
    return ValueError(f"no loss of {compiled.name} depends on a parameter that it is to update")


def _checksum(arrays: Mapping[str, numpy.ndarray]) -> int:
    checksum = 0
    for path in sorted(arrays):
        checksum = zlib.crc32(arrays[path].tobytes(), zlib.crc32(path.encode(), checksum))
    return checksum


def _add(total: dict[str, Any], gradients: Mapping[str, Any]) -> None:
    for path, gradient in gradients.items():
        total[path] = total[path] + gradient if path in total else gradient


def _numpy(tensor: Any) -> numpy.ndarray:
    return tensor.detach().cpu().numpy().copy()


__all__ = ["TorchEngine"]
