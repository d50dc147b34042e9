"""
Parameters in the checkpoints of RETURNN's engines: TensorFlow's, several files with one prefix, and torch's ``.pt``.

TensorFlow's names and axes become those of the model by the one rule that :mod:`..nn.lowering` names variables by, so
that no lowered step is needed to read them. What is no parameter (the step, the learning rate, what optimizers keep) is
left out. Reading runs no code from a file: of TensorFlow's files the graph is not read, and of torch's only tensors and
numbers are.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from ..files import whole_file
from ..nn.lowering import Lowered
from ._distributed import on_first

TORCH_SUFFIXES = (".pt", ".pth")
_TENSORFLOW_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
#: What layers call the parameters that they own; all others end in ``/param``.
_OWNED = {
    "W": "weight",
    "b": "bias",
    "batch_norm/v2_mean": "running_mean",
    "batch_norm/v2_variance": "running_variance",
    "batch_norm/v2_gamma": "gamma",
    "batch_norm/v2_beta": "beta",
}
_NO_PARAMETER = re.compile(r"global_step|learning_rate|beta[12]_power(_\d+)?")


def tensorflow_prefix(path: Path) -> Path | None:
    """what the files of a TensorFlow checkpoint begin with, from it or from one of them; None where there is none"""
    prefix = path.with_name(_TENSORFLOW_SUFFIX.sub("", path.name))
    index = prefix.with_name(f"{prefix.name}.index")
    if index.is_file():
        return prefix
    if prefix != path and path.is_file():
        raise ValueError(f"{os.fspath(path)!r} is of a TensorFlow checkpoint without {index.name}")
    return None


# --- TensorFlow


def read_tensorflow(prefix: Path) -> dict[str, numpy.ndarray]:
    """parameters by path, in the layout of the model; ValueError for damaged files"""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix.absolute()))
        variables = {
            name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())
        }
    except Exception as error:  # of TensorFlow, or Python's for the same, of many kinds
        raise ValueError(
            f"{os.fspath(prefix)!r} is damaged, or no TensorFlow checkpoint: {_first_line(error)}"
        ) from None
    return from_tensorflow(variables)


def from_tensorflow(variables: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """
    Parameters by path, in the layout of the model, from variables by their names in TensorFlow.

    ``x/linear/W`` is ``x.linear.weight``, or ``x.conv.filter`` where it has more than two axes, ``[k.., in, out]``
    there and ``[out, in, k..]`` here; ``x/name/param`` is ``x.name``, as which RETURNN's own frontend writes all of its
    parameters. Names that no rule covers, as in nets written by hand, only get dots: ``x/lstm/kernel`` is
    ``x.lstm.kernel``.

    Raises ValueError where two names become the same.
    """
    values: dict[str, numpy.ndarray] = {}
    for name, value in variables.items():
        if _NO_PARAMETER.fullmatch(name) or _is_slot(name, variables):
            continue
        path, value = _parameter(name, value)
        if path in values:
            raise ValueError(f"two variables become the parameter {path!r}, the second is {name!r}")
        values[path] = value
    return values


def _is_slot(name: str, variables: Mapping[str, numpy.ndarray]) -> bool:
    """an optimizer of TensorFlow names what it keeps of ``x/W``, of the same shape, ``x/W/Adam``"""
    param = variables.get(name.rpartition("/")[0])
    return param is not None and param.shape == variables[name].shape


def _parameter(name: str, value: numpy.ndarray) -> tuple[str, numpy.ndarray]:
    """path and value in the layout of the model"""
    scope, _, role = name.rpartition("/")
    if role == "param" and scope:
        return scope.replace("/", "."), value
    if role == "W" and value.ndim > 2:
        axes = (value.ndim - 1, value.ndim - 2, *range(value.ndim - 2))
        return f"{scope}/filter".lstrip("/").replace("/", "."), numpy.transpose(value, axes)
    for owned, leaf in _OWNED.items():
        if f"/{name}".endswith(f"/{owned}"):
            return name[: -len(owned)].replace("/", ".") + leaf, value
    return name.replace("/", "."), value


def write_tensorflow(
    path: str | os.PathLike, values: Mapping[str, numpy.ndarray], lowered: Lowered
) -> None:
    """
    Write parameters as a checkpoint for RETURNN's TensorFlow engine: ``load=``, ``import_model_train_epoch1=`` and
    ``preload_from_files=`` of a config take it.

    Of several processes, the first one writes, and the others wait: all must call it.

    :param path: the prefix of its files, such as ``"models/net.010"``; RETURNN needs a number in it, the epoch
    :param values: by name, as ``session.parameters`` or :func:`average` give them; may be more than the net has
    :param lowered: the net that is to load them, by which they are named: ``nn.lower(model, forward_step, ...)``
    :raises ValueError: a parameter of the net is missing
    """
    path = Path(path)
    path = path.with_name(_TENSORFLOW_SUFFIX.sub("", path.name))
    try:
        arrays = lowered.to_tensorflow(values)
    except KeyError as error:
        raise ValueError(f"checkpoints.write_tensorflow: {error.args[0]}") from None
    arrays["global_step"] = numpy.zeros((), dtype="int64")  # RETURNN's engine reads it
    on_first(lambda: _write_tensorflow(path, arrays), "checkpoints.write_tensorflow")


def _write_tensorflow(path: Path, arrays: Mapping[str, numpy.ndarray]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        _save(arrays, temporary / path.name)
        _move(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(arrays: Mapping[str, numpy.ndarray], prefix: Path) -> None:
    """without the values in the graph, which has a limit of 2 GB"""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as run:
        initial = {name: v1.placeholder(a.dtype, a.shape) for name, a in sorted(arrays.items())}
        variables = {name: v1.Variable(value, use_resource=True) for name, value in initial.items()}
        initialize = [variable.initializer for variable in variables.values()]
        run.run(initialize, {initial[name]: array for name, array in arrays.items()})
        v1.train.Saver(variables).save(run, str(prefix.absolute()), write_state=False)


def _move(folder: Path, prefix: Path) -> None:
    """the index last, without which the other files are no checkpoint"""
    index = prefix.with_name(f"{prefix.name}.index")
    index.unlink(missing_ok=True)
    for file in sorted(folder.iterdir(), key=lambda file: file.name == index.name):
        os.replace(file, prefix.with_name(file.name))


# --- torch


def read_torch(path: Path) -> dict[str, numpy.ndarray]:
    """
    The tensors under ``"model"``, or of a plain dict of tensors, such as a ``state_dict``.

    Raises ValueError for other files, damaged ones, and those in which there is more than tensors and numbers.
    """
    torch = _torch(path)
    if not path.is_file():
        raise ValueError(f"there is no file {os.fspath(path)!r}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zipfile and torch, of many kinds
        raise ValueError(
            f"{os.fspath(path)!r} is damaged, or has more than tensors and numbers, which is not loaded: "
            f"{_first_line(error)}"
        ) from None
    model = content.get("model", content) if isinstance(content, dict) else content
    if not (isinstance(model, dict) and model and all(map(torch.is_tensor, model.values()))):
        found = ", ".join(map(repr, content)) if isinstance(content, dict) else type(content)
        raise ValueError(
            f"{os.fspath(path)!r} holds no parameters, expected tensors by name, or these under 'model'; "
            f"it has {found}"
        )
    return {name: _array(torch, value) for name, value in model.items()}


def _array(torch: Any, value: Any) -> numpy.ndarray:
    value = value.detach()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # numpy has none


def write_torch(path: Path, values: Mapping[str, numpy.ndarray]) -> None:
    """as RETURNN's torch engine writes and reads parameters, the same bytes each time"""
    torch = _torch(path)
    content = io.BytesIO()  # into a file, torch would write its name, too
    torch.save({"model": {name: torch.tensor(values[name]) for name in sorted(values)}}, content)
    with whole_file(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def _torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{os.fspath(path)!r} needs torch: pip install torch ({error})"
        ) from error
    return torch


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


__all__ = [
    "TORCH_SUFFIXES",
    "from_tensorflow",
    "read_tensorflow",
    "read_torch",
    "tensorflow_prefix",
    "write_tensorflow",
    "write_torch",
]
