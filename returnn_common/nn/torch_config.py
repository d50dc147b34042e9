"""A config for RETURNN's torch engine: it imports the model and the step, which run there as they are."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from returnn.tensor import Dim, Tensor

from ._returnn import BEHAVIOR_VERSION, is_special
from ._text import Dims, array_imports, code
from .lowering import check_task, extern_options, with_feature_dim

_TEMPLATE = '''#!returnn.py
"""RETURNN config for the torch backend, made by returnn_common; it imports the model and the step."""

{imports}

backend = "torch"
behavior_version = {behavior_version}

{dims}

extern_data = {extern_data}


def get_model(**_):
    return {call}


{step}

{settings}
'''


def torch_config(
    get_model: Callable, step: Callable, extern_data: Mapping[str, Any], **settings: Any
) -> str:
    """
    The config text for ``python -m returnn FILE`` with ``backend = "torch"``.

    ``get_model`` and ``step`` are functions of a module, or ``functools.partial`` of such with plain arguments;
    ``get_model`` is called without further arguments, ``step(*, model, extern_data, **_)`` by RETURNN. Dims of
    ``extern_data`` that are globals of their modules are imported from there, so that the model
    meets the very dims it was written with; all others are made anew. ``settings`` are RETURNN's
    options; ``task`` is ``train`` by default.

    Raises ValueError for lambdas, closures and what is defined in ``__main__``: the new process could not import them.
    """
    task = settings.setdefault("task", "train")
    check_task(task, "nn.torch_config")
    make, model_args = _import_path(get_model, "get_model")
    run, step_args = _import_path(step, "step")
    imported = _module_dims([make[0], run[0]])
    dims = _TorchDims({"extern_data", "get_model", *settings}, imported)
    tensors = {
        name: with_feature_dim(_template(name, value)) for name, value in extern_data.items()
    }
    extern_code = code({name: extern_options(tensor) for name, tensor in tensors.items()}, dims)
    call = f"_make_model({_arguments(model_args, dims)})"
    settings_code = "\n".join(f"{key} = {code(value, dims)}" for key, value in settings.items())
    body = f"{call}\n{settings_code}\n{_arguments(step_args, dims)}"
    imports = [*array_imports(body), _imports(make, run, dims)]
    return _TEMPLATE.format(
        imports="\n".join(imports),
        behavior_version=BEHAVIOR_VERSION,
        dims="\n".join(dims.lines),
        extern_data=extern_code,
        call=call,
        step=_step_code(task, step_args, dims),
        settings=settings_code,
    ).replace("\n\n\n\n", "\n\n\n")


class _TorchDims(Dims):
    """dims without TensorFlow, and those that a module defines by their names there"""

    def __init__(self, reserved: set[str], imported: dict[str, tuple[str, Dim]]):
        super().__init__(reserved | set(imported))
        self.imported = imported
        self.used: dict[str, str] = {}

    def ref(self, dim: Dim) -> str:
        for name, (module, known) in self.imported.items():
            if known is dim:
                self.used[name] = module
                return name
        return super().ref(dim)

    def _definition(self, dim: Dim, *, name: str) -> str:
        text = super()._definition(dim, name=name)
        for function, kind in (("FeatureDim(", "Feature"), ("SpatialDim(", "Spatial")):
            if text.startswith(function):
                size = dim.dimension
                return f"Dim({size}, name={code(name, self)}, kind=Dim.Types.{kind})"
        return text


def _template(name: str, value: Any) -> Tensor:
    return value.copy_template(name=name) if isinstance(value, Tensor) else Tensor(name, **value)


def _import_path(function: Callable, what: str) -> tuple[tuple[str, str], tuple[tuple, dict]]:
    """(module, name) and arguments of a function that another process can import"""
    args: tuple = ()
    kwargs: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        args, kwargs, function = function.args, function.keywords, function.func
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", repr(function))
    problem = None
    if module == "__main__":
        problem = "is defined in __main__; move it into a module"
    elif "<lambda>" in name:
        problem = "is a lambda; give a function of a module"
    elif not module or "<locals>" in name or _look_up(module, name) is not function:
        problem = "is no function of a module (a closure or a method of an object); give one that can be imported"
    if problem:
        raise ValueError(
            f"nn.torch_config: {what} {name!r} {problem}, or functools.partial of such"
        )
    return (module, name), (args, kwargs)


def _look_up(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _module_dims(modules: list[str]) -> dict[str, tuple[str, Dim]]:
    found: dict[str, tuple[str, Dim]] = {}
    for module in dict.fromkeys(modules):
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, Dim) and not value.is_batch_dim() and not is_special(value):
                found.setdefault(name, (module, value))
    return found


def _arguments(args: tuple[tuple, dict], dims: Dims) -> str:
    positional, named = args
    return ", ".join(
        [*(code(a, dims) for a in positional), *(f"{k}={code(v, dims)}" for k, v in named.items())]
    )


def _step_code(task: str, args: tuple[tuple, dict], dims: Dims) -> str:
    arguments = _arguments(args, dims)
    call = "**kwargs" if not arguments else f"{arguments}, **kwargs"
    return f"def {task}_step(**kwargs):\n    return _run_step({call})"


def _imports(make: tuple[str, str], run: tuple[str, str], dims: _TorchDims) -> str:
    lines = ["from returnn.tensor import Dim, batch_dim"]
    for (module, name), alias in ((make, "_make_model"), (run, "_run_step")):
        head, *rest = name.split(".")
        lines.append(f"from {module} import {head} as {alias if not rest else alias + '_of'}")
        if rest:
            lines.append(f"{alias} = {alias}_of.{'.'.join(rest)}")
    lines += [f"from {module} import {name}" for name, module in sorted(dims.used.items())]
    return "\n".join(lines)
