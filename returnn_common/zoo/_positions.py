"""Absolute positions as sinusoids, Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.5."""

from __future__ import annotations

from .. import nn


def sinusoids(spatial_dim: nn.Dim, feature_dim: nn.Dim, *, start: nn.Tensor | int = 0) -> nn.Tensor:
    """
    :param start: the position of the first frame
    :return: `[spatial_dim, feature_dim]`, or `[feature_dim]` for `nn.single_step_dim`: sines, then
        cosines, of frequencies from 1 down to 1 / 10,000
    """
    if spatial_dim == nn.single_step_dim:
        position = nn.convert_to_tensor(start)
    else:
        position = nn.range_over_dim(spatial_dim) + start
    return nn.sinusoidal_encoding(position, feat_dim=feature_dim)
