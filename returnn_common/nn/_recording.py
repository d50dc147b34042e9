"""
Records the calls in the body of a stage while it is traced, so that another backend can run them again.

What is recorded are the outermost calls: of a module, of a function of ``nn``, of an operator. What happens inside of
them is their own affair, on each backend. Functions that were imported by their names before the trace are not seen
themselves; then the calls inside of them are the outermost ones, down to the operations of the backend.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import returnn.frontend as rf
from returnn.tensor import Tensor, TensorDict

from ..lines import calling_line
from ._nested import contains, items_of, mapped
from ._recorded import Call, Function, needed
from ._recorded_refs import Late
from ._recorded_values import Found, Values

_F = TypeVar("_F", bound=Callable)


class Recording(Values):
    """The calls of one trace, as far as they are the outermost ones."""

    def __init__(self, data: TensorDict, ctx: rf.RunCtx):
        super().__init__(data, ctx)
        self.calls: list[Call] = []

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """what is called inside is not recorded"""
        before, _OUTERMOST[:] = list(_OUTERMOST), []
        try:
            yield
        finally:
            _OUTERMOST[:] = before

    def needed_calls(self) -> list[Call]:
        """what another backend must run"""
        return needed(self.calls)

    def call(self, late: Callable, function: Callable, args: Any, kwargs: Any, pure: bool) -> Any:
        """``function(*args, **kwargs)``, recorded as a call of ``late``"""
        args = [list(arg) if isinstance(arg, types.GeneratorType) else arg for arg in args]
        call, found = Call(late, calling_line(), pure), Found([], {})
        call.args = tuple(self.encode(arg, found) for arg in args)
        call.kwargs = {name: self.encode(arg, found) for name, arg in kwargs.items()}
        before = [_contents(value) for value, _ in found.containers]
        with self.paused():
            value = function(
                *(self._traced(arg, found) for arg in args), **self._traced(kwargs, found)
            )
            value = self._new_tensors_in(value)
        call.results = self._results(value)
        for (filled, container), contents in zip(found.containers, before):
            if _contents(filled) != contents:
                call.filled.append((container, self._results(filled)))
        self.calls.append(call)
        return value

    def _traced(self, value: Any, found: Found) -> Any:
        """an argument, in which functions are recorded"""
        if id(value) in found.functions:
            return self._traced_function(found.functions[id(value)])
        if isinstance(value, (dict, list, tuple)) and contains(value, found.functions):
            return mapped(value, lambda item: self._traced(item, found))
        return value

    def _new_tensors_in(self, value: Any) -> Any:
        """where a function gives a tensor that it got, or gave before, it may be another one on another backend"""
        if isinstance(value, Tensor):
            return self._inner(value)
        if type(value) is tuple:
            return tuple(self._inner(v) if isinstance(v, Tensor) else v for v in value)
        return value

    def _traced_function(self, function: Function) -> Callable:
        """the function, which is recorded where the call that got it calls it"""

        @functools.wraps(function.original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _OUTERMOST:  # called later, as any function
                return function.original(*args, **kwargs)
            args, kwargs = self._inner(args), self._inner(kwargs)
            outer, self.calls = self.calls, []
            _OUTERMOST.append(self)
            try:
                inputs = self._results((args, kwargs))
                value = function.original(*args, **kwargs)
                if function.calls is None:
                    function.inputs, function.output = inputs, self.encode(value)
                    function.calls = self.calls
            finally:
                self.calls = outer
                _OUTERMOST.clear()
            return value

        return call

    def _inner(self, value: Any) -> Any:
        """arguments of such a function: a tensor that is known outside is another one inside"""
        if isinstance(value, Tensor) and not isinstance(value, rf.Parameter):
            return Tensor.copy(value) if id(value) in self._slots else value
        if isinstance(value, (dict, list, tuple)):
            return mapped(value, self._inner)
        return value

    @contextlib.contextmanager
    def inside(self, late: Callable, function: Callable, args: Any, kwargs: Any) -> Iterator[Any]:
        """``with function(*args, **kwargs)``, recorded with what is called in it"""
        call = Call(late, calling_line(), body=[])
        call.args = tuple(map(self.encode, args))
        call.kwargs = {name: self.encode(arg) for name, arg in kwargs.items()}
        self.calls.append(call)
        assert call.body is not None
        outer, self.calls = self.calls, call.body
        try:
            with function(*args, **kwargs) as value:
                yield value
        finally:
            self.calls = outer


def _contents(value: Any) -> list[Any]:
    return [(key, id(item)) for key, item in items_of(value)]


# --- functions that are recorded

#: The recording that goes on; empty inside of a call that it records.
_OUTERMOST: list[Recording] = []


@contextlib.contextmanager
def recording(data: TensorDict, ctx: rf.RunCtx) -> Iterator[Recording]:
    """calls of what :func:`recorder` and :func:`recorded` made are recorded"""
    found = Recording(data, ctx)
    _OUTERMOST.append(found)
    try:
        yield found
    finally:
        _OUTERMOST.clear()


def recorder(late: Late, function: Callable, *, pure: bool) -> Callable:
    """``function``, of which outermost calls are recorded"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _OUTERMOST:
            return function(*args, **kwargs)
        return _OUTERMOST[0].call(late, function, args, kwargs, pure)

    call.late = late  # type: ignore[attr-defined]
    return call


def context_recorder(late: Late, function: Callable) -> Callable:
    """the same for a function that gives the context of a ``with`` statement"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _OUTERMOST:
            return function(*args, **kwargs)
        return _OUTERMOST[0].inside(late, function, args, kwargs)

    call.late = late  # type: ignore[attr-defined]
    return call


def recorded(function: _F) -> _F:
    """for functions of our own, which make layers past the backend's operations"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _OUTERMOST:
            return function(*args, **kwargs)
        return _OUTERMOST[0].call(function, function, args, kwargs, False)

    return call  # type: ignore[return-value]


__all__ = ["Recording", "context_recorder", "recorded", "recorder", "recording"]
