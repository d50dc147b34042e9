"""
Conformer: a transformer encoder with a convolution in every block.

Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition", 2020,
https://arxiv.org/abs/2005.08100. A block is a half-step feed-forward, relative self-attention, a
convolution module, another half-step feed-forward and a layer norm; every part normalises its input
first and ends in dropout.

The default sizes are those of ESPnet's conformer for LibriSpeech (egs2/librispeech/asr1,
train_asr_conformer8.yaml): 12 blocks of size 512, 8 heads, feed-forward 2048, kernel 31, dropout
0.1. The paper's Table 1 has, with kernel 32: (L) `num_layers=17`; (M) `out_dim=256, num_layers=16,
num_heads=4`; (S) `out_dim=144, num_layers=16, num_heads=4`.

Dropout draws an independent mask for every element, as the paper's and all torch implementations
do. RETURNN's own `ConformerEncoder` shares the mask over batch and time by default
(`rf_dropout_broadcast`), which is cheaper and a stronger, different regulariser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ... import nn
from .. import _dims
from .._feed_forward import FeedForward
from ..frontend.conv_subsampling import make_conv_subsampling
from .conformer_parts import Convolution, SelfAttention


class ConformerBlock(nn.Module):
    """
    x + 1/2 ff, + self-attention, + convolution, + 1/2 ff, layer norm (equation 1 of the paper)
    """

    def __init__(
        self, ff1: FeedForward, self_att: SelfAttention, conv: Convolution, ff2: FeedForward
    ):
        super().__init__()
        self.in_dim = self.out_dim = ff1.in_dim
        self.ff1, self.self_att, self.conv, self.ff2 = ff1, self_att, conv, ff2
        self.norm = nn.LayerNorm(self.out_dim)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, dim]` to the same, and `in_spatial_dim` itself"""
        x = source
        x = x + 0.5 * self.ff1(x)
        x = x + self.self_att(x, spatial_dim=in_spatial_dim)
        x = x + self.conv(x, spatial_dim=in_spatial_dim)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x), in_spatial_dim


def make_conformer_block(
    dim: int | nn.Dim = 512,
    *,
    num_heads: int | nn.Dim = 8,
    ff_dim: int | nn.Dim | None = None,
    kernel_size: int = 31,
    dropout: float = 0.1,
    conv_norm: Callable[[nn.Dim], nn.Module] = nn.BatchNorm,
) -> ConformerBlock:
    """
    One conformer block on `[B, in_spatial_dim, dim]`, called like an encoder.

    :param dim: size of the block
    :param num_heads: heads of the self-attention; must divide `dim`
    :param ff_dim: hidden size of both feed-forwards, by default four times `dim` as in the paper
    :param kernel_size: of the depthwise convolution, in frames (the paper has 32, which has no
        centre; ESPnet has 31)
    :param dropout: in all places of the paper, and on the attention weights
    :param conv_norm: makes the norm behind the depthwise convolution from `dim`.
        :class:`nn.BatchNorm`, the paper's, takes its statistics over the frames within the
        sequences only. :class:`nn.LayerNorm` keeps utterances apart
    :raises ValueError: `dim` is not a multiple of `num_heads`
    """
    dim = _dims.as_dim(dim, "conformer")
    num_heads = _dims.as_heads(num_heads, dim, "conformer")
    ff_dim = _dims.as_dim(4 * dim.dimension if ff_dim is None else ff_dim, "ff")
    return ConformerBlock(
        FeedForward(dim, ff_dim, activation=nn.swish, dropout=dropout),
        SelfAttention(dim, num_heads=num_heads, dropout=dropout),
        Convolution(dim, kernel_size=kernel_size, conv_norm=conv_norm, dropout=dropout),
        FeedForward(dim, ff_dim, activation=nn.swish, dropout=dropout),
    )


class Conformer(nn.Module):
    """A front end that subsamples, dropout, and the blocks one after the other."""

    def __init__(self, frontend: nn.Module, layers: Iterable[nn.Module], *, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim = frontend.in_dim, frontend.out_dim
        self.frontend = frontend
        self.layers = nn.ModuleList(layers)
        self.dropout = dropout

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`
        """
        x, spatial_dim = self.frontend(source, in_spatial_dim=in_spatial_dim)
        x = nn.dropout(x, self.dropout)
        for layer in self.layers:
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
        return x, spatial_dim


def make_conformer(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    num_layers: int = 12,
    num_heads: int | nn.Dim = 8,
    subsampling: int = 4,
    dropout: float = 0.1,
) -> Conformer:
    """
    A conformer encoder on feature frames: convolutional subsampling, then `num_layers` blocks.

    For other parts, build :class:`Conformer` from a front end and a list of
    :func:`make_conformer_block`.

    :param in_dim: features per frame, e.g. of log-mel
    :param out_dim: size of the model
    :param num_layers: number of blocks
    :param num_heads: heads of each self-attention; must divide `out_dim`
    :param subsampling: input frames per output frame: 1, 2, 3, 4, 6 or 8
    :param dropout: in all places
    """
    out_dim = _dims.as_dim(out_dim, "conformer")
    sizes = {
        "num_heads": _dims.as_heads(num_heads, out_dim, "conformer"),
        "ff_dim": nn.FeatureDim("ff", 4 * out_dim.dimension),
    }
    frontend = make_conv_subsampling(in_dim, out_dim, factor=subsampling)
    layers = [make_conformer_block(out_dim, dropout=dropout, **sizes) for _ in range(num_layers)]
    return Conformer(frontend, layers, dropout=dropout)
