"""What stands for the values in a recorded call: each :class:`Ref` gives the value of one :class:`Run`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._nested import rebuilt


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
        made = rebuilt(self.like, [(key, value_of(item, run)) for key, item in self.items])
        run.values[self.number] = made
        return made

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


def dims_of(tensor: Tensor) -> list[Dim]:
    """all its dims, and its sparse dim"""
    return [*tensor.dims, *([tensor.sparse_dim] if tensor.sparse_dim is not None else [])]
