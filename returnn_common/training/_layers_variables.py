"""
One variable of TensorFlow for each parameter, whichever layers make it in the steps of a session.

In one net a layer owns a parameter, such as the filter of a convolution, with its axes in an order of the layer's own;
in another net the same parameter is a layer "variable". What is made first stays, and the other net gets a view of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..nn import _returnn
from ..nn._config_calls import out_type
from ..nn._emit import Variable


class SharedVariables:
    """The variables of the parameters by path, and which axis of the parameter each of their axes is."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.axes: dict[str, tuple[int, ...]] = {}

    @contextlib.contextmanager
    def of_net(self, names: Mapping[str, Variable]) -> Iterator[None]:
        """what a net makes inside under one of these names is the variable of that parameter"""
        import tensorflow as tf

        def create(make: Callable, **options: Any) -> Any:
            wanted = names.get(str(options.get("name")))
            if wanted is None:
                return make(**options)
            if wanted.path not in self.made:
                self.made[wanted.path] = make(**options)
                self.axes[wanted.path] = wanted.axes
            return self._with_axes(wanted)

        _returnn.forget_names_of_variables(tf.compat.v1.get_default_graph())
        with tf.variable_creator_scope(create):
            yield

    def _with_axes(self, wanted: Variable) -> Any:
        """the variable, or a tensor with its value where the axes are to be in another order"""
        import tensorflow as tf

        variable, axes = self.made[wanted.path], self.axes[wanted.path]
        if axes == wanted.axes:
            return variable
        return tf.transpose(variable.read_value(), [axes.index(axis) for axis in wanted.axes])

    def in_net(
        self, network: Mapping[str, dict[str, Any]], parameters: Mapping[str, Variable]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Variable]]:
        """
        The net, and its parameters by their names in TensorFlow.

        Each layer "variable" gets the name scope of the module, which all that use its parameter have, and the axes of
        a variable that is there.
        """
        names = {variable.name: variable for variable in parameters.values()}
        paths = {"/" + path.replace(".", "/"): path for path in parameters}
        result: dict[str, dict[str, Any]] = {}
        turned: dict[str, str] = {}
        for key, layer in network.items():
            path = paths.get(layer.get("name_scope", "")) if layer["class"] == "variable" else None
            if path is None:
                result[key] = layer
                continue
            result[key] = _in_scope(layer, path)
            axes = self.axes.get(path, ())
            if list(axes) != sorted(axes):
                turned[key] = _unused(f"{key}_of_layer", network)
                result.update(_turned(key, turned[key], result[key], axes))
                names[parameters[path].name] = replace(parameters[path], axes=axes)
        return {key: _with_variable(layer, turned) for key, layer in result.items()}, names


def _in_scope(layer: Mapping[str, Any], path: str) -> dict[str, Any]:
    scope, _, name = path.rpartition(".")
    scope = "/" + scope.replace(".", "/") if scope else ""
    return {**layer, "name_scope": scope, "param_name": f"{name}/param"}


def _turned(
    key: str, variable: str, layer: Mapping[str, Any], axes: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """the layer with its axes in another order, and what has them in the order that the net expects"""
    dims = layer["shape"]
    options = {name: value for name, value in layer.items() if name != "init"}
    back = [axes.index(axis) for axis in range(len(axes))]

    def turn(source: Callable, **_: Any) -> Any:
        import tensorflow as tf

        return tf.transpose(source(0, auto_convert=False), back)

    return {
        variable: {**options, "shape": [dims[axis] for axis in axes]},
        key: {"class": "eval", "from": variable, "eval": turn, "out_type": out_type(dims)},
    }


def _with_variable(layer: dict[str, Any], turned: Mapping[str, str]) -> dict[str, Any]:
    """layers that assign need the variable itself"""
    name = layer.get("var", "")
    return {**layer, "var": turned[name]} if name in turned else layer


def _unused(name: str, network: Mapping[str, Any]) -> str:
    while name in network:
        name += "_"
    return name


__all__ = ["SharedVariables"]
