"""
``nn.LSTM`` as one rec layer, and one step of it as plain arithmetic.

The parameters are variables in RF's layout (gates in the order i, f, g, o, as in torch); what RETURNN's unit wants is
made of them where the net is constructed, so a checkpoint fits every unit: pure TensorFlow on a CPU, native on a GPU.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, single_step_dim

from ._config_calls import ConfigCall, ConfigFunction, out_type
from ._graph import layer
from ._shapes import without


def lstm(
    source: Tensor,
    *,
    state_h: Tensor,
    state_c: Tensor,
    ff_weight: Tensor,
    rec_weight: Tensor,
    bias: Tensor | None,
    spatial_dim: Dim,
    in_dim: Dim,
    out_dim: Dim,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """
    Long short-term memory (https://doi.org/10.1162/089976600300015015, without peepholes) over ``spatial_dim``.

    ``source`` is ``[.., spatial_dim, in_dim]``, or ``[.., in_dim]`` for one step; the states are ``[.., out_dim]``.
    Gives ``[spatial_dim, .., out_dim]`` and (h, c) at the end of each sequence.

    Raises ValueError where the source lacks ``spatial_dim``, or a state has other dims, and NotImplementedError where
    the rec layer cannot: without a batch dim, or with further dims and an initial state other than zeros.
    """
    params = {"ff_weight": ff_weight, "rec_weight": rec_weight, "bias": bias}
    params = {name: param for name, param in params.items() if param is not None}
    dims = _state_dims(source, (state_h, state_c), spatial_dim, in_dim, out_dim)
    if spatial_dim == single_step_dim:
        gates = _input_gates(source, params, in_dim)
        h, c = _step(gates, (state_h, state_c), rec_weight)
        return h, (h, c)
    states = {"h": _in_order(state_h, dims), "c": _in_order(state_c, dims)}
    _check_rec_layer_can(states)
    return _rec_layer(_in_order(source, dims[:-1]), states, params, spatial_dim, in_dim)


def _state_dims(
    source: Tensor, states: tuple[Tensor, Tensor], spatial_dim: Dim, in_dim: Dim, out_dim: Dim
) -> list[Dim]:
    if spatial_dim != single_step_dim and spatial_dim not in source.dims:
        raise ValueError(
            f"nn.LSTM: {spatial_dim} is not among the dims {list(source.dims)} of its input"
        )
    outer = without(source.dims, [spatial_dim, in_dim])
    dims = [*sorted(outer, key=lambda dim: not dim.is_batch_dim()), out_dim]
    for state in states:
        if set(state.dims) != set(dims):
            raise ValueError(
                f"nn.LSTM: a state has the dims {list(state.dims)}, expected {dims}; "
                f"default_initial_state(batch_dims=...) gives such a state of zeros"
            )
    return dims


def _check_rec_layer_can(states: dict[str, Tensor]) -> None:
    first, *rest = states["h"].dims
    if not first.is_batch_dim() or (len(rest) > 1 and not all(map(_is_zero, states.values()))):
        raise NotImplementedError(
            f"nn.LSTM with states {list(states['h'].dims)}: RETURNN's rec layer needs the batch dim, "
            f"and where there are further dims, an initial state of zeros (default_initial_state)"
        )


def _in_order(x: Tensor, dims: list[Dim]) -> Tensor:
    """``x`` with these of its dims first and in this order, as they are in the state"""
    if [dim for dim in x.dims if dim in dims] == dims:
        return x
    order = [*dims, *without(x.dims, dims)]
    return layer(
        "transpose",
        {"from": x, "perm": order},
        dims=order,
        dtype=x.dtype,
        feature_dim=x.feature_dim,
    )


# --- all steps at once


def _rec_layer(
    source: Tensor,
    states: dict[str, Tensor],
    params: dict[str, Tensor],
    spatial_dim: Dim,
    in_dim: Dim,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """``[spatial_dim, batch_dim, .., out_dim]``"""
    dims = states["h"].dims
    initial = {} if all(map(_is_zero, states.values())) else {"initial_state": states}
    out = layer(
        "rec",
        {
            "from": source,
            "in_dim": in_dim,
            "out_dim": dims[-1],
            "axis": spatial_dim,
            "unit": ConfigCall("lstm_unit"),
            "unit_opts": {"forget_bias": 0.0},
            **initial,
            "reuse_params": {
                "custom": ConfigFunction("lstm_parameter"),
                "map": {name: {"layer_output": param} for name, param in params.items()},
            },
        },
        dims=[spatial_dim, *dims],
        dtype=source.dtype,
        hint="lstm",
        feature_dim=dims[-1],
    )
    return out, (_last_state(out, "h"), _last_state(out, "c"))


def _is_zero(state: Tensor) -> bool:
    """RETURNN starts from zeros itself"""
    node = state.raw_tensor
    return node.cls == "constant" and node.opts["value"] == 0


def _last_state(out: Tensor, key: str) -> Tensor:
    _, *dims = out.dims
    if len(dims) == 2:
        cls, options = "get_last_hidden_state", {"out_dim": dims[-1], "key": key}
    else:
        cls, options = (
            "eval",
            {
                "eval": ConfigFunction("lstm_state"),
                "eval_locals": {"key": key},
                "out_type": out_type(dims, feature_dim=dims[-1]),
            },
        )
    return layer(
        cls,
        {"from": out, **options},
        dims=dims,
        dtype=out.dtype,
        hint=f"last_{key}",
        feature_dim=dims[-1],
    )


# --- one step


def _input_gates(source: Tensor, params: dict[str, Tensor], in_dim: Dim) -> Tensor:
    """what the input adds to the gates, ``[.., 4 * out_dim]``"""
    gates = rf.matmul(source, params["ff_weight"], reduce=in_dim)
    return gates + params["bias"] if "bias" in params else gates


def _step(gates: Tensor, state: tuple[Tensor, Tensor], rec_weight: Tensor) -> tuple[Tensor, Tensor]:
    """the next (h, c)"""
    h, c = state
    gates_dim, out_dim = rec_weight.dims
    gates = gates + rf.matmul(h, rec_weight, reduce=out_dim)
    i, f, g, o = rf.split(gates, axis=gates_dim, out_dims=[out_dim] * 4)
    c = rf.sigmoid(f) * c + rf.sigmoid(i) * rf.tanh(g)
    return rf.sigmoid(o) * rf.tanh(c), c
