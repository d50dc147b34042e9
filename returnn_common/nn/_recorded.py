"""
What was recorded while a stage was traced, and how it runs again: calls, with refs for what differs each time.

A value that a call gives has a number, its slot; a :class:`Run` holds the real values by slot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ..lines import telling_this_line


class Run:
    """One run: its data by name, and the values that its calls gave, by slot."""

    def __init__(self, data: Mapping[str, Tensor]):
        self.data = data
        self.values: dict[int, Any] = {}


class Ref:
    """Stands for a value that is another one in each run."""

    def get(self, run: Run) -> Any:
        """the value in this run"""
        raise NotImplementedError

    def inner(self) -> Iterator[Any]:
        """what it is made of"""
        yield from ()


def value_of(item: Any, run: Run) -> Any:
    """the value in this run of what may be a :class:`Ref`; everything else stands for itself"""
    return item.get(run) if isinstance(item, Ref) else item


def refs_in(item: Any) -> Iterator[Ref]:
    """all refs that this one is made of, and itself"""
    if isinstance(item, Ref):
        yield item
        for other in item.inner():
            yield from refs_in(other)


@dataclass(frozen=True)
class Slot(Ref):
    """What a call gave."""

    number: int

    def get(self, run: Run) -> Any:
        if self.number not in run.values:
            raise ValueError(
                "what this call reads is not there on torch: it was given in a branch that has not run, "
                "or to a function that is called later"
            )
        return run.values[self.number]


@dataclass(frozen=True)
class Data(Slot):
    """A tensor of the data."""

    name: str

    def get(self, run: Run) -> Any:
        if self.number not in run.values:
            run.values[self.number] = run.data[self.name]
        return run.values[self.number]


@dataclass(frozen=True)
class OfContext(Ref):
    """A number of the run context, as a tensor; or the context itself."""

    name: str | None = None

    def get(self, run: Run) -> Any:
        ctx = rf.get_run_ctx()
        return rf.convert_to_tensor(getattr(ctx, self.name)) if self.name else ctx


@dataclass(frozen=True)
class SizeOf(Ref):
    """The lengths of a dim."""

    dim: Any

    def get(self, run: Run) -> Tensor:
        return value_of(self.dim, run).get_size_tensor()

    def inner(self) -> Iterator[Any]:
        yield self.dim


@dataclass(frozen=True)
class NewDim(Slot):
    """A dim that the body made, which is a new one in each run."""

    dim: Dim
    size: Any  # None: the call that gets it says

    def get(self, run: Run) -> Dim:
        if self.number not in run.values:
            size = None if self.size is None else value_of(self.size, run)
            run.values[self.number] = Dim(size, name=self.dim.name, kind=self.dim.kind)
        return run.values[self.number]

    def inner(self) -> Iterator[Any]:
        yield self.size


@dataclass(frozen=True)
class Changed(Ref):
    """A tensor whose attributes the body has set."""

    tensor: Ref
    attributes: dict[str, Any]
    is_copy: bool  # whether the tensor itself stays as it is

    def get(self, run: Run) -> Tensor:
        tensor = self.tensor.get(run)
        tensor = tensor.copy() if self.is_copy else tensor
        for name, item in self.attributes.items():
            setattr(tensor, name, value_of(item, run))
        return tensor

    def inner(self) -> Iterator[Any]:
        yield self.tensor
        yield from self.attributes.values()


@dataclass(frozen=True)
class Template(Ref):
    """A tensor without a value."""

    tensor: Tensor
    dims: tuple[Any, ...]

    def get(self, run: Run) -> Tensor:
        dims = [value_of(dim, run) for dim in self.dims]
        return self.tensor.copy_template_new_dim_tags(dims)

    def inner(self) -> Iterator[Any]:
        yield from self.dims


@dataclass(frozen=True)
class Container(Slot):
    """A dict, list, tuple or set."""

    like: Any
    items: tuple[tuple[Any, Any], ...]  # (key or index, value)

    def get(self, run: Run) -> Any:
        made = self._made([(key, value_of(item, run)) for key, item in self.items])
        run.values[self.number] = made
        return made

    def _made(self, items: list[tuple[Any, Any]]) -> Any:
        if isinstance(self.like, dict):
            made = copy.copy(self.like)
            made.update(items)
            return made
        values = [value for _, value in items]
        return (
            type(self.like)(*values) if hasattr(self.like, "_fields") else type(self.like)(values)
        )

    def inner(self) -> Iterator[Any]:
        for _, item in self.items:
            yield item


@dataclass(frozen=True)
class Object(Ref):
    """An object that the body made, with tensors or dims as attributes: a copy in each run."""

    like: Any
    attributes: dict[str, Any]

    def get(self, run: Run) -> Any:
        made = copy.copy(self.like)
        for name, item in self.attributes.items():
            object.__setattr__(made, name, value_of(item, run))
        return made

    def inner(self) -> Iterator[Any]:
        yield from self.attributes.values()


@dataclass(frozen=True)
class Late(Ref):
    """A function that is looked up when it runs: while something is traced, another one stands there."""

    owner: Any
    name: str

    def __repr__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    def get(self, run: Run | None = None) -> Callable:
        return getattr(self.owner, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get()(*args, **kwargs)


class LateOfBackend(Late):
    """The same for an operation of the backend that is selected."""

    def get(self, run: Run | None = None) -> Callable:
        return getattr(type(self.owner), self.name)


@dataclass(frozen=True)
class Unknown(Ref):
    """A tensor or dim of which the recording does not know whence it comes."""

    problem: str


# --- what a call gives


class Step(NamedTuple):
    """One step into a nested value."""

    key: Any
    is_attribute: bool = False


@dataclass(frozen=True)
class Result:
    """Where in what a call gives the value of a slot is, and for a tensor which dims of it are new."""

    slot: int
    path: tuple[Step, ...]
    is_tensor: bool = False
    known_dims: tuple[Any, ...] = ()
    new_dims: tuple[tuple[int, Dim], ...] = ()

    def take(self, value: Any, run: Run) -> None:
        """put it into the run"""
        for key, is_attribute in self.path:
            value = getattr(value, key) if is_attribute else value[key]
        if self.is_tensor and isinstance(value, (bool, int, float)):
            value = rf.convert_to_tensor(value)  # layers always give a tensor
        run.values[self.slot] = value
        if self.new_dims and isinstance(value, Tensor):
            known = [value_of(dim, run) for dim in self.known_dims]
            rest = [dim for dim in dims_of(value) if dim not in known]
            for slot, traced in self.new_dims:
                _take_dim(slot, traced, rest, run)


def _take_dim(slot: int, traced: Dim, rest: list[Dim], run: Run) -> None:
    """the dim itself where the tensor has it, else the first of the same size that is left"""
    same = [dim for dim in rest if dim == traced] or [
        dim for dim in rest if dim.dimension == traced.dimension
    ]
    if same:
        run.values[slot] = same[0]
        rest.remove(same[0])


def dims_of(tensor: Tensor) -> list[Dim]:
    """all its dims, and its sparse dim"""
    return [*tensor.dims, *([tensor.sparse_dim] if tensor.sparse_dim is not None else [])]


# --- calls


@dataclass
class Call:
    """A call in a body, with what it gave; or a ``with`` statement, which has a body of its own."""

    function: Callable
    line: str
    is_pure: bool = False  # not needed where nobody reads what it gives
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    filled: list[tuple[Container, list[Result]]] = field(default_factory=list)
    body: list[Call] | None = None
    last_uses: set[int] = field(default_factory=set)

    def run(self, run: Run) -> None:
        """call it again"""
        args = [value_of(arg, run) for arg in self.args]
        kwargs = {name: value_of(arg, run) for name, arg in self.kwargs.items()}
        if self.body is not None:
            with self.function(*args, **kwargs):
                run_calls(self.body, run)
            return
        value = self.function(*args, **kwargs)
        for result in self.results:
            result.take(value, run)
        for container, results in self.filled:
            for result in results:
                result.take(run.values[container.number], run)

    @property
    def slots(self) -> set[int]:
        """those that it fills"""
        results = [*self.results, *(r for _, filled in self.filled for r in filled)]
        return _slots(results)

    @property
    def refs(self) -> list[Ref]:
        """what it reads"""
        return [ref for arg in (*self.args, *self.kwargs.values()) for ref in refs_in(arg)]


def _slots(results: Sequence[Result]) -> set[int]:
    return {slot for r in results for slot in (r.slot, *(slot for slot, _ in r.new_dims))}


def run_calls(calls: Sequence[Call], run: Run) -> None:
    """one after the other; an error names the line of its call in the body"""
    line = ""
    with telling_this_line(lambda: line):
        for call in calls:
            line = call.line
            call.run(run)
            for slot in call.last_uses:
                run.values.pop(slot, None)


class Function(Ref):
    """A function that was given to a call, which traced it; where it did not, the function itself."""

    def __init__(self, original: Callable):
        self.original = original
        self.calls: list[Call] | None = None
        self.inputs: list[Result] = []
        self.output: Any = None

    def get(self, run: Run) -> Callable:
        if self.calls is None:
            return self.original

        def call(*args: Any, **kwargs: Any) -> Any:
            for result in self.inputs:
                result.take((args, kwargs), run)
            run_calls(self.calls or [], run)
            return value_of(self.output, run)

        return call


def needed(calls: Sequence[Call]) -> list[Call]:
    """without those that nobody reads; each knows what it reads as the last one"""
    read: set[int] = set()
    kept = []
    for call in reversed(calls):
        behind = set(read)
        if _keep(call, read):
            call.last_uses = (read | call.slots) - behind
            kept.append(call)
    return kept[::-1]


def _needed_inside(calls: Sequence[Call], read: set[int]) -> list[Call]:
    return [call for call in reversed(calls) if _keep(call, read)][::-1]


def _keep(call: Call, read: set[int]) -> bool:
    """whether it is needed; then what it reads is added"""
    if call.is_pure and not call.slots & read:
        return False
    if call.body is not None:
        call.body = _needed_inside(call.body, read)
    for ref in call.refs:
        if isinstance(ref, Function) and ref.calls is not None:
            read.update(r.number for r in refs_in(ref.output) if isinstance(r, Slot))
            ref.calls = _needed_inside(ref.calls, read)
        elif isinstance(ref, Slot):
            read.add(ref.number)
    return True


def problems(calls: Sequence[Call]) -> Iterator[str]:
    """of all that is unknown, with the line, in the order of the calls"""
    for call in calls:
        yield from problems(call.body or [])
        for ref in call.refs:
            if isinstance(ref, Function):
                yield from problems(ref.calls or [])
                inside = refs_in(ref.output)
                yield from (call.line + r.problem for r in inside if isinstance(r, Unknown))
            elif isinstance(ref, Unknown):
                yield call.line + ref.problem
