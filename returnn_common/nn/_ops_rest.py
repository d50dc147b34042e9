"""Stacking, scattering, and a clear error for each operation of RF that no RETURNN layer does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._graph import layer
from ._returnn import Backend
from ._shapes import union, without

#: Operations of RF's backends that neither RETURNN's layers nor ours have.
NO_LAYER = (
    "complex_as_real",
    "ctc_best_path",
    "edit_distance",
    "gradient_checkpoint_scope",
    "make_complex",
    "masked_scatter",
    "parameter_assign_key",
    "parameter_move_to",
    "random_choice_with_replacement",
    "real_as_complex",
    "reduce_distributed",
    "search_sorted",
    "sort",
    "stop_gradient_scope",
    "tensor_array_create",
    "tensor_array_get_item",
    "tensor_array_push_back",
    "tensor_array_stack",
    "tensor_array_unstack",
)


class Rest(Backend):
    """What is seldom needed."""

    @staticmethod
    def stack(sources: Sequence[Tensor], *, out_dim: Dim) -> Tensor:
        parts = []
        for source in sources:
            one = Dim(1, name="one")
            parts.append((rf.expand_dim(source, dim=one), one))
        out, _ = rf.concat(*parts, out_dim=out_dim)
        return out

    @staticmethod
    def scatter(
        source: Tensor,
        *,
        indices: Tensor,
        indices_dim: Dim | Sequence[Dim],
        mode: str,
        fill_value: int | float,
        out_dim: Dim | Sequence[Dim],
    ) -> Tensor:
        """the scatter_nd layer, which sums into zeros"""
        (from_dim,), (to_dim,) = (
            [dims] if isinstance(dims, Dim) else list(dims) for dims in (indices_dim, out_dim)
        )
        if mode != "sum" or fill_value != 0:
            raise NotImplementedError(
                f"nn.scatter: mode {mode!r} with fill value {fill_value} has no RETURNN layer, "
                f"only mode 'sum' with fill value 0"
            )
        rest = without(union(indices.dims, source.dims), from_dim)
        return layer(
            "scatter_nd",
            {
                "from": source,
                "position": indices,
                "position_axis": from_dim,
                "out_spatial_dim": to_dim,
            },
            dims=[*rest[:1], to_dim, *rest[1:]],
            dtype=source.dtype,
            hint="scatter",
            feature_dim=source.feature_dim,
        )


def _no_layer(name: str) -> Callable:
    @functools.wraps(getattr(Backend, name, Backend.stack))
    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError(
            f"RF's operation {name!r} has no RETURNN layer. It works on the backend torch (nn.torch_config); "
            f"on layers, compose it from other operations"
        )

    return fail


for _name in NO_LAYER:
    setattr(Rest, _name, staticmethod(_no_layer(_name)))
