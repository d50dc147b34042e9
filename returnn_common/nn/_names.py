"""The short names of dims that people write in RETURNN configs."""

from __future__ import annotations

from returnn.tensor import Dim, Tensor

from ._returnn import special_dim


def FeatureDim(name: str, size: int) -> Dim:
    """a feature dim of a fixed size"""
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"nn.FeatureDim({name!r}, {size!r}): the size must be a positive integer")
    return Dim(size, name=name, kind=Dim.Types.Feature)


def SpatialDim(name: str, size: int | None = None) -> Dim:
    """a spatial dim, by default of a dynamic size per sequence"""
    return Dim(size, name=name, kind=Dim.Types.Spatial)


#: Stand for the feature dim, or the one dynamic spatial dim, of the tensor that an operation works on.
any_feature_dim = special_dim("any_feature", Dim.Types.Feature)
any_spatial_dim = special_dim("any_spatial", Dim.Types.Spatial)


def resolve_dim(source: Tensor, dim: Dim) -> Dim:
    """the dim of ``source`` that ``dim`` stands for; ValueError where there is none, or several"""
    if dim is any_feature_dim:
        if source.feature_dim is None:
            raise ValueError(
                f"nn.any_feature_dim: {source} has no feature dim, name the dim instead"
            )
        return source.feature_dim
    if dim is any_spatial_dim:
        found = [d for d in source.dims if d.is_dynamic() and not d.is_batch_dim()]
        if len(found) != 1:
            raise ValueError(
                f"nn.any_spatial_dim: {source} has {len(found)} spatial dims, name the dim instead"
            )
        return found[0]
    return dim
