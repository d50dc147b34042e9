"""The short names of dims that people write in RETURNN configs."""

from __future__ import annotations

from returnn.tensor import Dim


def FeatureDim(name: str, size: int) -> Dim:
    """a feature dim of a fixed size"""
    return Dim(size, name=name, kind=Dim.Types.Feature)


def SpatialDim(name: str, size: int | None = None) -> Dim:
    """a spatial dim, by default of a dynamic size per sequence"""
    return Dim(size, name=name, kind=Dim.Types.Spatial)
