"""
The values that are recorded: what a call gets and gives, as refs to what stands there in each run.
"""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, TensorDict

from . import _returnn
from ._graph import Node
from ._nested import Step, emptied, holds, is_object, items_of, tensors_and_dims
from ._recorded import Function, Result
from ._recorded_refs import (
    Changed,
    Container,
    Data,
    Late,
    NewDim,
    Object,
    OfContext,
    Ref,
    SizeOf,
    Slot,
    Template,
    Unknown,
    dims_of,
    refs_in,
)

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


class Found(NamedTuple):
    """What the arguments of a call have in them, apart from tensors and dims."""

    containers: list[tuple[Any, Container]]  # that the call may fill
    functions: dict[int, Function]  # by id


class Values:
    """All tensors, dims and objects that a trace has given so far, each with its slot."""

    def __init__(self, data: TensorDict, ctx: rf.RunCtx):
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

    # --- what a call gets

    def encode(self, value: Any, found: Found | None = None) -> Any:
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
        return self._object(value) if is_object(value) else _late(value) or value

    def _object(self, value: Any) -> Any:
        """as it is, unless it has tensors or dims of this body as attributes"""
        if id(value) in self._open:
            return value
        self._open.add(id(value))
        held = {name: self.encode(item) for name, item in vars(value).items() if holds(item)}
        self._open.remove(id(value))
        is_ours = any(type(ref) is not Container for item in held.values() for ref in refs_in(item))
        return Object(value, held) if is_ours else value

    def _container(self, value: Any, found: Found | None) -> Container:
        items = tuple((key, self.encode(item, found)) for key, item in items_of(value))
        like = emptied(value) if isinstance(value, dict) else value
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
        found = list(tensors_and_dims(value, (), set()))
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
    """whether it is a function to be recorded as well: of the user's, or one that has tensors from around it"""
    functions = (types.FunctionType, types.MethodType, functools.partial)
    if not isinstance(value, functions) or _late(value) is not None:
        return False
    is_rf = getattr(value, "__module__", "").startswith("returnn.")
    return not is_rf or getattr(value, "__closure__", None) is not None


def _late(value: Any) -> Late | None:
    """of a function of RF, which is another one while a stage is traced"""
    late = vars(value).get("late") if isinstance(value, types.FunctionType) else None
    return late if isinstance(late, Late) else None
