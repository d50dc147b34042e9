"""
SpecAugment: zero some stretches of time and some bands of frequency, in training.

Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition",
2019, https://arxiv.org/abs/1904.08779, without time warping. The numbers are those of the recipes
of RWTH Aachen: between 2 masks and one for every 25 frames, each 1 to 20 frames wide; 2 to 5
feature masks, each 1 to F // 5 channels wide.

Every sequence draws for itself: the number of masks uniformly up to what its own length allows,
each start uniformly within it, each width uniformly. So a sequence is treated alike whatever it is
batched with. Masks may overlap, and are cut at the end. Zero is the mean of features that
:func:`make_logmel` has normalised.
"""

from __future__ import annotations

from ... import nn
from .. import _dims

MIN_MASKS = 2  # where the length allows it


class SpecAugment(nn.Module):
    """Masks in time and frequency, without parameters; see the module docstring."""

    def __init__(
        self,
        *,
        frames_per_mask: int,
        max_width: int,
        max_feature_masks: int,
        max_feature_width: float,
    ):
        super().__init__()
        self.frames_per_mask, self.max_width = frames_per_mask, max_width
        self.feature_mask_dim = nn.SpatialDim("feature_masks", max_feature_masks)
        self.max_feature_width = max_feature_width

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """`[B, spatial_dim, F]` to the same; `source` itself when not in training"""
        _dims.check_input("specaugment", source, spatial_dim=spatial_dim)
        train = nn.get_run_ctx().is_train_flag_enabled(func=SpecAugment.__call__)
        if train is False:  # known already, as in recognition; else a bool or a tensor
            return source
        mask = nn.logical_and(self.time_mask(source, spatial_dim=spatial_dim), train)
        out = nn.where(mask, 0.0, source)
        if int(source.feature_dim.dimension * self.max_feature_width) == 0:
            return out
        mask = nn.logical_and(self.feature_mask(source, spatial_dim=spatial_dim), train)
        return nn.where(mask, 0.0, out)

    def time_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, spatial_dim]`, True where masked"""
        batch_dims = source.remaining_dims([spatial_dim, source.feature_dim])
        length = spatial_dim.get_size_tensor(device=source.device)
        max_masks = length // self.frames_per_mask
        return random_spans(
            nn.range_over_dim(spatial_dim, device=source.device),
            dims=[*batch_dims, nn.Dim(max_masks, name="time_masks")],
            num_spans=uniform_int(batch_dims, nn.minimum(max_masks, MIN_MASKS), max_masks + 1),
            length=length,
            max_width=self.max_width,
        )

    def feature_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, F]`, True where masked"""
        feature_dim, mask_dim = source.feature_dim, self.feature_mask_dim
        batch_dims = source.remaining_dims([spatial_dim, feature_dim])
        max_masks = mask_dim.dimension
        return random_spans(
            nn.range_over_dim(feature_dim, device=source.device),
            dims=[*batch_dims, mask_dim],
            num_spans=uniform_int(batch_dims, min(max_masks, MIN_MASKS), max_masks + 1),
            length=feature_dim.dimension,
            max_width=int(feature_dim.dimension * self.max_feature_width),
        )


def random_spans(
    positions: nn.Tensor,
    *,
    dims: list[nn.Dim],
    num_spans: nn.Tensor,
    length: nn.Tensor | int,
    max_width: int,
) -> nn.Tensor:
    """
    Spans of independent places and widths.

    :param positions: `[T]`, 0, 1, ... along the axis to cover
    :param dims: `batch_dims`, each entry with spans of its own, and last a dim of the largest
        number of spans
    :param num_spans: `batch_dims`, how many there are
    :param length: `batch_dims` or a number; every span starts in `0 ... length - 1`
    :param max_width: the width is uniform from 1 to this
    :return: bool, `batch_dims` and `[T]`: True inside a span
    """
    start = uniform_int(dims, 0, length)
    end = start + uniform_int(dims, 1, max_width + 1)
    inside = nn.compare_bc(positions, ">=", start) & nn.compare_bc(positions, "<", end)
    drawn = nn.compare_bc(nn.range_over_dim(dims[-1]), "<", num_spans)
    return nn.reduce_any(inside & drawn, axis=dims[-1])


def uniform_int(dims: list[nn.Dim], start: nn.Tensor | int, end: nn.Tensor | int) -> nn.Tensor:
    """:return: int32, `dims`, independent and uniform in `start ... end - 1`"""
    if isinstance(start, int) and isinstance(end, int):
        return nn.random_uniform(dims, dtype="int32", minval=start, maxval=end)
    # RETURNN draws integers only from one range for all entries
    from_zero = isinstance(start, int) and start == 0
    size = nn.cast(end if from_zero else end - start, "float32")
    drawn = nn.cast(nn.random_uniform(dims) * size, "int32")
    return drawn if from_zero else start + drawn


def make_specaugment(
    *,
    frames_per_mask: int = 25,
    max_width: int = 20,
    max_feature_masks: int = 5,
    max_feature_width: float = 0.2,
) -> SpecAugment:
    """
    SpecAugment with time and feature masks: `(source, *, spatial_dim) -> source`, in training only.

    :param frames_per_mask: at most one time mask for so many frames of the sequence
    :param max_width: of a time mask, in frames
    :param max_feature_masks: at most so many feature masks
    :param max_feature_width: of a feature mask, as a fraction of the features
    """
    return SpecAugment(
        frames_per_mask=frames_per_mask,
        max_width=max_width,
        max_feature_masks=max_feature_masks,
        max_feature_width=max_feature_width,
    )
