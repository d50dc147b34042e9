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


def check_num_layers(who: str, num_layers: int) -> None:
    """:raises ValueError: there is no layer"""
    if num_layers < 1:
        raise ValueError(f"{who}: expected at least one layer, got {num_layers}")


def as_heads(num_heads: int | nn.Dim, dim: nn.Dim, who: str) -> nn.Dim:
    """
    :return: `num_heads` as a dim
    :raises ValueError: `dim` is not a multiple of it
    """
    heads = as_dim(num_heads, "num_heads", make=nn.SpatialDim)
    if dim.dimension % heads.dimension:
        raise ValueError(f"{who}: {dim.dimension} is not a multiple of num_heads {heads.dimension}")
    return heads


def as_even_dim(size: int | nn.Dim, name: str) -> nn.Dim:
    """
    :return: `size` as a dim; half of it are sines, half cosines of the positions
    :raises ValueError: it is odd, or less than four
    """
    dim = as_dim(size, name)
    if dim.dimension % 2 or dim.dimension < 4:
        raise ValueError(f"{name}: expected an even size from 4 on, got {dim.dimension}")
    return dim
