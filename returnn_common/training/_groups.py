"""From the ``optimizer`` options of a session to groups of parameters, each with its update rule."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import returnn.frontend as rf

from ..hints import near_misses, valid_names
from ..nn._emit import is_trained
from .optimizers import BY_NAME, UpdateRule

_NORMS = (rf.LayerNorm, rf.BatchNorm, rf.GroupNorm, rf.RMSNorm)
_OPTIONS = ("gradient_clip_global_norm", "learning_rate_multiplier", "parameters", "weight_decay")


@dataclass
class Group:
    """The parameters that one optimizer updates, and how: arrays ``[len(paths)]`` in the order of ``paths``."""

    rule: Any  # an UpdateRule
    paths: list[str]
    multipliers: numpy.ndarray
    weight_decays: numpy.ndarray
    clip_norm: float | None = None
    counts: numpy.ndarray = field(init=False)  # updates that each parameter had

    def __post_init__(self) -> None:
        self.counts = numpy.zeros(len(self.paths), dtype="int64")

    def index(self, paths: Iterable[str]) -> list[int]:
        """the places of those of ``paths`` that are in this group"""
        places = {path: i for i, path in enumerate(self.paths)}
        return [places[path] for path in paths if path in places]


def make_groups(optimizer: Any, model: rf.Module) -> list[Group]:
    """
    One group for each optimizer: a dict of options, an update rule, or a list of these with disjoint parameters.

    Raises ValueError for unknown names and options, and where a trained parameter has no optimizer or two.
    """
    several = isinstance(optimizer, Sequence) and not isinstance(optimizer, str)
    specs = [_as_dict(spec) for spec in (optimizer if several else [optimizer])]
    trained = {path: param for path, param in model.named_parameters() if is_trained(param)}
    chosen = [match(spec.get("parameters", "*"), trained, "parameters") for spec in specs]
    _check_disjoint(chosen, trained)
    decayed = _decayed(model)
    return [_group(spec, paths, trained, decayed) for spec, paths in zip(specs, chosen)]


def match(patterns: str | Sequence[str], names: Iterable[str], option: str) -> list[str]:
    """the names that one of the patterns matches, as in a shell; ValueError for a pattern that matches nothing"""
    names = list(names)
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern) and not (pattern == "*" and not names):
            raise ValueError(
                f"{option}: the pattern {pattern!r} matches no parameter{near_misses(pattern, names)}"
            )
    return [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def _as_dict(spec: Any) -> dict[str, Any]:
    if isinstance(spec, UpdateRule):
        return {"class": spec}
    if isinstance(spec, str):
        return {"class": spec}
    if isinstance(spec, Mapping) and "class" in spec:
        return dict(spec)
    raise TypeError(
        f"the optimizer is {spec!r}, expected a dict such as {{'class': 'adam'}}, "
        f"a training.UpdateRule, or a list of these"
    )


def _check_disjoint(chosen: Sequence[Sequence[str]], trained: Iterable[str]) -> None:
    for path in trained:
        number = sum(path in paths for paths in chosen)
        if number != 1:
            raise ValueError(
                f"the parameter {path!r} has {number or 'no'} optimizers, expected one: see their 'parameters'"
                + ("" if number else "; set param.trainable = False for a frozen one")
            )


def _group(
    spec: dict[str, Any], paths: list[str], trained: Mapping[str, rf.Parameter], decayed: set[str]
) -> Group:
    options = {key: value for key, value in spec.items() if key not in ("class", *_OPTIONS)}
    rule = _rule(spec["class"], options)
    decay = float(spec.get("weight_decay", rule.default_weight_decay))
    own = [trained[path].weight_decay for path in paths]
    return Group(
        rule,
        paths,
        _multipliers(spec.get("learning_rate_multiplier", 1.0), paths),
        numpy.array([w or (decay if path in decayed else 0.0) for w, path in zip(own, paths)]),
        _positive(spec.get("gradient_clip_global_norm"), "gradient_clip_global_norm"),
    )


def _rule(cls: Any, options: dict[str, Any]) -> UpdateRule:
    if isinstance(cls, UpdateRule):
        if options:
            raise ValueError(
                f"the optimizer has a rule, which takes no option {next(iter(options))!r}"
            )
        return cls
    if isinstance(cls, str):
        if cls.lower() not in BY_NAME:
            raise ValueError(f"there is no optimizer {cls!r}{valid_names(cls.lower(), BY_NAME)}")
        cls = BY_NAME[cls.lower()]
    if not (isinstance(cls, type) and issubclass(cls, UpdateRule)):
        raise TypeError(
            f"the optimizer's class is {cls!r}, expected a name or a training.UpdateRule"
        )
    valid = [name for name in inspect.signature(cls).parameters if name != "self"]
    for name in options:
        if name not in valid:
            raise ValueError(
                f"the optimizer {cls.__name__} has no option {name!r}{valid_names(name, [*valid, *_OPTIONS])}"
            )
    return cls(**options)


def _multipliers(option: float | Mapping[str, float], paths: Sequence[str]) -> numpy.ndarray:
    """a factor of the learning rate for each path; of several patterns that match, the last counts"""
    patterns = option if isinstance(option, Mapping) else {"*": option}
    factors = dict.fromkeys(paths, 1.0)
    for pattern, factor in patterns.items():
        factors.update(
            dict.fromkeys(match(pattern, paths, "learning_rate_multiplier"), float(factor))
        )
    return numpy.array([factors[path] for path in paths])


def _positive(value: float | None, name: str) -> float | None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} is {value}, expected a positive number, or None for no clipping")
    return value


def _decayed(model: rf.Module) -> set[str]:
    """what weight decay applies to: all but the parameters of norms, biases, and vectors and scalars in general"""
    norms = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, _NORMS)
        for name, _ in module.named_parameters()
    }
    return {
        path
        for path, param in model.named_parameters()
        if path not in norms and len(param.dims) > 1 and "bias" not in path.rpartition(".")[2]
    }


__all__ = ["Group", "make_groups", "match"]
