"""
Convolutional subsampling: three convolutions over time and frequency, then a linear layer to the
model size.

The channels (32, 64, 64) with 3x3 filters are those of the conformer recipes of RWTH Aachen around
RETURNN, where the frequency axis is halved by pooling after the first convolution; here the first
convolution halves it by its stride, which costs half as much. The time axis is subsampled by the
strides of the later convolutions, so that the first one sees every frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from .. import _dims

# total subsampling -> the strides over time of the three convolutions
TIME_STRIDES = {1: (1, 1, 1), 2: (1, 2, 1), 3: (1, 3, 1), 4: (1, 2, 2), 6: (1, 3, 2), 8: (2, 2, 2)}
FREQUENCY_STRIDES = (2, 1, 1)


class ConvLayer(nn.Module):
    """
    A 3x3 convolution over time and frequency with strides, and ReLU.

    Frames beyond the end of a sequence are zeroed before it (:func:`nn.conv` does that, with
    behavior version 23 and later), and its padding does not depend on the batch (24 and later), so
    a sequence has the same output whatever it is batched with.
    """

    def __init__(
        self, in_dim: nn.Dim, out_dim: nn.Dim, *, frequency_dim: nn.Dim, strides: tuple[int, int]
    ):
        super().__init__()
        self.conv = nn.Conv2d(in_dim, out_dim, 3, strides=strides, padding="same")
        self.in_frequency_dim = frequency_dim
        size = -(-frequency_dim.dimension // strides[1])
        self.out_frequency_dim = nn.SpatialDim(f"{out_dim.name}_frequency", size)
        self.time_stride = strides[0]

    def __call__(self, x: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        (spatial_dim,) = nn.make_conv_out_spatial_dims(
            [in_spatial_dim], filter_size=3, strides=self.time_stride, padding="same"
        )
        x, _ = self.conv(
            x,
            in_spatial_dims=[in_spatial_dim, self.in_frequency_dim],
            out_spatial_dims=[spatial_dim, self.out_frequency_dim],
        )
        return nn.relu(x), spatial_dim


class ConvSubsampling(nn.Module):
    """Convolutions, their channels and frequencies joined into one feature axis, a linear layer."""

    def __init__(
        self,
        in_dim: nn.Dim,
        out_dim: nn.Dim,
        *,
        channels: Sequence[int],
        strides: Sequence[tuple[int, int]],
    ):
        """:param strides: over time and frequency, for each convolution"""
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.audio_dim = nn.FeatureDim("conv_in", 1)
        self.layers = nn.ModuleList()
        dim, frequency_dim = self.audio_dim, in_dim
        for i, (size, stride) in enumerate(zip(channels, strides, strict=True)):
            conv_dim = nn.FeatureDim(f"conv{i}", size)
            layer = ConvLayer(dim, conv_dim, frequency_dim=frequency_dim, strides=stride)
            self.layers.append(layer)
            dim, frequency_dim = conv_dim, layer.out_frequency_dim
        self.last_dims = [frequency_dim, dim]
        self.merged_dim = nn.FeatureDim("conv_out", frequency_dim.dimension * dim.dimension)
        self.linear = nn.Linear(self.merged_dim, out_dim)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(frames / stride) frames
            after each convolution
        """
        dims = {"in_dim": self.in_dim, "in_spatial_dim": in_spatial_dim}
        _dims.check_input("conv_subsampling", source, **dims)
        x, spatial_dim = nn.expand_dim(source, dim=self.audio_dim), in_spatial_dim
        for layer in self.layers:
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
        x, _ = nn.merge_dims(x, dims=self.last_dims, out_dim=self.merged_dim)
        return self.linear(x), spatial_dim


def make_conv_subsampling(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    factor: int = 4,
    channels: Sequence[int] = (32, 64, 64),
) -> ConvSubsampling:
    """
    Three 3x3 convolutions that keep one of `factor` frames, and a linear layer to `out_dim`.

    :param in_dim: features per frame
    :param out_dim: the size of the model behind it
    :param factor: input frames per output frame: 1, 2, 3, 4, 6 or 8. With frames of 10 ms, 4 (40
        ms) is the value of the Conformer paper (https://arxiv.org/abs/2005.08100) and of ESPnet, 6
        that of the RETURNN recipes
    :param channels: of the three convolutions
    :raises ValueError: another factor, or not three channels
    """
    if factor not in TIME_STRIDES:
        raise ValueError(
            f"conv_subsampling: factor must be one of {list(TIME_STRIDES)}, got {factor!r}"
        )
    if len(channels) != 3:
        raise ValueError(
            f"conv_subsampling: expected the channels of three convolutions, got {channels!r}"
        )
    in_dim, out_dim = _dims.as_dim(in_dim, "in_dim"), _dims.as_dim(out_dim, "out_dim")
    strides = list(zip(TIME_STRIDES[factor], FREQUENCY_STRIDES, strict=True))
    return ConvSubsampling(in_dim, out_dim, channels=channels, strides=strides)
