"""The batches of a step loop, from what it was given, or from the RETURNN config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..lines import calling_line
from ..nn._returnn import configured
from ..nn._stage import Stage
from ._stores import SEQ_TAG


def setting(name: str, given: Any, where: str) -> Any:
    """an option that was given, or that of the RETURNN config; ValueError where neither says it"""
    value = configured(name) if given is None else given
    if value is None:
        raise ValueError(f"{where} needs {name}: give it, or set it in the RETURNN config")
    return value


def batches_of(stage: Stage, epoch: int, batch_size: int | None) -> Iterable[Mapping[str, Any]]:
    """the batches of a step loop in this epoch"""
    data = stage.data
    if data is None:
        data = setting("train", None, f"nn.step_loop() without data ({stage.title})")
    if isinstance(data, Mapping):
        data = _part(data)
    if hasattr(data, "batches"):
        size = setting("batch_size", batch_size, f"training.run with the dataset of {stage.title}")
        max_seqs = configured("max_seqs")
        sizes = {"batch_size": size, **({"max_seqs": max_seqs} if max_seqs else {})}
        return data.batches(epoch, keys=_keys(stage), **sizes)
    if callable(data):
        return data(epoch)
    if isinstance(data, Iterator):
        raise ValueError(
            f"{stage.line}the data of this step loop are a {type(data).__name__}, which gives its batches only once; "
            f"give a function (epoch) -> batches"
        )
    if not isinstance(data, Iterable):
        raise TypeError(
            f"{stage.line}the data of this step loop are a {type(data).__name__}, expected the part of a dataset, "
            f"a function (epoch) -> batches, batches, or the options of a RETURNN dataset"
        )
    return data


def _keys(stage: Stage) -> Sequence[str]:
    tags = [SEQ_TAG] if stage.stored or stage.loaded else []
    return [*stage.data_names, *tags]


def _part(opts: Mapping[str, Any]) -> Any:
    from ..data.part import Part

    if "class" not in opts:
        raise ValueError(
            f"{calling_line()}the options of a RETURNN dataset need a 'class', got {dict(opts)}"
        )
    return Part(opts, keys=())


__all__ = ["batches_of", "setting"]
