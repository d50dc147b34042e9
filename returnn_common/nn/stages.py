"""
Stages of a training, declared: what belongs to the start, to an epoch, to a step.

The body of each ``with`` runs once and is traced: ``nn`` operations become the graph of that stage, all other Python
runs while it is declared. What runs them, as often as they say, is ``training.run``; ``training.to_config`` writes them
down.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from returnn.tensor import Tensor, batch_dim

from ..hints import near_misses, valid_names
from ..lines import calling_line
from . import _returnn
from ._names import SpatialDim
from ._recording import recorded
from ._stage import STORED, Replayed, Stage, current


class EpochLoop:
    """A loop over epochs: stages in the order in which they run in each."""

    def __init__(self, num_epochs: int | None, stages: Stages, *, line: str):
        self.num_epochs, self.stages, self.line = num_epochs, stages, line
        self.parts: list[Stage] = []
        self._tracing = contextlib.ExitStack()

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """what runs inside, apart from step loops, becomes stages of its own"""
        self._begin()
        try:
            yield
        except BaseException:
            self._tracing.__exit__(*sys.exc_info())
            raise
        self._end()

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """for a step loop, which is traced by itself"""
        self._end()
        yield
        self._begin()

    def _begin(self) -> None:
        self._stage = Stage("epoch", self.stages, line=self.line)
        self._tracing.enter_context(self._stage.traced())

    def _end(self) -> None:
        self._tracing.close()
        if not self._stage.is_empty:
            self.parts.append(self._stage)

    def new_name(self, name: str, given: str | None) -> str:
        """for a step loop; ValueError where it was given twice"""
        taken = {part.name for part in self.parts}
        if given is not None and given in taken:
            raise ValueError(f"{calling_line()}two step loops have the name {given!r}")
        numbered = (f"{name}_{i}" if i > 1 else name for i in itertools.count(1))
        return next(candidate for candidate in numbered if candidate not in taken)


class Stages:
    """
    All that was declared: one initial stage, and loops over epochs, one after the other.

    ``with nn.Stages() as stages:`` declares into an object of your own; without it, declarations that follow each other
    belong together, and :func:`declared` gives them.
    """

    def __init__(self) -> None:
        self.init: Stage | None = None
        self.loops: list[EpochLoop] = []
        self.loop: EpochLoop | None = None  # the last one, which may be open
        self.open: list[str] = []  # the forms that are being declared, from the outermost on
        self.is_used = False  # what is declared after it was run begins anew

    def __enter__(self) -> Stages:
        _BLOCKS.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _BLOCKS.remove(self)

    def __str__(self) -> str:
        lines = []
        if self.init is not None:
            lines.append("init" + _text(self.init))
        for loop in self.loops:
            lines.append(f"epoch loop, {loop.num_epochs or 'num_epochs of the config'}")
            for part in loop.parts:
                kind = f"step loop {part.name}" if part.kind == "step" else "epoch"
                lines.append(f"  {kind}{_text(part)}")
        return "\n".join(lines) or "nothing is declared"

    @property
    def all(self) -> list[Stage]:
        """every stage, in the order in which they first run"""
        loops = [*self.loops, *([self.loop] if self.loop and self.open else [])]
        return [*([self.init] if self.init else []), *(p for loop in loops for p in loop.parts)]

    @property
    def is_open(self) -> bool:
        """whether something is being declared, or a block of its own is"""
        return bool(self.open) or self in _BLOCKS

    @contextlib.contextmanager
    def opened(self, name: str, *, inside: tuple[str, ...]) -> Iterator[None]:
        """a block that must stand inside of these, from the outermost on"""
        if tuple(self.open) != inside:
            place = f"inside of nn.{self.open[-1]}()" if self.open else "outside of nn.epoch_loop()"
            wanted = f"inside of nn.{inside[-1]}()" if inside else "on its own"
            raise ValueError(
                f"{calling_line()}nn.{name}() stands {place}, expected {wanted}: "
                f"nn.init_ctx() first, then nn.epoch_loop(), and in it nn.step_loop()"
            )
        self.open.append(name)
        try:
            yield
        finally:
            self.open.pop()

    @property
    def templates(self) -> dict[str, Tensor]:
        """of all data that the stages read, by name"""
        found: dict[str, Tensor] = {}
        for stage in self.all:
            for name in stage.data_names:
                found.setdefault(name, stage.templates[name])
        return found


def _text(stage: Stage) -> str:
    parts = [
        f"reads {', '.join(stage.templates)}" if stage.templates else "",
        f"losses {', '.join(stage.loss_names)}" if stage.loss_names else "",
        f"stores {', '.join(stage.stored)}" if stage.stored else "",
        "without update" if stage.kind == "step" and stage.update is False else "",
    ]
    found = "; ".join(part for part in parts if part)
    return f": {found}" if found else ""


_BLOCKS: list[Stages] = []
_DEFAULT = [Stages()]


def declared() -> Stages:
    """what was declared last, or is being declared"""
    return _BLOCKS[-1] if _BLOCKS else _DEFAULT[0]


def _begin_anew() -> Stages:
    _DEFAULT[0] = Stages()
    return _DEFAULT[0]


# --- the forms


class InitContext:
    """What :func:`init_ctx` gives."""

    def __init__(self, stage: Stage):
        self._stage = stage

    @property
    def is_new_run(self) -> Tensor:
        """bool ``[]``: False where a checkpoint was loaded and the run goes on"""
        return _scalar("is_new_run", self._stage.stages, "init_ctx")


class EpochContext:
    """What :func:`epoch_loop` gives."""

    def __init__(self, stages: Stages):
        self._stages = stages

    @property
    def index(self) -> Tensor:
        """int32 ``[]``: the number of the epoch, as RETURNN counts them: 1 for the first"""
        return _scalar("epoch_index", self._stages, "epoch_loop")


class StepContext:
    """What :func:`step_loop` gives."""

    def __init__(self, stage: Stage):
        self._stage = stage

    @property
    def index(self) -> Tensor:
        """int32 ``[]``: the number of the batch in this loop in this epoch: 0 for the first"""
        return _scalar("step_index", self._stage.stages, "step_loop")


@contextlib.contextmanager
def init_ctx() -> Iterator[InitContext]:
    """
    The stage before the first epoch, of a new run and of one that goes on, which has its checkpoint loaded already.

    :return: its ``is_new_run`` is a tensor: branch with ``nn.cond``
    """
    stages = _begin_anew() if declared().all and not declared().is_open else declared()
    stage = Stage("init", stages, line=calling_line())
    with stages.opened("init_ctx", inside=()), stage.traced():
        yield InitContext(stage)
    stages.init = stage


@contextlib.contextmanager
def epoch_loop(num_epochs: int | None = None) -> Iterator[EpochContext]:
    """
    A loop over epochs. What stands in it outside of step loops runs once in each epoch, at its place.

    Of several loops, one after the other, each goes on with the number of the epoch.

    :param num_epochs: of this loop; by default ``num_epochs`` of the RETURNN config
    :return: its ``index`` is a tensor
    """
    if num_epochs is not None and not (isinstance(num_epochs, int) and num_epochs > 0):
        raise ValueError(f"{calling_line()}num_epochs is {num_epochs!r}, expected a positive int")
    stages = _begin_anew() if declared().is_used and not declared().is_open else declared()
    loop = EpochLoop(num_epochs, stages, line=calling_line())
    with stages.opened("epoch_loop", inside=()):
        stages.loop = loop
        with loop.traced():
            yield EpochContext(stages)
    if not any(part.kind == "step" for part in loop.parts):
        raise ValueError(f"{loop.line}this epoch loop has no nn.step_loop() in it")
    stages.loops.append(loop)


@contextlib.contextmanager
def step_loop(
    data: Any = None,
    *,
    update: bool | str | Sequence[str] = True,
    name: str | None = None,
) -> Iterator[StepContext]:
    """
    A loop over batches, in an epoch loop; there may be several, one after the other.

    :param data: part of a dataset; function ``(epoch) -> batches``; or batches, the same in each epoch. By default
        ``train`` of the RETURNN config
    :param update: whether the losses update all parameters that they depend on, or patterns of parameters, as for
        :meth:`training.Session.step`; False for none: then all runs as in validation, without dropout
    :param name: in the log, by default ``train``, or ``eval`` without update, numbered from the second on
    :return: its ``index`` is a tensor
    """
    stages = declared()
    stage = Stage("step", stages, line=calling_line())
    stage.data, stage.update = data, update
    with stages.opened("step_loop", inside=("epoch_loop",)):
        assert stages.loop is not None
        stage.name = stages.loop.new_name(name or ("eval" if update is False else "train"), name)
        with stages.loop.interrupted(), stage.traced():
            yield StepContext(stage)
        stages.loop.parts.append(stage)


def extern_data(data: str | Tensor) -> Tensor:
    """
    A tensor of the data of the step that runs; for step loops, and for functions that do not pass ``extern_data`` on.

    :param data: its name; or a template, which has a name, where the data of a step loop do not say what they are
    :raises ValueError: there is no such data
    """
    name = data if isinstance(data, str) else data.name
    stage, found = current(), _returnn.current_extern_data()
    if found is None:
        raise RuntimeError(
            f"nn.extern_data({name!r}) is called outside a step; "
            f"call it in nn.step_loop(), or in the function given to nn.lower"
        )
    if name not in found and stage is not None and isinstance(data, Tensor):
        return stage.add_data(name, data)
    if name not in found:
        hint = (
            valid_names(name, found)
            if found
            else (
                "; the data of the step loop has no extern_data that tells: "
                "give a template, nn.extern_data(nn.Tensor(name, dims, dtype))"
            )
        )
        raise KeyError(f"extern data has no {name!r}{hint}")
    return found[name]


@recorded
def store(name: str, tensor: Tensor) -> None:
    """
    Keep what a step computed for each sequence, under its tag, for :func:`load` in another step loop, or later.

    A new value takes the place of the one before. The batches must have ``"seq_tag"``. What is stored is a part of
    checkpoints.

    :param tensor: ``[batch, ..]``, in any order
    """
    stage = _current_step("store", name)
    if not isinstance(tensor, Tensor) or batch_dim not in tensor.dims:
        dims = list(tensor.dims) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"nn.store({name!r}): got {dims}, expected a tensor with nn.batch_dim")
    if not name.isidentifier():
        raise ValueError(f"nn.store: the name {name!r} is no identifier")
    if name in stage.stored:
        raise ValueError(f"nn.store: {name!r} is stored in this step already")
    others = [dim for dim in tensor.dims if not dim.is_batch_dim()]
    stage.stored[name] = tensor.copy_transpose([batch_dim, *others])


def load(data: str | Tensor) -> Tensor:
    """
    What :func:`store` kept of the sequences of this batch: ``[batch, ..]``.

    A dim of the data is the same again; any other dim of dynamic size is a new one.

    :param data: its name; or a template, which has a name, where the step loop that stores it stands further down
    :raises ValueError: nothing of this name is stored above
    """
    name = data if isinstance(data, str) else data.name
    stage = _current_step("load", name)
    if name not in stage.loaded:
        template = _stored_template(stage.stages, name) if isinstance(data, str) else data
        stage.loaded[name] = stage.add_data(STORED + name, template)
    return stage.loaded[name]


def _stored_template(stages: Stages, name: str) -> Tensor:
    found = {n: (s, tensor) for s in stages.all for n, tensor in s.stored.items()}
    if name not in found:
        raise ValueError(
            f"nn.load({name!r}): no step loop above stores this{near_misses(name, found)}; "
            f"where it is stored further down, give a template: nn.load(nn.Tensor({name!r}, dims, dtype))"
        )
    stage, tensor = found[name]
    known = {dim for template in stage.templates.values() for dim in template.dims}
    dims = [
        dim
        if dim.is_batch_dim() or dim.is_static() or dim in known
        else SpatialDim(f"{name}:{dim.name}")
        for dim in tensor.dims
    ]
    template = Tensor(name, dims, tensor.dtype, sparse_dim=tensor.sparse_dim)
    if tensor.feature_dim in dims:
        template.feature_dim = tensor.feature_dim
    return template


def _current_step(function: str, name: str) -> Stage | Replayed:
    stage = current()
    if stage is None or stage.kind != "step":
        raise ValueError(f"nn.{function}({name!r}) stands outside of nn.step_loop()")
    return stage


def _scalar(name: str, stages: Stages, form: str) -> Tensor:
    stage = current()
    is_open = form in stages.open or isinstance(stage, Replayed)
    if stage is None or stage.stages is not stages or not is_open:
        raise ValueError(f"{calling_line()}{name} is read outside of the nn.{form}() that gave it")
    return stage.scalar(name)


__all__ = [
    "Stage",
    "Stages",
    "declared",
    "epoch_loop",
    "extern_data",
    "init_ctx",
    "load",
    "step_loop",
    "store",
]
