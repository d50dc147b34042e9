"""
Noise on weights in training: weight dropout and variational noise.

Wan et al., "Regularization of Neural Networks using DropConnect", 2013; for recurrent weights: Merity et
al., 2017, https://arxiv.org/abs/1708.02182. Graves, "Practical Variational Inference for Neural
Networks", 2011; for speech, with a deviation of 0.075: Graves et al., 2013,
https://arxiv.org/abs/1303.5778.

Parameters keep their names, so checkpoints fit with and without noise.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

from ... import nn


def weight_dropout(
    module: nn.Module, probability: float = 0.1, *, pattern: str = "*weight"
) -> nn.Module:
    """
    In training, set entries of weights to zero and scale the others by 1 / (1 - probability).

    :param module: is changed
    :param probability: of each entry, drawn in every step
    :param pattern: with wildcards; of the paths of parameters, e.g. ``"*rec_weight"``
    :return: `module` itself
    :raises ValueError: no parameter matches, or the probability is not in [0, 1)
    """
    if not 0 <= probability < 1:
        raise ValueError(
            f"weight_dropout: the probability is {probability!r}, expected one in [0, 1)"
        )
    return _change("weight_dropout", module, pattern, lambda w: nn.dropout(w, probability))


def variational_noise(
    module: nn.Module, deviation: float = 0.075, *, pattern: str = "*"
) -> nn.Module:
    """
    In training, add Gaussian noise to parameters.

    :param module: is changed
    :param deviation: the noise's standard deviation
    :param pattern: with wildcards; of the paths of parameters
    :return: `module` itself
    :raises ValueError: no parameter matches, or the deviation is negative
    """
    if deviation < 0:
        raise ValueError(f"variational_noise: the deviation is {deviation!r}, expected one >= 0")

    def with_noise(weight: nn.Tensor) -> nn.Tensor:
        train = nn.get_run_ctx().is_train_flag_enabled(func=variational_noise)
        if train is False:
            return weight
        noise = nn.random_normal(weight.dims, stddev=deviation)
        return weight + nn.where(train, noise, 0.0)

    return _change("variational_noise", module, pattern, with_noise)


def _change(
    who: str, module: nn.Module, pattern: str, change: Callable[[nn.Tensor], nn.Tensor]
) -> nn.Module:
    """call `change` on each trainable parameter that matches, wherever it is used"""
    found = False
    for path, part in list(module.named_modules()):
        for name, value in list(vars(part).items()):
            full = f"{path}.{name}" if path else name
            is_weight = isinstance(value, nn.Parameter) and value.trainable is not False
            if is_weight and not value.auxiliary and fnmatch.fnmatchcase(full, pattern):
                nn.register_parametrization(part, name, change)
                found = True
    if not found:
        paths = ", ".join(path for path, _ in module.named_parameters())
        raise ValueError(f"{who}: no parameter matches {pattern!r}; there are: {paths}")
    return module
