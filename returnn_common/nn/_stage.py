"""One stage of a training: a graph that a declared body is traced into."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import returnn.frontend as rf
from returnn.tensor import Tensor, TensorDict

from ..lines import telling_line
from . import _returnn
from ._graph import Graph
from ._held import held_as_nodes
from ._outermost import recording_calls
from ._program import Program
from ._recorded import Call, problems
from ._recording import Recording
from .lowering import (
    Lowered,
    add_extern_tensor,
    as_templates,
    dims_keep_their_names,
    effects,
    emit,
    losses_of,
    output,
    run_options,
    tracing,
)

if TYPE_CHECKING:
    from .stages import Stages

#: The scalars that a stage may read, with their types: what runs it feeds them.
SCALARS = {"is_new_run": "bool", "epoch_index": "int32", "step_index": "int32"}
#: Before the names of what is stored: as outputs, and as data.
STORED = "stored_"


class Stage:
    """
    One graph that runs as a whole: at the start (``kind`` is ``init``), at one place in an epoch (``epoch``), or for
    each batch of a loop (``step``).
    """

    def __init__(self, kind: str, stages: Stages, *, line: str):
        self.kind, self.stages, self.line = kind, stages, line
        self.name = kind  # in the log
        self.data: Any = None  # of a step loop: what its batches come from
        self.update: bool | str | Sequence[str] = False
        #: Tensors that :func:`store` keeps, by name, and templates of what :func:`load` gives.
        self.stored: dict[str, Tensor] = {}
        self.loaded: dict[str, Tensor] = {}
        self.templates: dict[str, Tensor] = {}  # of all that it reads
        self.loss_names: list[str] = []
        self._graph: Graph | None = None
        self._data = TensorDict()
        self._program: Program | None = None
        self._recording: Recording | None = None
        self._lowered: tuple[rf.Module, Lowered] | None = None

    def __repr__(self) -> str:
        return f"<Stage {self.title}>"

    @property
    def title(self) -> str:
        """what errors call it"""
        return f"{self.name} ({self.line.rstrip(': ')})"

    @property
    def is_empty(self) -> bool:
        """whether nothing in it needs to run"""
        return self._program is None or not self._program.roots

    # --- while it is traced

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """what runs inside becomes this stage"""
        with telling_line(), tracing(held_as_nodes()) as graph:
            graph.modules = None
            self._graph = graph
            _TRACED.append(self)
            try:
                with self._context() as ctx:
                    with recording_calls(self._data, ctx) as self._recording:
                        yield
                    roots = self._roots(ctx)
            finally:
                _TRACED.remove(self)
            self._program = Program(graph, roots)

    @contextlib.contextmanager
    def _context(self) -> Iterator[rf.RunCtx]:
        for name, template in (_templates_of(self.data) if self.kind == "step" else {}).items():
            self.add_data(name, template)
        with (
            dims_keep_their_names(self._data),
            _returnn.extern_data_of_step(self._data),
            _returnn.run_ctx("train", **run_options("train")) as ctx,
        ):
            if self.kind != "step":
                _returnn.on_mark_as_loss(ctx, self._refuse_loss)
            yield ctx

    def _refuse_loss(self, loss: Tensor) -> None:
        raise ValueError(
            f"the loss {loss.name!r} is marked outside of a step loop; put it into nn.step_loop()"
        )

    def _roots(self, ctx: rf.RunCtx) -> list[Tensor]:
        self.loss_names = list(ctx.losses)
        if self.update is not False and not ctx.losses:
            raise ValueError(
                f"{self.line}this step loop marks no loss; call loss.mark_as_loss(), "
                f"or give nn.step_loop(update=False)"
            )
        stored = [output(STORED + name, tensor) for name, tensor in self.stored.items()]
        roots = [*losses_of(ctx), *stored, *effects()]
        if self.kind == "step" and not roots:
            raise ValueError(
                f"{self.line}this step loop does nothing: it marks no loss, stores nothing and assigns nothing"
            )
        return roots

    def has(self, data: Any) -> bool:
        """whether these are its data"""
        return self._data.data is data

    def add_data(self, name: str, template: Tensor) -> Tensor:
        """one more tensor that it reads"""
        self.templates[name] = template
        if self._recording is None:
            return add_extern_tensor(self._data, name, template)
        with self._recording.paused():
            tensor = add_extern_tensor(self._data, name, template)
        self._recording.add_data(name, tensor)
        return tensor

    def scalar(self, name: str) -> Tensor:
        """a number that is fed, one of :data:`SCALARS`"""
        if name not in self._data.data:
            self.add_data(name, Tensor(name, (), SCALARS[name]))
        return self._data.data[name]

    @property
    def data_names(self) -> list[str]:
        """of what a batch must have"""
        return [n for n in self.templates if n not in SCALARS and not n.startswith(STORED)]

    # --- afterwards

    def lowered(self, model: rf.Module) -> Lowered:
        """
        The layers of this stage, with the names that the parameters have in ``model``.

        Raises ValueError where it uses a parameter that the model does not have.
        """
        if self._lowered is None or self._lowered[0] is not model:
            self._lowered = model, self._lower(model)
        return self._lowered[1]

    def recorded(self, model: rf.Module) -> list[Call]:
        """
        The calls of this stage, for a backend that runs them again.

        Raises ValueError where it uses a parameter that the model does not have, or what no call has given.
        """
        assert self._program is not None and self._recording is not None
        self._name_parameters(self._program, model)
        calls = self._recording.needed_calls()
        for problem in problems(calls):
            raise ValueError(problem)
        return calls

    def _lower(self, model: rf.Module) -> Lowered:
        assert self._program is not None and self._graph is not None
        if self._lowered is not None:
            raise ValueError(
                f"{self.line}this stage runs with another model already; declare it again"
            )
        program = self._program
        self._name_parameters(program, model)
        self._graph.name_module(model)
        outputs = [STORED + name for name in self.stored]
        return emit(program, self._graph, self._data, task="train", outputs=outputs)

    def _name_parameters(self, program: Program, model: rf.Module) -> None:
        with held_as_nodes():
            program.parameters = {
                id(param.raw_tensor): (path, param) for path, param in model.named_parameters()
            }
        for node in program.live:
            if node.cls == "variable" and id(node) not in program.parameters:
                raise ValueError(
                    f"{self.line}this stage uses the parameter {node.tensor}, which is not in the model "
                    f"{type(model).__name__} of the session; it must be a part of it"
                )


def _templates_of(data: Any) -> dict[str, Tensor]:
    """what is known of the data of a step loop: their ``extern_data``; without data, that of the RETURNN config"""
    if data is not None:
        return as_templates(getattr(data, "extern_data", None) or {})
    return as_templates(_returnn.configured("extern_data") or {})


class Replayed:
    """A stage that runs on another backend: what nn.load, nn.store and the scalars read inside of a model's methods."""

    def __init__(self, stage: Stage, data: TensorDict):
        self.kind, self.stages = stage.kind, stage.stages
        self.stored: dict[str, Tensor] = {}
        self.loaded: dict[str, Tensor] = {}
        self._data = data

    def has(self, data: Any) -> bool:
        return self._data.data is data

    def add_data(self, name: str, template: Tensor) -> Tensor:
        return self._data.data[name]

    def scalar(self, name: str) -> Tensor:
        return self._data.data[name]


@contextlib.contextmanager
def replayed(stage: Stage, data: TensorDict) -> Iterator[Replayed]:
    """the stage runs inside, on this data"""
    found = Replayed(stage, data)
    _TRACED.append(found)
    try:
        yield found
    finally:
        _TRACED.remove(found)


_TRACED: list[Stage | Replayed] = []


def current() -> Stage | Replayed | None:
    """the stage that is being traced or run again, unless a step function runs"""
    data = _returnn.current_extern_data()
    return next((stage for stage in _TRACED if stage.has(data)), None)


__all__ = ["SCALARS", "STORED", "Replayed", "Stage", "current", "replayed"]
