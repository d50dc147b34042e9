"""
Checkpoints: folders that appear whole or not at all, with arrays in safetensors files and all else in JSON.

A folder of checkpoints holds one folder for each save, named after the number of updates::

    checkpoints/step-00000120/parameters.safetensors   {name of the parameter: array in the model's layout}
                              optimizer.safetensors    {name of the parameter/what the rule keeps of it: array}
                              state.safetensors        random generators, and the arrays in ``session.state``
                              session.json             numbers: epoch, step, place in the data, metrics

Both backends write and read the same files, and read parameters from the checkpoints of RETURNN's engines. Reading runs
no code from a file, whatever it holds.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from ..hints import near_misses
from ._distributed import on_first
from ._returnn_checkpoints import (
    TORCH_SUFFIXES,
    read_tensorflow,
    read_torch,
    tensorflow_prefix,
    write_tensorflow,
    write_torch,
)

_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_FORMAT = 1
_MAX_NAMES = 5  # that an error lists of each kind


def paths(folder: str | os.PathLike) -> list[Path]:
    """the checkpoints in a folder, oldest first"""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    order = {p: (int(m[1]), int(m[2] or 0)) for p, m in found.items() if m}
    return sorted(order, key=order.__getitem__)


def last(folder: str | os.PathLike) -> Path:
    """the newest checkpoint in a folder; ValueError where there is none"""
    found = paths(folder)
    if not found:
        raise ValueError(f"there is no checkpoint in {os.fspath(folder)!r}")
    return found[-1]


def best(folder: str | os.PathLike, metric: str) -> Path:
    """the checkpoint that was saved with the lowest value of this metric; ValueError where none was saved with it"""
    return _by_metric(folder, metric)[0]


def _by_metric(folder: str | os.PathLike, metric: str) -> list[Path]:
    metrics = {path: read_info(path)["metrics"] for path in paths(folder)}
    found = [path for path, values in metrics.items() if metric in values]
    if not found:
        names = sorted({name for values in metrics.values() for name in values})
        raise ValueError(
            f"no checkpoint in {os.fspath(folder)!r} was saved with the metric {metric!r}{near_misses(metric, names)}"
        )
    values = {path: metrics[path][metric] for path in found}
    return sorted(found, key=lambda path: (math.isnan(values[path]), values[path]))


def remove_others(
    folder: str | os.PathLike, *, keep_last: int = 1, keep_best: int = 0, metric: str = ""
) -> list[Path]:
    """
    Remove all checkpoints in a folder but the newest ``keep_last`` and those with the lowest ``metric``.

    Of several processes, the first one removes them, and the others wait: all must call it.

    :return: what was removed
    """
    if keep_last < 1:
        raise ValueError(
            f"keep_last is {keep_last}, expected at least 1: the newest is needed to go on"
        )
    return on_first(
        lambda: _remove_others(folder, keep_last, keep_best, metric), "checkpoints.remove_others"
    )


def _remove_others(
    folder: str | os.PathLike, keep_last: int, keep_best: int, metric: str
) -> list[Path]:
    found = paths(folder)
    kept = {*found[-keep_last:], *(_by_metric(folder, metric)[:keep_best] if keep_best else ())}
    removed = [path for path in found if path not in kept]
    for path in removed:
        hidden = path.with_name(f".{path.name}.removed")
        os.rename(path, hidden)  # at once, so that no half of one is ever taken for a checkpoint
        shutil.rmtree(hidden)
    return removed


def average(checkpoints: Sequence[str | os.PathLike]) -> dict[str, numpy.ndarray]:
    """the mean of each parameter over checkpoints of one model; whole numbers are those of the last one"""
    if not checkpoints:
        raise ValueError("an average needs at least one checkpoint, got none")
    values = [read_parameters(path) for path in checkpoints]
    for path, other in zip(checkpoints, values):
        if {n: v.shape for n, v in other.items()} != {n: v.shape for n, v in values[0].items()}:
            raise ValueError(
                f"{os.fspath(path)!r} holds another model than {os.fspath(checkpoints[0])!r}"
            )
    return {name: _mean([other[name] for other in values]) for name in values[0]}


def _mean(values: Sequence[numpy.ndarray]) -> numpy.ndarray:
    if values[0].dtype.kind != "f":
        return values[-1]
    return numpy.mean(values, axis=0, dtype="float64").astype(values[0].dtype)


# --- reading and writing


def read_parameters(path: str | os.PathLike) -> dict[str, numpy.ndarray]:
    """
    The parameters by name, in the layout of the model.

    :param path: a checkpoint of a session, a .safetensors file, or a checkpoint of RETURNN's engines: of TensorFlow,
        ``models/net.010`` or one of its files, or of torch, ``models/net.010.pt``
    :raises ValueError: there is none, or it is damaged, or holds anything but numbers
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    prefix, torch_file = tensorflow_prefix(path), path.with_name(f"{path.name}.pt")
    if prefix and torch_file.exists():
        raise ValueError(
            f"{os.fspath(path)!r} is two checkpoints, give the one with .index or the one with .pt"
        )
    if prefix:
        return read_tensorflow(prefix)
    if path.suffix in TORCH_SUFFIXES or torch_file.is_file():
        return read_torch(path if path.suffix in TORCH_SUFFIXES else torch_file)
    return read_arrays(path)


def _read_folder(path: Path) -> dict[str, numpy.ndarray]:
    file = path / "parameters.safetensors"
    if not file.exists() and paths(path):
        raise ValueError(
            f"{os.fspath(path)!r} holds several checkpoints; give one, such as {os.fspath(last(path))!r}"
        )
    return read_arrays(file)


def write_parameters(path: str | os.PathLike, values: Mapping[str, Any]) -> None:
    """
    Write parameters by name into a file, which appears whole or not at all.

    Of several processes, the first one writes, and the others wait: all must call it.

    :param path: ``.safetensors``, or ``.pt`` for RETURNN's torch engine; for its TensorFlow engine, see
        :func:`write_tensorflow`
    """
    arrays = {name: numpy.asarray(value) for name, value in values.items()}
    on_first(lambda: _write_parameters(Path(path), arrays), "checkpoints.write_parameters")


def _write_parameters(path: Path, arrays: Mapping[str, numpy.ndarray]) -> None:
    from ..files import whole_file

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in TORCH_SUFFIXES:
        write_torch(path, arrays)
        return
    with whole_file(path) as temporary:
        _write_arrays(temporary, arrays)


def read_arrays(file: Path) -> dict[str, numpy.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not file.is_file():
        raise ValueError(f"there is no file {os.fspath(file)!r}{_near_files(file)}")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(
            f"{os.fspath(file)!r} is damaged, or no safetensors file: {error}"
        ) from None


def _near_files(file: Path) -> str:
    beside = sorted(other.name for other in file.parent.iterdir()) if file.parent.is_dir() else []
    return near_misses(file.name, beside)


def _write_arrays(file: Path, arrays: Mapping[str, numpy.ndarray]) -> None:
    from safetensors.numpy import save_file

    contiguous = {
        name: numpy.ascontiguousarray(arrays[name]).reshape(arrays[name].shape)
        for name in sorted(arrays)
    }
    save_file(contiguous, file)


def read_info(checkpoint: str | os.PathLike) -> dict[str, Any]:
    """what ``session.json`` says: ``epoch``, ``global_train_step``, ``metrics``, ..."""
    file = Path(checkpoint) / "session.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{os.fspath(checkpoint)!r} is no checkpoint: {error}") from None
    if info.get("format") != _FORMAT:
        raise ValueError(
            f"{os.fspath(checkpoint)!r} has the format {info.get('format')!r}, this package reads {_FORMAT}"
        )
    return info


def write(
    folder: str | os.PathLike,
    step: int,
    arrays: Mapping[str, Mapping[str, numpy.ndarray]],
    info: Mapping[str, Any],
) -> Path:
    """
    Write a checkpoint: ``arrays`` by the name of their file. It gets its name when all is on the disk.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(folder)
    temporary = folder / f".{os.getpid()}.unfinished"
    temporary.mkdir()
    try:
        for name, group in arrays.items():
            _write_arrays(temporary / f"{name}.safetensors", group)
        text = json.dumps({"format": _FORMAT, **info}, indent=1, sort_keys=True, allow_nan=True)
        (temporary / "session.json").write_text(text + "\n", encoding="utf-8")
        for file in [*temporary.iterdir(), temporary]:
            _to_disk(file)
        path = _new_path(folder, step)
        os.rename(temporary, path)
        _to_disk(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _new_path(folder: Path, step: int) -> Path:
    path, number = folder / f"step-{step:08d}", 0
    while path.exists():  # saved again without an update in between
        number += 1
        path = folder / f"step-{step:08d}.{number}"
    return path


def _remove_unfinished(folder: Path) -> None:
    """what a killed process has left"""
    for path in [*folder.glob(".*.unfinished"), *folder.glob(".*.removed")]:
        shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- names


def renamed(
    values: Mapping[str, numpy.ndarray], rename: Mapping[str, str] | Callable[[str], str | None]
) -> dict[str, numpy.ndarray]:
    """
    The values under other names: each prefix is replaced, or a function gives the name, None to leave it out.

    Raises ValueError for a prefix that no name begins with, and where two get the same name.
    """
    if isinstance(rename, Mapping):
        for prefix in rename:
            if not any(name.startswith(prefix) for name in values):
                raise ValueError(
                    f"no name begins with {prefix!r}{near_misses(prefix, _prefixes(values))}"
                )
    result: dict[str, numpy.ndarray] = {}
    for name, value in values.items():
        new = _replaced(name, rename) if isinstance(rename, Mapping) else rename(name)
        if new in result:
            raise ValueError(f"two names become {new!r}, the second is {name!r}")
        if new is not None:
            result[new] = value
    return result


def _replaced(name: str, prefixes: Mapping[str, str]) -> str:
    fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
    longest = max(fitting, key=len, default="")
    return prefixes.get(longest, "") + name[len(longest) :]


def _prefixes(names: Mapping[str, Any]) -> list[str]:
    parts = {name[: match.end()] for name in names for match in re.finditer(r"\.", name)}
    return sorted({*names, *parts})


def compared(
    values: Mapping[str, numpy.ndarray],
    shapes: Mapping[str, Sequence[int]],
    *,
    strict: bool,
    source: str,
) -> dict[str, numpy.ndarray]:
    """
    Those of ``values`` that ``shapes`` has.

    Raises ValueError that lists what is missing or unexpected (if ``strict``) or of another shape, with near misses.
    """
    missing = [f"{name!r}{near_misses(name, values)}" for name in shapes if name not in values]
    unexpected = [f"{name!r}{near_misses(name, shapes)}" for name in values if name not in shapes]
    found = {name: value for name, value in values.items() if name in shapes}
    other = [
        f"{name!r} is {list(value.shape)}, in the model {list(shapes[name])}"
        for name, value in found.items()
        if list(value.shape) != list(shapes[name])
    ]
    problems = {"of another shape": other}
    if strict:
        problems.update({"missing": missing, "unexpected": unexpected})
    texts = [f"{what}: {_listed(names)}" for what, names in problems.items() if names]
    if texts:
        raise ValueError(f"the parameters of {source} do not fit the model; " + "; ".join(texts))
    if not found:
        raise ValueError(
            f"no parameter of {source} is one of the model; it has {_listed(list(values))}"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


__all__ = [
    "average",
    "best",
    "last",
    "paths",
    "read_info",
    "read_parameters",
    "remove_others",
    "renamed",
    "write_parameters",
    "write_tensorflow",
]
