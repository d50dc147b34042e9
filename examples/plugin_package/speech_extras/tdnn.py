"""
A time-delay neural network: convolutions over time, the later ones dilated.

Peddinti et al., "A time delay neural network architecture for efficient modeling of long temporal
contexts", Interspeech 2015. As in later recipes of Kaldi every layer sees three frames: neighbours
in the first two layers, then every third frame, which gives a context of 15 frames on each side
with six layers.
"""

from __future__ import annotations

from returnn_common import nn

NUM_LOCAL = 2  # layers before the dilated ones
KERNEL_SIZE = 3


class TdnnLayer(nn.Module):
    """convolution, ReLU, layer norm, dropout"""

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim, *, dilation: int, dropout: float):
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        # As "same", which RETURNN's torch backend computes without the dilation.
        padding = KERNEL_SIZE // 2 * dilation
        self.conv = nn.Conv1d(in_dim, out_dim, KERNEL_SIZE, padding=padding, dilation_rate=dilation)
        self.norm = nn.LayerNorm(out_dim)
        self.dropout = dropout

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, in_dim]` to `[B, out_spatial_dim, out_dim]`, and that dim"""
        x, spatial_dim = self.conv(source, in_spatial_dim=in_spatial_dim)
        return nn.dropout(self.norm(nn.relu(x)), self.dropout), spatial_dim


class Tdnn(nn.Module):
    """The layers one after the other."""

    def __init__(self, layers: list[TdnnLayer]):
        super().__init__()
        self.in_dim, self.out_dim = layers[0].in_dim, layers[-1].out_dim
        self.layers = nn.ModuleList(layers)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, as many frames as before
        """
        x, spatial_dim = source, in_spatial_dim
        for layer in self.layers:
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
        return x, spatial_dim


def make_tdnn(
    in_dim: int | nn.Dim = 80,
    out_dim: int | nn.Dim = 512,
    *,
    num_layers: int = 6,
    dilation: int = 3,
    dropout: float = 0.1,
) -> Tdnn:
    """
    A time-delay network on feature frames.

    :param in_dim: features per frame, e.g. of log-mel
    :param out_dim: size of all layers
    :param num_layers: number of layers, at least one
    :param dilation: of all layers but the first two, in frames
    :param dropout: behind each layer
    :raises ValueError: `num_layers` is not positive
    """
    if num_layers < 1:
        raise ValueError(f"tdnn: expected at least one layer, got num_layers={num_layers}")
    in_dim = in_dim if isinstance(in_dim, nn.Dim) else nn.FeatureDim("features", in_dim)
    out_dim = out_dim if isinstance(out_dim, nn.Dim) else nn.FeatureDim("tdnn", out_dim)
    layers = [
        TdnnLayer(
            out_dim if i else in_dim,
            out_dim,
            dilation=1 if i < NUM_LOCAL else dilation,
            dropout=dropout,
        )
        for i in range(num_layers)
    ]
    return Tdnn(layers)
