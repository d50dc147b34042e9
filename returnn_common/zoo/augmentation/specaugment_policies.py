"""
The four policies of the SpecAugment paper, by the names of its Table 1.

Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition", 2019,
https://arxiv.org/abs/1904.08779, section 2 and Table 1, without time warping, which the paper finds to
matter least (Table 6):

=====================  ===  ===  ===  ===  ===
policy                   F  m_F    T    p  m_T
=====================  ===  ===  ===  ===  ===
LibriSpeech basic       27    1  100  1.0    1
LibriSpeech double      27    2  100  1.0    2
Switchboard mild        15    2   70  0.2    2
Switchboard strong      27    2   70  0.2    2
=====================  ===  ===  ===  ===  ===

Each of m_F feature masks has a width from 0 to F - 1 and starts where it fits; each of m_T time masks a
width from 0 to T - 1, but at most a fraction p of the sequence, and starts where it fits. Every sequence
draws for itself. The widths are in channels of 80-dimensional log-mel features and frames of 10 ms.
:func:`make_specaugment` has the policy of other recipes, whose number of masks grows with the length.
"""

from __future__ import annotations

from ... import nn
from .. import _dims
from .specaugment import uniform_int


class SpecAugmentPolicy(nn.Module):
    """Numbers and widths of masks, without parameters; see the module docstring."""

    def __init__(
        self,
        *,
        feature_masks: int,
        feature_width: int,
        time_masks: int,
        time_width: int,
        time_fraction: float,
    ):
        """:param time_fraction: of the sequence that one mask may cover"""
        super().__init__()
        self.feature_mask_dim = nn.SpatialDim("feature_masks", feature_masks)
        self.time_mask_dim = nn.SpatialDim("time_masks", time_masks)
        self.feature_width, self.time_width = feature_width, time_width
        self.time_fraction = time_fraction

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """`[B, spatial_dim, F]` to the same; `source` itself when not in training"""
        _dims.check_input("specaugment", source, spatial_dim=spatial_dim)
        train = nn.get_run_ctx().is_train_flag_enabled(func=SpecAugmentPolicy.__call__)
        if train is False:  # known already, as in recognition; else a bool or a tensor
            return source
        mask = nn.logical_and(self.time_mask(source, spatial_dim=spatial_dim), train)
        out = nn.where(mask, 0.0, source)
        mask = nn.logical_and(self.feature_mask(source, spatial_dim=spatial_dim), train)
        return nn.where(mask, 0.0, out)

    def time_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, spatial_dim]`, True where masked"""
        batch_dims = source.remaining_dims([spatial_dim, source.feature_dim])
        length = spatial_dim.get_size_tensor(device=source.device)
        most = nn.cast(nn.cast(length, "float32") * self.time_fraction, "int32")
        return masks_that_fit(
            nn.range_over_dim(spatial_dim, device=source.device),
            dims=[*batch_dims, self.time_mask_dim],
            length=length,
            max_width=nn.minimum(most, self.time_width - 1),
        )

    def feature_mask(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """:return: `[B, F]`, True where masked"""
        feature_dim = source.feature_dim
        size = feature_dim.dimension
        return masks_that_fit(
            nn.range_over_dim(feature_dim, device=source.device),
            dims=[*source.remaining_dims([spatial_dim, feature_dim]), self.feature_mask_dim],
            length=nn.convert_to_tensor(size),
            max_width=nn.convert_to_tensor(min(size, self.feature_width - 1)),
        )


def masks_that_fit(
    positions: nn.Tensor, *, dims: list[nn.Dim], length: nn.Tensor, max_width: nn.Tensor
) -> nn.Tensor:
    """
    Independent masks of uniform width, which start uniformly where they end within the length.

    :param positions: `[T]`, 0, 1, ... along the axis to cover
    :param dims: `batch_dims`, each entry with masks of its own, and last the dim of the masks
    :param length: `batch_dims` or a scalar
    :param max_width: widths are 0 ... max_width, `batch_dims` or a scalar, at most the length
    :return: bool, `batch_dims` and `[T]`: True inside a mask
    """
    width = uniform_int(dims, 0, max_width + 1)
    start = uniform_int(dims, 0, length - width + 1)
    inside = nn.compare_bc(positions, ">=", start)
    inside = inside & nn.compare_bc(positions, "<", start + width)
    return nn.reduce_any(inside, axis=dims[-1])


def make_specaugment_librispeech_basic() -> SpecAugmentPolicy:
    """SpecAugment with the paper's policy LB: one feature mask below 27, one time mask below 100."""
    return SpecAugmentPolicy(
        feature_masks=1, feature_width=27, time_masks=1, time_width=100, time_fraction=1.0
    )


def make_specaugment_librispeech_double() -> SpecAugmentPolicy:
    """SpecAugment with the paper's policy LD: two feature masks below 27, two time masks below 100."""
    return SpecAugmentPolicy(
        feature_masks=2, feature_width=27, time_masks=2, time_width=100, time_fraction=1.0
    )


def make_specaugment_switchboard_mild() -> SpecAugmentPolicy:
    """
    SpecAugment with the paper's policy SM: two feature masks below 15, two time masks below 70 and up
    to a fifth of the sequence.
    """
    return SpecAugmentPolicy(
        feature_masks=2, feature_width=15, time_masks=2, time_width=70, time_fraction=0.2
    )


def make_specaugment_switchboard_strong() -> SpecAugmentPolicy:
    """
    SpecAugment with the paper's policy SS: two feature masks below 27, two time masks below 70 and up
    to a fifth of the sequence.
    """
    return SpecAugmentPolicy(
        feature_masks=2, feature_width=27, time_masks=2, time_width=70, time_fraction=0.2
    )
