"""
Bidirectional LSTM encoders, with max-pooling over time between the first layers, or with a
convolutional front end.

The default sizes of :func:`make_blstm` are those of the encoder of Zeyer et al., "A Comparison of
Transformer and LSTM Encoder Decoder Models for ASR", ASRU 2019,
https://doi.org/10.1109/ASRU46091.2019.9004025: six layers of 1024 cells in each direction, a
subsampling of 6 by max-pooling, dropout 0.3. Those of :func:`make_cnn_blstm` are of Hori et al., "Advances in
Joint CTC-Attention based End-to-End Speech Recognition with a Deep CNN Encoder and RNN-LM", 2017,
https://arxiv.org/abs/1706.02737: four VGG-like convolutions, then four layers of 320 cells in each
direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import nn
from .. import _dims
from ..frontend.vgg_subsampling import make_vgg_subsampling


class BlstmLayer(nn.Module):
    """One LSTM forward, one backward, their outputs side by side."""

    def __init__(self, in_dim: nn.Dim, cells_dim: nn.Dim):
        """:param cells_dim: of each direction"""
        super().__init__()
        self.in_dim, self.cells_dim = in_dim, cells_dim
        self.out_dim = nn.FeatureDim("blstm", 2 * cells_dim.dimension)
        self.forward = nn.LSTM(in_dim, cells_dim)
        self.backward = nn.LSTM(in_dim, cells_dim)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, in_dim]` to `[B, in_spatial_dim, out_dim]`, and `in_spatial_dim`"""
        forward = run(self.forward, source, spatial_dim=in_spatial_dim)
        backward = nn.reverse_sequence(source, axis=in_spatial_dim)
        backward = run(self.backward, backward, spatial_dim=in_spatial_dim)
        backward = nn.reverse_sequence(backward, axis=in_spatial_dim)
        parts = [(forward, self.cells_dim), (backward, self.cells_dim)]
        out, _ = nn.concat(*parts, out_dim=self.out_dim)
        out.feature_dim = self.out_dim
        return out, in_spatial_dim


def run(lstm: nn.LSTM, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
    """:return: the outputs of an LSTM over `spatial_dim`, from a state of zeros"""
    batch_dims = source.remaining_dims([spatial_dim, lstm.in_dim])
    state = lstm.default_initial_state(batch_dims=batch_dims)
    out, _ = lstm(source, state=state, spatial_dim=spatial_dim)
    return out


class Blstm(nn.Module):
    """
    BLSTM layers, each with dropout behind it, and with max-pooling over time behind the first ones.

    :param pooling: how many frames are joined behind the first layer, the second, ...
    :param frontend: called before, like an encoder; None for none
    """

    def __init__(
        self,
        layers: Iterable[BlstmLayer],
        *,
        pooling: Sequence[int] = (),
        frontend: nn.Module | None = None,
        dropout: float,
    ):
        super().__init__()
        self.frontend = frontend
        self.layers = nn.ModuleList(layers)
        self.in_dim = self.layers[0].in_dim if frontend is None else frontend.in_dim
        self.out_dim = self.layers[-1].out_dim
        self.pooling = [*pooling, *[1] * (len(self.layers) - len(pooling))]
        self.dropout = dropout

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(frames / n) frames after
            each pooling of n
        """
        dims = {"in_dim": self.in_dim, "in_spatial_dim": in_spatial_dim}
        _dims.check_input("blstm", source, **dims)
        x, spatial_dim = source, in_spatial_dim
        if self.frontend is not None:
            x, spatial_dim = self.frontend(x, in_spatial_dim=spatial_dim)
        for layer, size in zip(self.layers, self.pooling, strict=True):
            x, spatial_dim = layer(x, in_spatial_dim=spatial_dim)
            if size > 1:
                x, spatial_dim = nn.max_pool1d(
                    x, pool_size=size, padding="same", in_spatial_dim=spatial_dim
                )
            x = nn.dropout(x, self.dropout)
        return x, spatial_dim


def _layers(in_dim: nn.Dim, num_cells: int | nn.Dim, num_layers: int) -> list[BlstmLayer]:
    cells_dim = _dims.as_dim(num_cells, "cells")
    _dims.check_num_layers("blstm", num_layers)
    layers = [BlstmLayer(in_dim, cells_dim)]
    for _ in range(num_layers - 1):
        layers.append(BlstmLayer(layers[-1].out_dim, cells_dim))
    return layers


def make_blstm(
    in_dim: int | nn.Dim = 80,
    num_cells: int | nn.Dim = 1024,
    *,
    num_layers: int = 6,
    pooling: Sequence[int] = (3, 2),
    dropout: float = 0.3,
) -> Blstm:
    """
    A bidirectional LSTM encoder with time pooling; its `out_dim` is twice `num_cells`.

    :param in_dim: features per frame, e.g. of log-mel
    :param num_cells: of each direction of each layer
    :param num_layers: number of layers
    :param pooling: how many frames are joined behind the first layer, the second, ... by their
        maximum; `()` for none
    :param dropout: behind each layer
    :raises ValueError: there are more poolings than layers, or one is not positive
    """
    if len(pooling) > num_layers or any(size < 1 for size in pooling):
        raise ValueError(
            f"blstm: expected at most {num_layers} positive poolings, got {tuple(pooling)}"
        )
    layers = _layers(_dims.as_dim(in_dim, "in_dim"), num_cells, num_layers)
    return Blstm(layers, pooling=pooling, dropout=dropout)


def make_cnn_blstm(
    in_dim: int | nn.Dim = 80,
    num_cells: int | nn.Dim = 320,
    *,
    num_layers: int = 4,
    channels: Sequence[int] = (64, 128),
    dropout: float = 0.0,
) -> Blstm:
    """
    VGG-like convolutions with 4x subsampling, then a bidirectional LSTM; `out_dim` is twice
    `num_cells`.

    :param in_dim: features per frame, e.g. of log-mel
    :param num_cells: of each direction of each layer
    :param num_layers: number of BLSTM layers
    :param channels: of the two pairs of convolutions
    :param dropout: behind each BLSTM layer
    :raises ValueError: `num_layers` is 0, or there are no channels
    """
    cells_dim = _dims.as_dim(num_cells, "cells")
    frontend = make_vgg_subsampling(in_dim, 2 * cells_dim.dimension, channels=channels)
    layers = _layers(frontend.out_dim, cells_dim, num_layers)
    return Blstm(layers, frontend=frontend, dropout=dropout)
