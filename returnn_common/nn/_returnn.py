"""
The one place that touches what RETURNN does not promise to keep.

Each item says in a sentence what it relies on; ``tests/test_nn_returnn.py`` is the contract. When a new RETURNN breaks
something, it breaks there first, with that sentence.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import returnn.frontend as rf
import returnn.frontend.attention as _rf_attention
import returnn.frontend.audio.mel as _rf_mel
import returnn.frontend.run_ctx as _rf_run_ctx
from returnn.frontend._backend import Backend, global_backend, register_backend_by_tensor_type
from returnn.frontend.array_ import _masked_select_subset as masked_select_with_batch
from returnn.tensor import Dim, Tensor, batch_dim
from returnn.util.basic import BehaviorVersion

#: Pinned in every generated config: the newest that the oldest supported RETURNN knows.
BEHAVIOR_VERSION = 31


def register(raw_type: type, backend: type[Backend]) -> None:
    """RF finds the backend of a tensor by the type of its raw tensor."""
    register_backend_by_tensor_type(raw_type, backend)


def select_if_none(backend: type[Backend]) -> None:
    """RF's global backend is one object whose class says which; its class is ``Backend`` while none is selected."""
    if type(global_backend) is Backend:
        global_backend.__class__ = backend


def require_behavior_version() -> None:
    """
    RF reads the behavior version when a module is built, too (whether attention dropout is shared
    over time, ...), so it
    must be right before a config is loaded. A version that the process has chosen itself stays.
    """
    if not BehaviorVersion.is_set():
        BehaviorVersion.set_min_behavior_version(BEHAVIOR_VERSION)


@contextlib.contextmanager
def selected(backend: type[Backend]) -> Iterator[None]:
    """the global backend for a while"""
    before = type(global_backend)
    global_backend.__class__ = backend
    try:
        yield
    finally:
        global_backend.__class__ = before


@contextlib.contextmanager
def behavior_version() -> Iterator[None]:
    """our pinned behavior version for a while, whatever the process has chosen"""
    before = BehaviorVersion._get_state()
    BehaviorVersion._reset((BEHAVIOR_VERSION, 0))
    try:
        yield
    finally:
        BehaviorVersion._reset(before)


@contextlib.contextmanager
def run_ctx(task: str, **options: Any) -> Iterator[rf.RunCtx]:
    """RF's run context of one step; losses and outputs are collected there"""
    before = _rf_run_ctx._run_ctx
    if task == "train":
        rf.init_train_step_run_ctx(**options)
    else:
        options.pop("train_flag", None)
        rf.init_forward_step_run_ctx(**options)
    try:
        yield rf.get_run_ctx()
    finally:
        _rf_run_ctx._run_ctx = before


@contextlib.contextmanager
def replaced(functions: dict[tuple[Any, str], Callable]) -> Iterator[None]:
    """
    RF's modules look functions and methods up by name when they run, so a replacement in the module or class counts.

    ``functions`` maps (owner, name) to a function that gets the original as its first argument.
    """
    originals = {(owner, name): getattr(owner, name) for owner, name in functions}
    try:
        for (owner, name), function in functions.items():
            setattr(owner, name, _with_original(function, originals[owner, name]))
        yield
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


def wrap_once(owner: Any, name: str, function: Callable) -> None:
    """
    ``Tensor`` is RETURNN's own class; its method is wrapped when ``nn`` is imported, by whichever
    copy comes first.
    """
    original = getattr(owner, name)
    if not getattr(original, "_returnn_common", False):
        wrapped = _with_original(function, original)
        wrapped._returnn_common = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)


def _with_original(function: Callable, original: Callable) -> Callable:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return call


_extern_data: list[Any] = []


@contextlib.contextmanager
def extern_data_of_step(data: Any) -> Iterator[None]:
    """what ``nn.extern_data(name)`` gives while the step runs"""
    _extern_data.append(data)
    try:
        yield
    finally:
        _extern_data.pop()


def current_extern_data() -> dict[str, Tensor] | None:
    """the data of the step that runs, by name"""
    return _extern_data[-1].data if _extern_data else None


def reset_dims(dims: list[Dim]) -> None:
    """forget sizes and masks that a trace left on dims, also on those made from them by dim math"""
    for dim in dims:
        dim.reset_batch_and_raw()
        if dim.is_dynamic() or dim.is_batch_dim():
            dim.dyn_size_ext = None


mel = _rf_mel  # ``log_mel_filterbank_from_raw`` calls ``mel_filterbank`` as a global of this module
attention = _rf_attention  # RelPosSelfAttention calls ``relative_positional_encoding`` as a global of this module

__all__ = [
    "BEHAVIOR_VERSION",
    "Backend",
    "Tensor",
    "attention",
    "batch_dim",
    "behavior_version",
    "current_extern_data",
    "extern_data_of_step",
    "global_backend",
    "masked_select_with_batch",
    "mel",
    "register",
    "replaced",
    "require_behavior_version",
    "reset_dims",
    "run_ctx",
    "select_if_none",
    "selected",
    "wrap_once",
]
