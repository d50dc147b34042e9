"""
Records the calls in the body of a stage while it is traced, so that another backend can run them again.

What is recorded are the outermost calls: of a module, of a function of ``nn``, of an operator. What happens inside of
them is their own affair, on each backend. Functions that were imported by their names before the trace are not seen
themselves; then the calls inside of them are the outermost ones, down to the operations of the backend.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, TensorDict

from ..lines import calling_line
from . import _returnn
from ._graph import Node
from ._recorded import (
    Call,
    Changed,
    Container,
    Data,
    Function,
    Late,
    NewDim,
    Object,
    OfContext,
    Ref,
    Result,
    SizeOf,
    Slot,
    Step,
    Template,
    Unknown,
    dims_of,
    needed,
    refs_in,
)

_F = TypeVar("_F", bound=Callable)

_UNKNOWN_TENSOR = (
    "{} cannot run on torch: no call in the body of the stage has given it; "
    "let the method that computes it return it"
)
_UNKNOWN_DIM = "{} cannot be used on torch: no call in the body of the stage has given it"


class _Traced(NamedTuple):
    """What a tensor was when it was given; what differs later, the body has set."""

    dims: tuple[Dim, ...]
    feature_dim: Dim | None
    sparse_dim: Dim | None
    name: str


def _traced(tensor: Tensor) -> _Traced:
    return _Traced(tensor.dims, tensor.feature_dim, tensor.sparse_dim, tensor.name)


class _Found(NamedTuple):
    """What the arguments of a call have in them, apart from tensors and dims."""

    containers: list[tuple[Any, Container]]  # that the call may fill
    functions: dict[int, Function]  # by id


class Recording:
    """The calls of one trace, as far as they are the outermost ones."""

    def __init__(self, data: TensorDict, ctx: rf.RunCtx):
        self.calls: list[Call] = []
        self._slots: dict[int, int] = {}  # id of a value -> its slot
        self._number = 0
        self._kept: list[Any] = []  # so that no id is used twice
        self._tensors: dict[int, _Traced] = {}  # by slot
        self._nodes: dict[int, int] = {}  # id of a node -> slot of the first tensor with it
        self._data: dict[int, Data] = {}  # by slot
        self._new_dims: dict[int, NewDim] = {}  # by slot
        self._open: set[int] = set()  # ids of objects that are being encoded
        self._fixed: set[int] = set()  # ids of dims that are the same in each run
        names = ("train_flag", "step", "epoch")
        self._of_context = {id(getattr(ctx, name).raw_tensor): name for name in names}
        for name, tensor in data.data.items():
            self.add_data(name, tensor)

    def add_data(self, name: str, tensor: Tensor) -> None:
        """a tensor of the data"""
        slot = self._new_tensor(tensor)
        self._data[slot] = Data(slot, name)
        for dim in dims_of(tensor):
            self._fixed.add(id(dim))
            self._kept.append(dim)

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

    # --- calls

    def call(self, late: Callable, function: Callable, args: Any, kwargs: Any, pure: bool) -> Any:
        """``function(*args, **kwargs)``, recorded as a call of ``late``"""
        args = [list(arg) if isinstance(arg, types.GeneratorType) else arg for arg in args]
        call, found = Call(late, calling_line(), pure), _Found([], {})
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

    def _traced(self, value: Any, found: _Found) -> Any:
        """an argument, in which functions are recorded"""
        if id(value) in found.functions:
            return self._traced_function(found.functions[id(value)])
        if isinstance(value, (dict, list, tuple)) and _contains(value, found.functions):
            return _mapped(value, lambda item: self._traced(item, found))
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
            return _mapped(value, self._inner)
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

    # --- what a call gets

    def encode(self, value: Any, found: _Found | None = None) -> Any:
        """``value``, or what stands for it in each run"""
        if isinstance(value, rf.Parameter):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Node):
            return self._tensor(value.tensor) if value.tensor is not None else value
        if isinstance(value, Dim):
            return self._dim(value)
        if isinstance(value, rf.RunCtx):
            return OfContext()
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self._container(value, found)
        if id(value) in self._slots:
            return Slot(self._slots[id(value)])
        if isinstance(value, numpy.ndarray):
            return value.copy()
        if found is not None and _is_body(value):
            return found.functions.setdefault(id(value), Function(value))
        return self._object(value) if _is_object(value) else _late(value) or value

    def _object(self, value: Any) -> Any:
        """as it is, unless it has tensors or dims of this body as attributes"""
        if id(value) in self._open:
            return value
        self._open.add(id(value))
        held = {name: self.encode(item) for name, item in vars(value).items() if _holds(item)}
        self._open.remove(id(value))
        is_ours = any(type(ref) is not Container for item in held.values() for ref in refs_in(item))
        return Object(value, held) if is_ours else value

    def _container(self, value: Any, found: _Found | None) -> Container:
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        items = tuple((key, self.encode(item, found)) for key, item in pairs)
        like = _emptied(value) if isinstance(value, dict) else value
        container = Container(self._new_number(), like, items)
        if found is not None and isinstance(value, (dict, list)):
            found.containers.append((value, container))
        return container

    def _tensor(self, tensor: Tensor) -> Any:
        slot, node = self._slots.get(id(tensor)), tensor.raw_tensor
        if slot is not None:
            return self._changed(tensor, slot, is_copy=False)
        if node is None:
            return self._template(tensor)
        if not isinstance(node, Node):
            return tensor
        if id(node) in self._of_context:
            return OfContext(self._of_context[id(node)])
        if id(node) in self._nodes:
            return self._changed(tensor, self._nodes[id(node)], is_copy=True)
        if node.cls == "length":
            return SizeOf(self._dim(node.opts["axis"]))
        return Unknown(_UNKNOWN_TENSOR.format(tensor))

    def _changed(self, tensor: Tensor, slot: int, *, is_copy: bool) -> Ref:
        ref: Ref = self._data.get(slot) or Slot(slot)
        before, now = self._tensors[slot], _traced(tensor)
        if set(before.dims) != set(now.dims):
            return Unknown(_UNKNOWN_TENSOR.format(tensor))
        attributes = {
            name: self.encode(getattr(now, name))
            for name in ("feature_dim", "sparse_dim", "name")
            if getattr(now, name) is not getattr(before, name)
            and getattr(now, name) != getattr(before, name)
        }
        return Changed(ref, attributes, is_copy) if attributes else ref

    def _template(self, tensor: Tensor) -> Any:
        dims = tuple(map(self._dim, tensor.dims))
        return Template(tensor, dims) if any(isinstance(dim, Ref) for dim in dims) else tensor

    def _dim(self, dim: Dim) -> Any:
        base = _returnn.base_of(dim)
        for known in (dim, base):
            if id(known) in self._slots:
                slot = self._slots[id(known)]
                return self._new_dims.get(slot) or Slot(slot)
            if id(known) in self._fixed:
                return dim
        if dim.is_batch_dim() or dim.is_static() or _returnn.is_special(dim):
            return dim
        operation, size = _returnn.operation_of(dim), _returnn.size_of(dim)
        if operation:
            is_fixed = not any(isinstance(self._dim(other), Ref) for other in operation.inputs)
            return dim if is_fixed else Unknown(_UNKNOWN_DIM.format(dim))
        if (
            size is not None
            and size.raw_tensor is not None
            and not isinstance(size.raw_tensor, Node)
        ):
            return dim
        length = None if size is None or size.raw_tensor is None else self._tensor(size)
        new = NewDim(self._new_slot(dim), dim, length)
        return self._new_dims.setdefault(new.number, new)

    # --- what a call gives

    def _results(self, value: Any) -> list[Result]:
        """the dims in it, then the tensors, with the dims that only they have, and other objects"""
        found = list(_walk(value, (), set()))
        dims = [
            Result(self._new_slot(item), path)
            for path, item in found
            if isinstance(item, Dim) and not self._is_fixed(item)
        ]
        others = [
            self._tensor_result(item, path)
            if isinstance(item, Tensor)
            else Result(self._new_slot(item), path)
            for path, item in found
            if not isinstance(item, Dim)
        ]
        return dims + others

    def _is_fixed(self, dim: Dim) -> bool:
        return dim.is_batch_dim() or id(dim) in self._fixed or _returnn.is_special(dim)

    def _tensor_result(self, tensor: Tensor, path: tuple[Step, ...]) -> Result:
        known: list[Any] = []
        new: list[tuple[int, Dim]] = []
        for dim in dims_of(tensor):
            if self._is_fixed(dim) or id(dim) in self._slots:
                known.append(self._dim(dim))
            elif not any(dim is other for _, other in new):
                new.append((self._new_slot(dim), dim))
        return Result(self._new_tensor(tensor), path, True, tuple(known if new else ()), tuple(new))

    def _new_tensor(self, tensor: Tensor) -> int:
        slot = self._new_slot(tensor)
        self._tensors[slot] = _traced(tensor)
        node = tensor.raw_tensor
        if isinstance(node, Node) and not node.cls.startswith("variable"):
            self._nodes.setdefault(id(node), slot)
        return slot

    def _new_slot(self, value: Any) -> int:
        if id(value) not in self._slots:
            self._slots[id(value)] = self._new_number()
            self._kept.append(value)
        return self._slots[id(value)]

    def _new_number(self) -> int:
        self._number += 1
        return self._number


def _is_body(value: Any) -> bool:
    """whether it is a function of the user's, to be recorded as well"""
    functions = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(value, functions) and _late(value) is None


def _late(value: Any) -> Late | None:
    """of a function of RF, which is another one while a stage is traced"""
    return vars(value).get("_late") if isinstance(value, types.FunctionType) else None


def _contents(value: Any) -> list[Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(key, id(item)) for key, item in items]


def _walk(
    value: Any, path: tuple[Step, ...], seen: set[int]
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """all tensors and dims in a nested value, and the objects that have some as attributes"""
    if isinstance(value, (rf.Parameter, rf.Module)) or id(value) in seen:
        return
    if isinstance(value, (Tensor, Dim)):
        yield path, value
        return
    is_object = False
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif _is_object(value):
        items, is_object = list(vars(value).items()), True
    else:
        return
    seen.add(id(value))
    inner = [
        found for key, item in items for found in _walk(item, (*path, Step(key, is_object)), seen)
    ]
    if is_object and inner:
        yield path, value
    yield from inner


def _emptied(value: dict) -> dict:
    made = copy.copy(value)
    made.clear()
    return made


def _mapped(value: Any, function: Callable) -> Any:
    """a dict, list or tuple of what ``function`` gives for its items"""
    if isinstance(value, dict):
        made = _emptied(value)
        made.update((key, function(item)) for key, item in value.items())
        return made
    items = [function(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _contains(value: Any, ids: Mapping[int, Any]) -> bool:
    if isinstance(value, (dict, list, tuple)):
        items = value.values() if isinstance(value, dict) else value
        return any(_contains(item, ids) for item in items)
    return id(value) in ids


def _holds(value: Any) -> bool:
    """whether it is a tensor or dim, or has some in it"""
    if isinstance(value, (dict, list, tuple)):
        return any(map(_holds, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (Tensor, Dim)) and not isinstance(value, rf.Parameter)


def _is_object(value: Any) -> bool:
    """whether it may hold tensors as attributes"""
    others = (type, types.ModuleType, types.FunctionType, types.MethodType, functools.partial)
    return hasattr(value, "__dict__") and not isinstance(value, (rf.Module, rf.RunCtx, *others))


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

    call._late = late  # type: ignore[attr-defined]
    return call


def context_recorder(late: Late, function: Callable) -> Callable:
    """the same for a function that gives the context of a ``with`` statement"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _OUTERMOST:
            return function(*args, **kwargs)
        return _OUTERMOST[0].inside(late, function, args, kwargs)

    call._late = late  # type: ignore[attr-defined]
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
