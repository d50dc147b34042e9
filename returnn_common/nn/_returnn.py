"""
The one place that touches what RETURNN does not promise to keep.

Each item says in a sentence what it relies on; ``tests/test_nn_returnn.py`` is the contract. When a new RETURNN breaks
something, it breaks there first, with that sentence.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import returnn.frontend as rf
import returnn.frontend.attention as _rf_attention
import returnn.frontend.audio.mel as _rf_mel
import returnn.frontend.run_ctx as _rf_run_ctx
from returnn.config import get_global_config
from returnn.frontend._backend import (
    Backend,
    get_backend_by_raw_tensor_type,
    global_backend,
    register_backend_by_tensor_type,
)
from returnn.frontend.array_ import _masked_select_subset as masked_select_with_batch
from returnn.tensor import Dim, Tensor, batch_dim
from returnn.util.basic import BehaviorVersion

#: Pinned in every generated config: the newest that the oldest supported RETURNN knows.
BEHAVIOR_VERSION = 31


def register(raw_type: type, backend: type[Backend]) -> None:
    """RF finds the backend of a tensor by the type of its raw tensor."""
    register_backend_by_tensor_type(raw_type, backend)


def backend_of(tensor: Tensor) -> type[Backend]:
    """the backend that computes with this tensor: RF's table by raw type, see :func:`register`"""
    return get_backend_by_raw_tensor_type(type(tensor.raw_tensor))


def as_tensor(value: Any, backend: type[Backend], *, dtype: str | None = None) -> Tensor:
    """``value`` as a tensor of ``backend``: RF's functions pass the backend on in the argument ``_backend``"""
    return rf.convert_to_tensor(value, dtype=dtype, _backend=backend)


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
    with attributes_set(
        [
            (owner, name, _with_original(function, getattr(owner, name)))
            for (owner, name), function in functions.items()
        ]
    ):
        yield


@contextlib.contextmanager
def attributes_set(values: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """(owner, name, value): attributes of modules and classes are others for a while; what was inherited is again"""
    before: list[tuple[Any, str, Any, bool]] = []
    try:
        for owner, name, value in values:
            is_class = isinstance(owner, type)
            original = vars(owner).get(name) if is_class else getattr(owner, name)
            before.append((owner, name, original, is_class and name not in vars(owner)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, original, is_inherited in reversed(before):
            if is_inherited:
                delattr(owner, name)
            else:
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


def configured(name: str) -> Any:
    """an option of RETURNN's global config, None where there is none, or it does not say"""
    return get_global_config(return_empty_if_none=True).typed_value(name)


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


# --- dims


class DimOperation(NamedTuple):
    """How dim math made a dim: RETURNN's name of the operation, and its operands."""

    kind: str
    inputs: tuple[Dim, ...]


def base_of(dim: Dim) -> Dim:
    """the one dim that stands for ``dim`` and all its copies: RETURNN's ``get_same_base`` follows its links"""
    return dim.get_same_base()


def operation_of(dim: Dim) -> DimOperation | None:
    """what ``a + b``, ``a // 2``, ... left on the dim: ``derived_from_op`` with ``kind`` and ``inputs``"""
    op = dim.derived_from_op
    return DimOperation(op.kind, tuple(op.inputs)) if op else None


def size_of(dim: Dim) -> Tensor | None:
    """
    The sizes of ``dim``, of any backend; None where nobody set them.

    They live in ``dyn_size_ext``, which RETURNN's public getters take for known.
    """
    return dim.dyn_size_ext


def raw_size_of(dim: Dim) -> Any:
    """the lengths of a dim that has some, as a tensor of their framework"""
    size = size_of(dim)
    assert size is not None, dim
    return size.raw_tensor


def set_size(dim: Dim, size: Tensor | None) -> None:
    """give ``dim`` its sizes: RF makes them, the masks and sizes of dim math of ``dyn_size_ext``"""
    dim.dyn_size_ext = size


def special_dim(name: str, kind: Any) -> Dim:
    """a dim that stands for another one: ``special`` ones are not taken for a dim of a tensor"""
    return Dim(None, name=name, kind=kind, special=True)


def is_special(dim: Dim) -> bool:
    """whether :func:`special_dim`, or RETURNN for its own markers, made it: the attribute ``special``"""
    return bool(dim.special)


def reset_dims(dims: list[Dim]) -> None:
    """
    Forget sizes and masks that a trace left on dims, also on those made from them by dim math.

    ``reset_batch_and_raw`` forgets the raw tensors and the caches; the templates of the sizes stay and go here.
    """
    for dim in dims:  # first: what has read a size keeps it
        if dim.is_dynamic() or dim.is_batch_dim():
            set_size(dim, None)
    for dim in dims:
        dim.reset_batch_and_raw()


# --- a constructed net


def batch_size_of_net(net: Any) -> Any:
    """the TensorFlow placeholder that a feed must fill besides data and lengths: the global batch's ``dim``"""
    return net.extern_data.get_batch_info().dim


def losses_of_net(net: Any) -> dict[str, Any]:
    """
    Each loss, or error, of a ``TFNetwork`` as a TensorFlow scalar, summed over all frames.

    RETURNN's ``LossHolder`` has one value or the other.
    """
    holders, _, _ = net.get_losses_initialized(with_total=False)
    values = {}
    for holder in holders.values():
        loss = holder.get_loss_value()
        values[holder.name] = holder.get_error_value() if loss is None else loss
    return values


def quiet_log() -> None:
    """RETURNN tells every layer on its ``log``, which prints all before anybody has set its verbosity: only errors"""
    from returnn.log import log

    if not log.initialized:
        log.initialize(verbosity=[1])


def quiet_devices() -> None:
    """
    RETURNN's layers ask for the devices when they are constructed, and it prints that it looks for them, and sets up
    thread pools, unless both have happened: ``setup_tf_thread_pools`` and ``get_tf_list_local_devices`` do it once.
    """
    from returnn.tf.util.basic import get_tf_list_local_devices, setup_tf_thread_pools

    setup_tf_thread_pools()
    get_tf_list_local_devices(file=io.StringIO())


class NetLoss(NamedTuple):
    """One loss, or error, of a net: scalars in TensorFlow."""

    total: Any  # summed over all frames
    inverse_frames: Any  # 1 / number of frames, or what custom_inv_norm_factor says
    objective: Any  # its part of what is minimised; None for an error, and for scale 0
    scale: float
    is_mean: bool  # in the objective it is divided by the number of frames

    @property
    def is_trained(self) -> bool:
        return self.objective is not None


def loss_details_of_net(net: Any) -> dict[str, NetLoss]:
    """all about each loss, or error, of a ``TFNetwork``: RETURNN's ``LossHolder`` and its ``loss`` know it"""
    holders, _, _ = net.get_losses_initialized(with_total=False)
    details = {}
    for holder in holders.values():
        value, options = holder.get_loss_value(), holder.loss
        details[holder.name] = NetLoss(
            total=holder.get_error_value() if value is None else value,
            inverse_frames=holder.get_norm_factor(),
            objective=holder.get_loss_value_for_objective(),
            scale=options.scale,
            is_mean=options.use_normalized_loss,
        )
    return details


def effects_of_nets() -> list[Any]:
    """what the layers of all nets in the graph want to be run, though nothing reads it"""
    import returnn.tf.compat as tf_compat

    return list(tf_compat.v1.get_collection(tf_compat.v1.GraphKeys.UPDATE_OPS))


def random_uniform_of_layers() -> tuple[Any, str]:
    """(module, name) of the function with which RETURNN's layers draw random numbers for dropout"""
    import returnn.tf.compat as tf_compat

    return tf_compat.v1, "random_uniform"


def generator_of_layers() -> type:
    """the class whose methods RETURNN's random layer calls"""
    import tensorflow as tf

    return tf.random.Generator


def while_loop_of_layers() -> tuple[Any, str]:
    """(module, name) of the function with which RETURNN's rec layer makes its loop"""
    import tensorflow as tf

    return tf, "while_loop"


def callable_of_session(
    session: Any, placeholders: list[Any], fetches: list[Any], operations: list[Any]
) -> Callable[..., list[Any]]:
    """
    A function of numpy arrays for the placeholders, in the types of these, that gives the values of the fetches.

    TensorFlow's Session has it as a private method, with which its Keras ran graphs.
    """
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.CallableOptions(
        feed=[tensor.name for tensor in placeholders],
        fetch=[tensor.name for tensor in fetches],
        target=[operation.name for operation in operations],
    )
    return session._make_callable_from_options(options)


def forget_names_of_variables(graph: Any) -> None:
    """
    What ``tf.compat.v1.get_variable`` has made in the graph is not given again for its name.

    RETURNN lets it share variables by name; TensorFlow keeps them in this collection of the graph.
    """
    graph.clear_collection(("__variable_store",))


def loops_around(graph: Any) -> list[Any]:
    """
    TensorFlow's contexts of the while loops, from the outermost on, in which operations are made now.

    RETURNN uses the first version of its control flow, in which they are contexts of the graph.
    """
    context, loops = graph._get_control_flow_context(), []
    while context is not None:
        loops += [context] if context.IsWhileContext() else []
        context = context.outer_context
    return loops[::-1]


def on_mark_as_loss(ctx: rf.RunCtx, check: Callable[[Tensor], None]) -> None:
    """``Tensor.mark_as_loss`` calls the method of this name of the run context: ``check`` sees each loss before that"""
    original = ctx.mark_as_loss

    def mark_as_loss(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        check(loss)
        original(loss, *args, **kwargs)

    ctx.mark_as_loss = mark_as_loss


# --- modules whose globals RF's functions look up


mel = _rf_mel  # ``log_mel_filterbank_from_raw`` calls ``mel_filterbank`` as a global of this module
attention = _rf_attention  # RelPosSelfAttention calls ``relative_positional_encoding`` as a global of this module

__all__ = [
    "BEHAVIOR_VERSION",
    "Backend",
    "DimOperation",
    "NetLoss",
    "Tensor",
    "as_tensor",
    "attention",
    "attributes_set",
    "backend_of",
    "base_of",
    "batch_dim",
    "batch_size_of_net",
    "behavior_version",
    "callable_of_session",
    "configured",
    "current_extern_data",
    "effects_of_nets",
    "extern_data_of_step",
    "forget_names_of_variables",
    "generator_of_layers",
    "global_backend",
    "is_special",
    "loops_around",
    "loss_details_of_net",
    "losses_of_net",
    "masked_select_with_batch",
    "mel",
    "on_mark_as_loss",
    "operation_of",
    "quiet_devices",
    "quiet_log",
    "random_uniform_of_layers",
    "raw_size_of",
    "register",
    "replaced",
    "require_behavior_version",
    "reset_dims",
    "run_ctx",
    "select_if_none",
    "selected",
    "set_size",
    "size_of",
    "special_dim",
    "while_loop_of_layers",
    "wrap_once",
]
