"""
Which functions are recorded while a stage is traced: methods of modules, RF's functions, operators, and the backend's
operations, for whatever calls those past the others.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import returnn.frontend as rf
from returnn.tensor import Dim, TensorDict

from . import _returnn
from ._backend import LayersBackend
from ._recorded_refs import Late, LateOfBackend
from ._recording import Recording, context_recorder, recorder, recording
from ._replaced import REPLACED

#: RF's functions that compute nothing: they ask, set defaults, or make modules.
_NO_OPERATIONS = ("build_", "get_", "init_", "register_", "remove_", "reset_", "select_", "weight_")
_SETTERS = {
    "set_amp_policy",
    "set_default_device",
    "set_default_float_dtype",
    "set_random_seed",
    "set_random_state",
    "set_static_traceable",
}
#: RF's modules whose functions neither draw random numbers nor change anything.
_PURE = {
    f"returnn.frontend.{name}" for name in ("array_", "const", "dims", "dtype", "math_", "reduce")
}
_TENSOR_METHODS = {
    "assign",
    "assign_add",
    "get_sequence_mask_tensor",
    "mark_as_default_output",
    "mark_as_loss",
    "mark_as_output",
}
_DIM_METHODS = {
    "ceildiv_left",
    "ceildiv_right",
    "copy",
    "copy_from",
    "declare_same_as",
    "derive_from",
    "div_left",
    "div_right",
    "get_dim_value_tensor",
    "get_dyn_size_ext_for_device",
    "get_mask",
    "get_size_tensor",
    "sub_left",
    "sub_right",
}
_EFFECTS = {"assign", "assign_add", "copy_from", "declare_same_as", "derive_from"}
_CONTEXT_METHODS = (
    "get_epoch_tensor",
    "get_step_tensor",
    "is_train_flag_enabled",
    "mark_as_loss",
    "mark_as_output",
    "train_flag_ctx",
)
#: Of modules: to handle them, not to compute.
_MODULE_BASE = set(vars(rf.Module)) - {"__call__", "default_initial_state"}


class _Watched(NamedTuple):
    owner: Any
    name: str
    function: Callable
    is_pure: bool = False

    def wrapped(self) -> Any:
        """what takes its place"""
        is_rf = not (isinstance(self.owner, type) and issubclass(self.owner, rf.Module))
        return (_kept_wrapper if is_rf else _wrapper)(*self)


def _wrapper(owner: Any, name: str, function: Callable, is_pure: bool) -> Any:
    if owner is LayersBackend:
        late: Late = LateOfBackend(_returnn.global_backend, name)
        return staticmethod(recorder(late, function, pure=is_pure))
    if inspect.isgeneratorfunction(inspect.unwrap(function)):
        return context_recorder(Late(owner, name), function)
    return recorder(Late(owner, name), function, pure=is_pure)


_kept_wrapper = functools.lru_cache(maxsize=512)(_wrapper)


@contextlib.contextmanager
def recording_calls(data: TensorDict, ctx: rf.RunCtx) -> Iterator[Recording]:
    """a recording of the outermost calls inside"""
    wrappers: dict[int, Any] = {}  # one function has one, whatever its names: RF compares methods
    values = []
    for watched in _watched():
        if id(watched.function) not in wrappers:
            wrappers[id(watched.function)] = watched.wrapped()
        values.append((watched.owner, watched.name, wrappers[id(watched.function)]))
    with _returnn.attributes_set(values), recording(data, ctx) as found:
        yield found


def _watched() -> list[_Watched]:
    found = [*_of_modules(), *_of_rf(), *_of_tensors(), *_of_backend()]
    names = {(id(w.owner), w.name) for w in found}
    for owner, name in REPLACED:
        if (id(owner), name) not in names:
            found.append(_Watched(owner, name, getattr(owner, name)))
    return found


def _of_modules() -> Iterator[_Watched]:
    classes = [rf.Module, *dict.fromkeys(_subclasses(rf.Module))]
    methods = [(cls, name, f) for cls in classes for name, f in vars(cls).items() if _is_method(f)]
    watched = {id(f) for _, name, f in methods if _is_public(name)}
    for cls, name, function in methods:
        if id(function) in watched:
            yield _Watched(cls, name, function)


def _is_public(name: str) -> bool:
    return name == "__call__" or not (name.startswith("_") or name in _MODULE_BASE)


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _is_method(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and not inspect.isgeneratorfunction(function)


def _of_rf() -> Iterator[_Watched]:
    for module in (rf, rf.audio, rf.nested):
        for name, function in vars(module).items():
            is_rf = getattr(function, "__module__", "").startswith("returnn.frontend")
            if not is_rf or not isinstance(function, types.FunctionType):
                continue
            is_operation = not name.startswith(("_", *_NO_OPERATIONS)) and name not in _SETTERS
            if is_operation and not _is_activation(function):
                yield _Watched(module, name, function, function.__module__ in _PURE)


@functools.lru_cache(maxsize=512)
def _is_activation(function: Any) -> bool:
    """whether it is an elementwise function, which is also passed on and compared; the backend's are watched instead"""
    is_math = function.__module__ == "returnn.frontend.math_"
    return is_math and len(inspect.signature(function).parameters) == 1


def _of_tensors() -> Iterator[_Watched]:
    for cls in (c for c in rf.Parameter.__mro__ if c.__module__.startswith("returnn.")):
        for name in list(vars(cls)):
            if name in _TENSOR_METHODS or name.startswith("copy") or _is_operator(name):
                pure = not name.startswith(("assign", "mark_as"))
                yield _Watched(cls, name, getattr(cls, name), pure)
    for cls in (c for c in Dim.__mro__ if c.__module__.startswith("returnn.")):
        for name in list(vars(cls)):
            if name in _DIM_METHODS or (_is_operator(name) and name not in _COMPARISONS):
                yield _Watched(cls, name, getattr(cls, name), name not in _EFFECTS)
    for name in _CONTEXT_METHODS:
        yield _Watched(rf.RunCtx, name, getattr(rf.RunCtx, name))


_COMPARISONS = {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_OPERATORS = {
    *_COMPARISONS,
    *(f"__{name}__" for name in ("neg", "invert", "abs", "ceil", "floor")),
    *(
        f"__{side}{name}__"
        for side in ("", "r")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or")
    ),
}


def _is_operator(name: str) -> bool:
    return name in _OPERATORS


def _of_backend() -> Iterator[_Watched]:
    for name in dir(LayersBackend):
        if name in _BACKEND_OPERATIONS:
            pure = name not in ("cond", "parameter_assign", "random", "while_loop", "batch_norm")
            yield _Watched(LayersBackend, name, getattr(LayersBackend, name), pure)


_BACKEND_OPERATIONS = {
    "activation",
    "apply_rope",
    "batch_norm",
    "cast",
    "clip_by_value",
    "combine",
    "compare",
    "concat",
    "concat_seq_wise",
    "cond",
    "conv",
    "convert_to_tensor",
    "copy",
    "ctc_loss",
    "cumsum",
    "expand_dim",
    "flip_no_mask",
    "full",
    "gather",
    "is_finite",
    "is_infinite",
    "is_neg_infinite",
    "lerp",
    "log_softmax",
    "lstm",
    "masked_select",
    "matmul",
    "merge_dims",
    "pad",
    "parameter_assign",
    "pool",
    "random",
    "range_over_dim",
    "reduce",
    "repeat",
    "replace_dim",
    "reshape",
    "safe_log",
    "scaled_dot_product_attention",
    "scaled_gradient",
    "scaled_gradient_ext",
    "scatter",
    "set_requires_gradient",
    "set_sparse_dim",
    "slice",
    "slice_update",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "split",
    "split_dims",
    "squeeze",
    "stack",
    "stft",
    "stop_gradient",
    "top_k",
    "transposed_conv",
    "unstack",
    "where",
    "while_loop",
}


__all__ = ["recording_calls"]
