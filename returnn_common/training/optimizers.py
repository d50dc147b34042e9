"""
Update rules, by the names of RETURNN's optimizers, with one meaning on both backends.

Every rule is written in ``nn`` operations and may be read as its definition. The session runs SGD and Adam with the
fused operations of TensorFlow and torch instead, which compute the same.

Where the optimizers of TensorFlow and torch differ, ours are torch's: ``epsilon`` is added after the bias correction
(Algorithm 1 of the Adam paper; TensorFlow adds its epsilon before, "epsilon hat"), and outside of the root. Weight
decay is decoupled in all of them (https://arxiv.org/abs/1711.05101): ``p -= learning_rate * weight_decay * p``, before
the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from returnn.tensor import Tensor

from .. import nn

State = dict[str, Tensor]


class UpdateRule:
    """
    How a parameter changes in an update: the base of all rules, also of your own.

    A rule uses ``nn`` operations only and so runs on both backends. While :meth:`update` runs,
    ``learning_rate`` is the scalar of this parameter in this update, with its multiplier, and
    ``step`` the scalar number of this update of this parameter, 1 for the first.
    """

    #: The weight decay where the optimizer's options say nothing.
    default_weight_decay: ClassVar[float] = 0.0

    learning_rate: Tensor
    step: Tensor

    def initial_state(self, param: Tensor) -> State:
        """what the rule keeps of each parameter, by name: nothing; saved in checkpoints"""
        return {}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """the new value of the parameter, and the new state, which has the names of :meth:`initial_state`"""
        raise NotImplementedError(
            f"{type(self).__name__} does not define update(param, gradient, state)"
        )


@dataclass
class Sgd(UpdateRule):
    """Gradient descent, with Polyak's momentum or Nesterov's (https://proceedings.mlr.press/v28/sutskever13.html)."""

    momentum: float = 0.0
    nesterov: bool = False

    def initial_state(self, param: Tensor) -> State:
        return {"momentum": nn.zeros_like(param)} if self.momentum else {}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        if not self.momentum:
            return param - self.learning_rate * gradient, state
        velocity = self.momentum * state["momentum"] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return param - self.learning_rate * direction, {"momentum": velocity}


@dataclass
class Momentum(Sgd):
    """:class:`Sgd` with momentum 0.9 by default."""

    momentum: float = 0.9


@dataclass
class Adam(UpdateRule):
    """Adam (https://arxiv.org/abs/1412.6980, Algorithm 1)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def initial_state(self, param: Tensor) -> State:
        return {"m": nn.zeros_like(param), "v": nn.zeros_like(param)}

    def moments(self, gradient: Tensor, state: State) -> State:
        """the new running means of the gradient and of its square"""
        return {
            "m": self.beta1 * state["m"] + (1 - self.beta1) * gradient,
            "v": self.beta2 * state["v"] + (1 - self.beta2) * gradient * gradient,
        }

    def normalized(self, mean: Tensor, state: State) -> Tensor:
        """``mean`` over the root of the mean square, both without the bias of their start at zero"""
        root = nn.sqrt(state["v"] / (1 - self.beta2**self.step))
        return mean / (1 - self.beta1**self.step) / (root + self.epsilon)

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        state = self.moments(gradient, state)
        return param - self.learning_rate * self.normalized(state["m"], state), state


class AdamW(Adam):
    """Adam with weight decay 0.01 by default (https://arxiv.org/abs/1711.05101)."""

    default_weight_decay = 0.01


class Nadam(Adam):
    """Adam with Nesterov momentum (Dozat 2016), in the form of RETURNN's TensorFlow optimizer of this name."""

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        state = self.moments(gradient, state)
        mean = self.beta1 * state["m"] + (1 - self.beta1) * gradient
        return param - self.learning_rate * self.normalized(mean, state), state


@dataclass
class Adamax(UpdateRule):
    """Adam with the infinity norm (https://arxiv.org/abs/1412.6980, Algorithm 2)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def initial_state(self, param: Tensor) -> State:
        return {"m": nn.zeros_like(param), "norm": nn.zeros_like(param)}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        mean = self.beta1 * state["m"] + (1 - self.beta1) * gradient
        norm = nn.maximum(self.beta2 * state["norm"], nn.abs(gradient) + self.epsilon)
        rate = self.learning_rate / (1 - self.beta1**self.step)
        return param - rate * mean / norm, {"m": mean, "norm": norm}


@dataclass
class Adagrad(UpdateRule):
    """Adagrad (https://jmlr.org/papers/v12/duchi11a.html)."""

    epsilon: float = 1e-10
    initial_accumulator_value: float = 0.0

    def initial_state(self, param: Tensor) -> State:
        return {"sum": nn.zeros_like(param) + self.initial_accumulator_value}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        total = state["sum"] + gradient * gradient
        return param - self.learning_rate * gradient / (nn.sqrt(total) + self.epsilon), {
            "sum": total
        }


@dataclass
class RmsProp(UpdateRule):
    """RMSProp (Tieleman and Hinton 2012), with momentum as in torch."""

    decay: float = 0.99
    momentum: float = 0.0
    epsilon: float = 1e-8

    def initial_state(self, param: Tensor) -> State:
        names = ("v", "momentum") if self.momentum else ("v",)
        return {name: nn.zeros_like(param) for name in names}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        new = {"v": self.decay * state["v"] + (1 - self.decay) * gradient * gradient}
        change = gradient / (nn.sqrt(new["v"]) + self.epsilon)
        if self.momentum:
            change = new["momentum"] = self.momentum * state["momentum"] + change
        return param - self.learning_rate * change, new


@dataclass
class Adadelta(UpdateRule):
    """Adadelta (https://arxiv.org/abs/1212.5701)."""

    rho: float = 0.9
    epsilon: float = 1e-6

    def initial_state(self, param: Tensor) -> State:
        return {"v": nn.zeros_like(param), "change": nn.zeros_like(param)}

    def update(self, param: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        v = self.rho * state["v"] + (1 - self.rho) * gradient * gradient
        change = nn.sqrt(state["change"] + self.epsilon) / nn.sqrt(v + self.epsilon) * gradient
        changes = self.rho * state["change"] + (1 - self.rho) * change * change
        return param - self.learning_rate * change, {"v": v, "change": changes}


#: RETURNN's names, on TensorFlow or torch, without regard to case.
BY_NAME: dict[str, type[UpdateRule]] = {
    "adadelta": Adadelta,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamax": Adamax,
    "adamw": AdamW,
    "gradientdescent": Sgd,
    "momentum": Momentum,
    "nadam": Nadam,
    "rmsprop": RmsProp,
    "sgd": Sgd,
}

__all__ = [
    "BY_NAME",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Momentum",
    "Nadam",
    "RmsProp",
    "Sgd",
    "State",
    "UpdateRule",
]
