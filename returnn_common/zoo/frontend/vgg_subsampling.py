"""
VGG-like subsampling: pairs of 3x3 convolutions with max-pooling over time and frequency, then a linear
layer to the model size.

Simonyan and Zisserman, 2014, https://arxiv.org/abs/1409.1556; for speech with two pairs of 64 and 128
channels: Hori et al., 2017, https://arxiv.org/abs/1706.02737, section 3, and ESPnet's ``vggblstm``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from .. import _dims
from .conv_subsampling import ConvLayer

POOL_SIZE = 2  # over time and frequency


class VggBlock(nn.Module):
    """Two 3x3 convolutions with ReLU, then the maximum over 2x2 frames and frequencies."""

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim, *, frequency_dim: nn.Dim):
        super().__init__()
        self.conv1 = ConvLayer(in_dim, out_dim, frequency_dim=frequency_dim, strides=(1, 1))
        frequency_dim = self.conv1.out_frequency_dim
        inner_dim = nn.FeatureDim(f"{out_dim.name}_2", out_dim.dimension)
        self.conv2 = ConvLayer(out_dim, inner_dim, frequency_dim=frequency_dim, strides=(1, 1))
        self.in_frequency_dim, self.out_dim = self.conv2.out_frequency_dim, inner_dim
        size = -(-frequency_dim.dimension // POOL_SIZE)
        self.out_frequency_dim = nn.SpatialDim(f"{out_dim.name}_pooled", size)

    def __call__(self, x: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        x, spatial_dim = self.conv1(x, in_spatial_dim=in_spatial_dim)
        x, spatial_dim = self.conv2(x, in_spatial_dim=spatial_dim)
        pool = {"pool_size": POOL_SIZE, "padding": "same"}
        x, spatial_dim = nn.max_pool1d(x, in_spatial_dim=spatial_dim, **pool)
        x, _ = nn.max_pool1d(
            x,
            in_spatial_dim=self.in_frequency_dim,
            out_spatial_dim=self.out_frequency_dim,
            **pool,
        )
        return x, spatial_dim


class VggSubsampling(nn.Module):
    """The blocks, their channels and frequencies joined into one feature axis, a linear layer."""

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim, *, channels: Sequence[int]):
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.audio_dim = nn.FeatureDim("vgg_in", 1)
        self.layers = nn.ModuleList()
        dim, frequency_dim = self.audio_dim, in_dim
        for i, size in enumerate(channels):
            block = VggBlock(dim, nn.FeatureDim(f"vgg{i}", size), frequency_dim=frequency_dim)
            self.layers.append(block)
            dim, frequency_dim = block.out_dim, block.out_frequency_dim
        self.last_dims = [frequency_dim, dim]
        self.merged_dim = nn.FeatureDim("vgg_out", frequency_dim.dimension * dim.dimension)
        self.linear = nn.Linear(self.merged_dim, out_dim)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(frames / 2) frames after
            each pair
        """
        dims = {"in_dim": self.in_dim, "in_spatial_dim": in_spatial_dim}
        _dims.check_input("vgg_subsampling", source, **dims)
        x, spatial_dim = nn.expand_dim(source, dim=self.audio_dim), in_spatial_dim
        for layer in self.layers:
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
        x, _ = nn.merge_dims(x, dims=self.last_dims, out_dim=self.merged_dim)
        return self.linear(x), spatial_dim


def make_vgg_subsampling(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    channels: Sequence[int] = (64, 128),
) -> VggSubsampling:
    """
    Pairs of 3x3 convolutions, each pair with 2x2 max-pooling, and a linear layer to `out_dim`.

    :param in_dim: features per frame
    :param out_dim: the size of the model behind it
    :param channels: of each pair; every pair halves the frames, so two keep one of four
    :raises ValueError: there are no channels
    """
    if not channels:
        raise ValueError("vgg_subsampling: expected the channels of at least one pair, got none")
    return VggSubsampling(
        _dims.as_dim(in_dim, "in_dim"), _dims.as_dim(out_dim, "out_dim"), channels=channels
    )
