"""
The parts of a conformer block behind its feed-forward: self-attention, convolution.

Gulati et al., 2020, https://arxiv.org/abs/2005.08100, figures 2 and 3. Each normalises its input
first and ends in dropout; the residual around it belongs to the block.
"""

from __future__ import annotations

from collections.abc import Callable

from ... import nn


class SelfAttention(nn.Module):
    """
    layer norm, self-attention with relative positions (Transformer-XL,
    https://arxiv.org/abs/1901.02860), dropout
    """

    def __init__(self, dim: nn.Dim, *, num_heads: nn.Dim, dropout: float):
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.norm = nn.LayerNorm(dim)
        self.att = nn.RelPosSelfAttention(
            dim,
            dim,
            key_dim_total=dim,
            value_dim_total=dim,
            num_heads=num_heads,
            att_dropout=dropout,
        )
        self.dropout = dropout

    def __call__(self, x: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        x = self.att(self.norm(x), axis=spatial_dim)
        return nn.dropout(x, self.dropout)


class Convolution(nn.Module):
    """
    layer norm, linear, gate, depthwise convolution over time, norm, swish, linear, dropout (Figure
    2 of the paper)
    """

    def __init__(
        self,
        dim: nn.Dim,
        *,
        kernel_size: int,
        conv_norm: Callable[[nn.Dim], nn.Module],
        dropout: float,
    ):
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.norm = nn.LayerNorm(dim)
        self.linear_in = nn.Linear(dim, 2 * dim)
        self.depthwise_conv = nn.Conv1d(dim, dim, kernel_size, padding="same", groups=dim.dimension)
        self.conv_norm = conv_norm(dim)
        self.linear_out = nn.Linear(dim, dim)
        self.dropout = dropout

    def __call__(self, x: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        x, _ = nn.gating(self.linear_in(self.norm(x)), out_dim=self.in_dim)
        x, _ = self.depthwise_conv(x, in_spatial_dim=spatial_dim)
        x = self.linear_out(nn.swish(self.conv_norm(x)))
        return nn.dropout(x, self.dropout)
