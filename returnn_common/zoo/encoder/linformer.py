"""
Linformer: a transformer encoder whose self-attention costs as much as the sequence is long, not its
square.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020, https://arxiv.org/abs/2006.04768.
Keys and values are projected along time to a fixed number of positions (equation 7), with learned
weights for each frame, so there is a longest input; keys and values of padding are zero before. Each
block has two projections, for keys and for values, that all heads share ("headwise sharing", section 4).

Default sizes are those of our transformer encoder, and of the paper for 1024 frames: 256 positions.
"""

from __future__ import annotations

from ... import nn
from .. import _dims
from .._feed_forward import FeedForward
from ..frontend.conv_subsampling import make_conv_subsampling
from .transformer import TrafoEncoder

DROPOUT = 0.1


class LinformerAttention(nn.Module):
    """Multi-head self-attention to projected positions."""

    def __init__(self, dim: nn.Dim, *, num_heads: nn.Dim, length_dim: nn.Dim, positions: nn.Dim):
        """
        :param length_dim: as many frames as there may be
        :param positions: to which these are projected
        """
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.num_heads, self.head_dim = num_heads, dim.div_left(num_heads)
        self.length_dim, self.positions = length_dim, positions
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)
        self.project_keys = nn.Embedding(length_dim, positions)
        self.project_values = nn.Embedding(length_dim, positions)

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """`[B, spatial_dim, dim]` to the same"""
        source = nn.check_length(
            source, spatial_dim=spatial_dim, max_length=self.length_dim.dimension
        )
        query, key, value = (
            nn.split_dims(part(source), axis=self.in_dim, dims=[self.num_heads, self.head_dim])
            for part in (self.query, self.key, self.value)
        )
        out = nn.dot_attention(
            query,
            self.projected(key, self.project_keys, spatial_dim=spatial_dim),
            self.projected(value, self.project_values, spatial_dim=spatial_dim),
            key_dim=self.head_dim,
            axis=self.positions,
            att_dropout=DROPOUT,
        )
        out, _ = nn.merge_dims(out, dims=[self.num_heads, self.head_dim], out_dim=self.out_dim)
        return self.proj(out)

    def projected(
        self, x: nn.Tensor, projection: nn.Embedding, *, spatial_dim: nn.Dim
    ) -> nn.Tensor:
        """`[B, spatial_dim, heads, head_dim]` to `[B, positions, heads, head_dim]`"""
        x = x.copy_masked(0.0, dims=[spatial_dim])
        frames = nn.set_sparse_dim(nn.range_over_dim(spatial_dim), self.length_dim)
        out = nn.matmul(
            x, projection(frames), reduce=spatial_dim, use_mask=False
        )  # is masked already
        out.feature_dim = self.head_dim
        return out


class LinformerBlock(nn.Module):
    """x + attention, + feed-forward, each with a layer norm in front"""

    def __init__(self, attention: LinformerAttention, *, ff_dim: nn.Dim):
        super().__init__()
        self.in_dim = self.out_dim = attention.in_dim
        self.self_att_norm = nn.LayerNorm(self.in_dim)
        self.self_att = attention
        self.ff = FeedForward(self.in_dim, ff_dim, dropout=DROPOUT)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, dim]` to the same, and `in_spatial_dim` itself"""
        att = self.self_att(self.self_att_norm(source), spatial_dim=in_spatial_dim)
        x = source + nn.dropout(att, DROPOUT)
        return x + self.ff(x), in_spatial_dim


def make_linformer(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    num_layers: int = 12,
    num_heads: int | nn.Dim = 8,
    max_length: int = 1024,
    num_positions: int | nn.Dim = 256,
) -> TrafoEncoder:
    """
    A linformer encoder on feature frames: 4x convolutional subsampling, then `num_layers` blocks.

    :param in_dim: features per frame, e.g. of log-mel
    :param out_dim: size of the model, even
    :param num_layers: number of blocks
    :param num_heads: heads of each self-attention; must divide `out_dim`
    :param max_length: the longest sequence, in frames after the subsampling: 1024 are 41 s of frames
        of 10 ms. A longer one is an error when the model runs (see :func:`nn.check_length`)
    :param num_positions: to which all frames are projected
    :raises ValueError: `out_dim` is not a multiple of `num_heads`, or `max_length` not positive
    """
    out_dim = _dims.as_even_dim(out_dim, "linformer")
    num_heads = _dims.as_heads(num_heads, out_dim, "linformer")
    length_dim = _dims.as_dim(max_length, "max_length", make=nn.SpatialDim)
    positions = _dims.as_dim(num_positions, "positions", make=nn.SpatialDim)
    ff_dim = nn.FeatureDim("ff", 4 * out_dim.dimension)
    layers = []
    for _ in range(num_layers):
        attention = LinformerAttention(
            out_dim, num_heads=num_heads, length_dim=length_dim, positions=positions
        )
        layers.append(LinformerBlock(attention, ff_dim=ff_dim))
    return TrafoEncoder(make_conv_subsampling(in_dim, out_dim), layers, dropout=DROPOUT)
