"""
Updates of the parameters on the torch backend.

SGD and Adam are written with torch's operations over lists of tensors, in the order of ``torch.optim`` and so with the
same results to the bit. ``torch.optim`` itself imports ``torch._dynamo``, which crashes in a process that has loaded
TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import returnn.frontend as rf
from returnn.tensor import Tensor

from ..nn import _returnn
from ._engine import not_finite
from ._groups import Group
from .optimizers import Adam, AdamW, Momentum, Sgd


class Updates:
    """The update rules of a torch engine, and what they keep: ``state[path][name]``."""

    def __init__(self, parameters: Mapping[str, rf.Parameter], groups: Sequence[Group]):
        self.parameters, self.groups = parameters, groups
        self.state: dict[str, dict[str, Any]] = {}

    def apply(self, gradients: Mapping[str, Any], learning_rate: float, step: str) -> None:
        """one update of the parameters in ``gradients``"""
        import torch

        clipped: dict[str, Any] = {}
        for group in self.groups:
            paths = [path for path in group.paths if path in gradients]
            grads = [gradients[path] for path in paths]
            clipped.update(zip(paths, _clipped(grads, group.clip_norm, step)))
        with torch.no_grad(), _torch_selected():
            for group in self.groups:
                for alike in _alike(group, clipped, learning_rate):
                    self._update(group, alike, clipped)

    def _update(self, group: Group, alike: _Alike, gradients: Mapping[str, Any]) -> None:
        params = [self.parameters[path].raw_tensor for path in alike.paths]
        grads = [gradients[path] for path in alike.paths]
        if alike.keep != 1:
            _each("mul_", params, alike.keep)
        states = [self._state(group, path) for path in alike.paths]
        if type(group.rule) in (Adam, AdamW):
            _adam(group.rule, params, grads, states, alike)
        elif type(group.rule) in (Momentum, Sgd):
            _sgd(group.rule, params, grads, states, alike)
        else:
            for path in alike.paths:
                self._rule(group, path, gradients[path], alike)

    def _rule(self, group: Group, path: str, gradient: Any, alike: _Alike) -> None:
        """any rule, as the ``nn`` operations that it consists of"""
        param, rule = self.parameters[path], group.rule
        raw = param.raw_tensor
        rule.learning_rate, rule.step = _scalar(alike.rate, raw), _scalar(alike.step, raw)
        templates = rule.initial_state(_like(param, raw.detach()))
        state = {
            name: Tensor(name, t.dims, t.dtype, raw_tensor=self.state[path][name])
            for name, t in templates.items()
        }
        new, new_state = rule.update(_like(param, raw.detach()), _like(param, gradient), state)
        raw.copy_(new.copy_compatible_to_dims_raw(param.dims))
        for name, template in templates.items():
            self.state[path][name] = new_state[name].copy_compatible_to_dims_raw(template.dims)

    def _state(self, group: Group, path: str) -> dict[str, Any]:
        if path not in self.state:
            param = self.parameters[path]
            initial = group.rule.initial_state(_like(param, param.raw_tensor.detach()))
            self.state[path] = {name: tensor.raw_tensor for name, tensor in initial.items()}
        return self.state[path]

    def get_state(self) -> dict[str, numpy.ndarray]:
        return {
            f"{path}/{name}": raw.cpu().numpy().copy()
            for path, state in self.state.items()
            for name, raw in state.items()
        }

    def set_state(self, values: Mapping[str, numpy.ndarray]) -> None:
        import torch

        self.state.clear()
        for key, value in values.items():
            path, _, name = key.rpartition("/")
            device = self.parameters[path].raw_tensor.device
            self.state.setdefault(path, {})[name] = torch.tensor(value, device=device)


class _Alike:
    """Parameters with the same numbers in this update."""

    def __init__(self, rate: float, keep: float, step: int):
        self.rate, self.keep, self.step = rate, keep, step
        self.paths: list[str] = []


def _alike(group: Group, paths: Iterable[str], learning_rate: float) -> list[_Alike]:
    kinds: dict[tuple[float, float, int], _Alike] = {}
    for i in group.index(paths):
        rate = learning_rate * float(group.multipliers[i])
        numbers = rate, 1 - rate * float(group.weight_decays[i]), int(group.counts[i]) + 1
        kinds.setdefault(numbers, _Alike(*numbers)).paths.append(group.paths[i])
    return list(kinds.values())


def _each(name: str, tensors: list[Any], *args: Any, **options: Any) -> Any:
    """torch's operation over a list of tensors"""
    import torch

    return getattr(torch, f"_foreach_{name}")(tensors, *args, **options)


def _adam(
    rule: Adam, params: list[Any], grads: list[Any], states: list[dict[str, Any]], alike: _Alike
) -> None:
    m, v = ([state[name] for state in states] for name in ("m", "v"))
    _each("lerp_", m, grads, 1 - rule.beta1)
    _each("mul_", v, rule.beta2)
    _each("addcmul_", v, grads, grads, value=1 - rule.beta2)
    root = _each("sqrt", v)
    _each("div_", root, math.sqrt(1 - rule.beta2**alike.step))
    _each("add_", root, rule.epsilon)
    _each("addcdiv_", params, m, root, value=-alike.rate / (1 - rule.beta1**alike.step))


def _sgd(
    rule: Sgd, params: list[Any], grads: list[Any], states: list[dict[str, Any]], alike: _Alike
) -> None:
    if rule.momentum:
        velocity = [state["momentum"] for state in states]
        _each("mul_", velocity, rule.momentum)
        _each("add_", velocity, grads)
        grads = _each("add", grads, velocity, alpha=rule.momentum) if rule.nesterov else velocity
    _each("add_", params, grads, alpha=-alike.rate)


def _like(param: rf.Parameter, raw: Any) -> Tensor:
    return Tensor("parameter", param.dims, param.dtype, raw_tensor=raw)


def _torch_selected() -> Any:
    from returnn.torch.frontend import TorchBackend

    return _returnn.selected(TorchBackend)


def _scalar(value: float, like: Any) -> Tensor:
    import torch

    raw = torch.tensor(float(value), dtype=torch.float32, device=like.device)
    return Tensor("number", (), "float32", raw_tensor=raw)


def _clipped(gradients: list[Any], norm: float | None, step: str) -> list[Any]:
    """scaled by ``min(1, norm / global norm)``"""
    import torch

    if norm is None or not gradients:
        return gradients
    total = torch.nn.utils.get_total_norm(gradients)
    if not torch.isfinite(total):
        raise not_finite(step, "the norm of the gradients is not finite")
    scale = torch.clamp(norm / total, max=1.0)
    return [gradient * scale for gradient in gradients]


__all__ = ["Updates"]
