"""
Transformer encoder: self-attention and feed-forward, each behind a layer norm.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, with the norm
first, which trains without warm-up tricks (Xiong et al., 2020, https://arxiv.org/abs/2002.04745),
and one norm behind the last block.

The default sizes are those of ESPnet's large transformer for LibriSpeech (egs/librispeech/asr1,
train_pytorch_transformer.v2 large): 12 blocks of size 512, 8 heads, feed-forward 2048, dropout 0.1,
4x convolutional subsampling in front, sinusoidal positions added to the scaled input.
"""

from __future__ import annotations

from collections.abc import Iterable

from ... import nn
from .. import _dims
from .._feed_forward import FeedForward
from .._positions import sinusoids
from ..frontend.conv_subsampling import make_conv_subsampling


class TrafoEncBlock(nn.Module):
    """x + self-attention, + feed-forward, each with a layer norm in front"""

    def __init__(self, dim: nn.Dim, *, num_heads: nn.Dim, ff_dim: nn.Dim, dropout: float):
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.self_att_norm = nn.LayerNorm(dim)
        self.self_att = nn.SelfAttention(
            dim,
            dim,
            key_dim_total=dim,
            value_dim_total=dim,
            num_heads=num_heads,
            att_dropout=dropout,
        )
        self.ff = FeedForward(dim, ff_dim, dropout=dropout)
        self.dropout = dropout

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, dim]` to the same, and `in_spatial_dim` itself"""
        _dims.check_input(
            "trafo_enc_block", source, in_dim=self.in_dim, in_spatial_dim=in_spatial_dim
        )
        att = self.self_att(self.self_att_norm(source), axis=in_spatial_dim)
        x = source + nn.dropout(att, self.dropout)
        return x + self.ff(x), in_spatial_dim


def make_trafo_enc_block(
    dim: int | nn.Dim = 512,
    *,
    num_heads: int | nn.Dim = 8,
    ff_dim: int | nn.Dim | None = None,
    dropout: float = 0.1,
) -> TrafoEncBlock:
    """
    One transformer block on `[B, in_spatial_dim, dim]`, called like an encoder.

    :param dim: size of the block
    :param num_heads: heads of the self-attention; must divide `dim`
    :param ff_dim: hidden size of the feed-forward, by default four times `dim` as in the paper
    :param dropout: behind both parts, within the feed-forward, and on the attention weights
    :raises ValueError: `dim` is not a multiple of `num_heads`
    """
    dim = _dims.as_dim(dim, "transformer")
    return TrafoEncBlock(
        dim,
        num_heads=_dims.as_heads(num_heads, dim, "trafo_enc_block"),
        ff_dim=_dims.as_dim(4 * dim.dimension if ff_dim is None else ff_dim, "ff"),
        dropout=dropout,
    )


class TrafoEncoder(nn.Module):
    """A front end that subsamples, sinusoidal positions, dropout, the blocks, a layer norm."""

    def __init__(self, frontend: nn.Module, layers: Iterable[nn.Module], *, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim = frontend.in_dim, frontend.out_dim
        self.frontend = frontend
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(self.out_dim)
        self.dropout = dropout

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`
        """
        x, spatial_dim = self.frontend(source, in_spatial_dim=in_spatial_dim)
        position = sinusoids(spatial_dim, self.out_dim)
        x = nn.dropout(self.out_dim.dimension**0.5 * x + position, self.dropout)
        for layer in self.layers:
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
        return self.norm(x), spatial_dim


def make_trafo_encoder(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    num_layers: int = 12,
    num_heads: int | nn.Dim = 8,
    subsampling: int = 4,
    dropout: float = 0.1,
) -> TrafoEncoder:
    """
    A transformer encoder on feature frames: convolutional subsampling, then `num_layers` blocks.

    For other parts, build :class:`TrafoEncoder` from a front end and a list of
    :func:`make_trafo_enc_block`.

    :param in_dim: features per frame, e.g. of log-mel
    :param out_dim: size of the model, even
    :param num_layers: number of blocks
    :param num_heads: heads of each self-attention; must divide `out_dim`
    :param subsampling: input frames per output frame: 1, 2, 3, 4, 6 or 8
    :param dropout: in all places
    :raises ValueError: `out_dim` is not a multiple of `num_heads`, or another subsampling
    """
    out_dim = _dims.as_even_dim(out_dim, "transformer")
    sizes = {
        "num_heads": _dims.as_heads(num_heads, out_dim, "trafo_encoder"),
        "ff_dim": nn.FeatureDim("ff", 4 * out_dim.dimension),
    }
    frontend = make_conv_subsampling(in_dim, out_dim, factor=subsampling)
    layers = [make_trafo_enc_block(out_dim, dropout=dropout, **sizes) for _ in range(num_layers)]
    return TrafoEncoder(frontend, layers, dropout=dropout)
