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
        return nn.cond(
            nn.get_run_ctx().is_train_flag_enabled(func=SpecAugment.__call__),
            lambda: self.masked(source, spatial_dim=spatial_dim),
            lambda: source,
        )

    def masked(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `source` with its masks, in training or not"""
        mask = self.time_mask(source, spatial_dim=spatial_dim)
        if int(source.feature_dim.dimension * self.max_feature_width) > 0:
            mask = nn.logical_or(mask, self.feature_mask(source, spatial_dim=spatial_dim))
        return nn.where(mask, 0.0, source)

    def time_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, spatial_dim]`, True where masked"""
        batch_dims = source.remaining_dims([spatial_dim, source.feature_dim])
        length = spatial_dim.get_size_tensor(device=source.device)
        mask_dim = nn.Dim(length // self.frames_per_mask, name="time_masks")
        return random_spans(
            nn.range_over_dim(spatial_dim, device=source.device),
            batch_dims=batch_dims,
            length=length,
            span_dim=mask_dim,
            max_spans=length // self.frames_per_mask,
            max_width=self.max_width,
        )

    def feature_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, F]`, True where masked"""
        dim = source.feature_dim
        return random_spans(
            nn.range_over_dim(dim, device=source.device),
            batch_dims=source.remaining_dims([spatial_dim, dim]),
            length=dim.dimension,
            span_dim=self.feature_mask_dim,
            max_spans=self.feature_mask_dim.dimension,
            max_width=int(dim.dimension * self.max_feature_width),
        )


def random_spans(
    positions: nn.Tensor,
    *,
    batch_dims: list[nn.Dim],
    length: nn.Tensor | int,
    span_dim: nn.Dim,
    max_spans: nn.Tensor | int,
    max_width: int,
) -> nn.Tensor:
    """
    Up to `max_spans` spans for each entry of `batch_dims`, at independent places.

    :param positions: `[T]`, 0, 1, ... along the axis to cover
    :param length: `batch_dims` or a number; every span starts in `0 ... length - 1`
    :param span_dim: as large as the largest `max_spans`
    :param max_spans: `batch_dims` or a number; the count is uniform from min(2, max_spans) to this
    :param max_width: the width is uniform from 1 to this
    :return: bool, `batch_dims` and `[T]`: True inside a span
    """
    dims = [*batch_dims, span_dim]
    min_spans = nn.minimum(max_spans, MIN_MASKS)
    num_spans = min_spans + uniform_int(batch_dims, max_spans - min_spans + 1)
    start = uniform_int(dims, length)
    width = 1 + uniform_int(dims, max_width)
    inside = (positions >= start) & (positions < start + width)
    return nn.reduce_any(inside & (nn.range_over_dim(span_dim) < num_spans), axis=span_dim)


def uniform_int(dims: list[nn.Dim], bound: nn.Tensor | int) -> nn.Tensor:
    """:return: `dims`, independent and uniform in `0 ... bound - 1`"""
    return nn.cast(nn.random_uniform(dims) * bound, "int32")


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
