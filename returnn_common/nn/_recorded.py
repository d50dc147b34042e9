"""
What was recorded while a stage was traced, and how it runs again: calls, with refs for what differs each time.

A value that a call gives has a number, its slot; a :class:`Run` holds the real values by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ..lines import telling_this_line
from ._nested import Step
from ._recorded_refs import Container, Ref, Run, Slot, Unknown, dims_of, refs_in, value_of

# --- what a call gives


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
        value = self._part_of(value)
        if self.is_tensor and isinstance(value, (bool, int, float)):
            value = rf.convert_to_tensor(value)  # layers always give a tensor
        run.values[self.slot] = value
        if self.new_dims and isinstance(value, Tensor):
            known = [value_of(dim, run) for dim in self.known_dims]
            rest = [dim for dim in dims_of(value) if dim not in known]
            for slot, traced in self.new_dims:
                _take_dim(slot, traced, rest, run)

    def _part_of(self, value: Any) -> Any:
        try:
            for key, is_attribute in self.path:
                value = getattr(value, key) if is_attribute else value[key]
        except (AttributeError, LookupError, TypeError):
            raise ValueError(_OTHER_FORM) from None
        if self.is_tensor and not isinstance(value, (Tensor, bool, int, float)):
            raise ValueError(_OTHER_FORM)
        return value


_OTHER_FORM = (
    "this call gives a value of another form on torch than it gave when the stage was declared"
)


def _take_dim(slot: int, traced: Dim, rest: list[Dim], run: Run) -> None:
    """the dim itself where the tensor has it, else the first of the same size that is left"""
    same = [dim for dim in rest if dim == traced] or [
        dim for dim in rest if dim.dimension == traced.dimension
    ]
    if same:
        run.values[slot] = same[0]
        rest.remove(same[0])


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
