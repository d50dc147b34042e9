"""
What all blocks need of dims: sizes given as ints, and one clear error for an input of the wrong
shape.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import nn


def as_dim(
    size: int | nn.Dim, name: str, *, make: Callable[[str, int], nn.Dim] = nn.FeatureDim
) -> nn.Dim:
    """
    :return: `size` itself when it is a dim, else a new dim of this size
    :raises TypeError: `size` is neither an int nor a dim
    :raises ValueError: `size` is not positive
    """
    if isinstance(size, nn.Dim):
        return size
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"{name}: expected an int or a Dim, got {size!r}")
    if size < 1:
        raise ValueError(f"{name}: expected a positive size, got {size}")
    return make(name, size)


def check_input(who: str, source: nn.Tensor, **dims: nn.Dim) -> None:
    """:raises ValueError: `source` lacks one of `dims`; the message names it by its keyword"""
    for name, dim in dims.items():
        if dim not in source.dims:
            has = ", ".join(str(d) for d in source.dims)
            raise ValueError(f"{who}: the input has no {name} {dim}, it has the dims [{has}]")
