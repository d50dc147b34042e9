"""
Several processes that train one model together, as ``torchrun`` starts them: who they are, and what they exchange.

Gradients are added up behind the backward pass, in one flat buffer of each type. Torch's ``DistributedDataParallel``
does not fit: it wraps the ``forward`` of one ``torch.nn.Module``, and a session has any number of step functions over
one RF module; it waits for the gradients of all parameters, and a step may differentiate for some (``update=``), or its
losses depend on some; it takes the mean over ranks, and the mean over the frames of all ranks is wanted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..lines import calling_line

T = TypeVar("T")


class Alone:
    """One process, which has nothing to exchange."""

    rank = 0
    size = 1

    def gather(self, value: T, what: str) -> list[T]:
        """the values of all ranks, which must be at the same place of the program: ``what`` they are at"""
        return [value]

    def on_first(self, function: Callable[[], T], what: str) -> T:
        """what ``function`` gives on rank 0, or the error that it raises there; the other ranks wait for it"""
        return function()

    def broadcast(self, tensors: Iterable[Any], what: str) -> None:
        """the values of rank 0 into the tensors of all ranks"""

    def add_up(self, tensors: Sequence[Any]) -> list[Any]:
        """the sum of each tensor over all ranks, which give the same shapes"""
        return list(tensors)

    def share(self, items: Iterable[T]) -> Iterator[T]:
        """of each round of as many items as there are ranks, this one's; an incomplete last round is left out"""
        return iter(items)

    def close(self) -> None:
        """leave the others"""


class Ranks(Alone):
    """This process and the others, in torch's process group, which is made where there is none."""

    groups_made = 0
    sessions = 0  # that use the group which was made here

    def __init__(self) -> None:
        from torch import distributed

        if not distributed.is_initialized():
            _make_group(Ranks.groups_made)
            Ranks.groups_made += 1
            Ranks.sessions = 0
            self._is_open = True
        else:
            self._is_open = Ranks.sessions > 0
        Ranks.sessions += self._is_open
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def gather(self, value: T, what: str) -> list[T]:
        from torch import distributed

        answers: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(answers, (what, value))
        except RuntimeError as error:
            raise RuntimeError(
                f"{calling_line()}rank {self.rank} is at {what}, and of the other processes one has failed or ended"
            ) from error
        if len({place for place, _ in answers}) > 1:
            places = "; ".join(f"rank {i} is at {place}" for i, (place, _) in enumerate(answers))
            raise RuntimeError(
                f"{calling_line()}all processes must do the same in the same order, but {places}"
            )
        return [value for _, value in answers]

    def on_first(self, function: Callable[[], T], what: str) -> T:
        result: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                result = function()
            except Exception as raised:
                error = raised
        answer = self.gather((result, _to_send(error)), what)[0]
        if error is None:
            result, error = answer
        if error is not None:
            raise error
        return result

    def broadcast(self, tensors: Iterable[Any], what: str) -> None:
        from torch import distributed

        self.gather(None, what)
        for tensor in tensors:
            distributed.broadcast(tensor.detach(), src=0)

    def add_up(self, tensors: Sequence[Any]) -> list[Any]:
        import torch

        sums = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[i].detach().reshape(-1) for i in places])
            torch.distributed.all_reduce(flat)
            for i, part in zip(places, flat.split([tensors[i].numel() for i in places])):
                sums[i] = part.view_as(tensors[i])
        return sums

    def share(self, items: Iterable[T]) -> Iterator[T]:
        for number, item in enumerate(items):
            if number % self.size == self.rank:
                own = item
            if number % self.size == self.size - 1:
                yield own

    def close(self) -> None:
        from torch import distributed

        if self._is_open:
            self._is_open = False
            Ranks.sessions -= 1
            if not Ranks.sessions:
                distributed.destroy_process_group()


def connect(backend: str) -> Alone:
    """
    The processes of which this is one: those of torch's process group, or those that ``torchrun`` has started.

    Raises ValueError where there are several and the backend trains in one.
    """
    size = _world_size()
    if size == 1:
        return Alone()
    if backend != "torch":
        raise ValueError(
            f"Session: this is one of {size} processes that torchrun has started, and the backend {backend!r} "
            f"trains in one; use backend='torch', or start it without torchrun"
        )
    return Ranks()


def on_first(function: Callable[[], T], what: str) -> T:
    """:meth:`Alone.on_first` for what has no session"""
    ranks = connect("torch")
    try:
        return ranks.on_first(function, what)
    finally:
        ranks.close()


def _world_size() -> int:
    """of a process group that there is, else of the one to come; does not import torch"""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def _make_group(number: int) -> None:
    """
    ``number`` of those before in this process: torchrun's store keeps the addresses of earlier groups, also of those
    before it started the processes again, so that each needs names of its own.
    """
    import torch
    from torch import distributed

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _select_gpu()
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, rank, size = next(distributed.rendezvous("env://"))
    distributed.init_process_group(
        # what is small and on the CPU never waits for the GPU
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=distributed.PrefixStore(f"returnn_common/{restarts}/{number}", store),
        rank=rank,
        world_size=size,
    )


def _select_gpu() -> None:
    """the GPU of this process, by its number among the processes of this machine"""
    import torch

    place, number = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if place >= number:
        raise ValueError(
            f"Session: this is process {place + 1} on this machine, which has {number} GPUs; start at most "
            f"{number} with --nproc_per_node, or train on CPUs with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(place)


def _to_send(error: Exception | None) -> Exception | None:
    """an error that can be pickled and read again"""
    if error is None or type(error).__module__ == "builtins":
        return error
    return RuntimeError(f"on rank 0: {type(error).__name__}: {error}")


__all__ = ["Alone", "Ranks", "connect", "on_first"]
