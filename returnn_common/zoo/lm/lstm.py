"""
LSTM language model: label embedding, LSTM layers, logits.

Sundermeyer et al., "LSTM Neural Networks for Language Modeling", Interspeech 2012. The default sizes are
those of the baseline of Irie et al., 2019, https://arxiv.org/abs/1905.04226, for 10k BPE labels on
LibriSpeech: four layers of 2048 cells, label embeddings of size 128, no dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import nn
from .. import _dims


class LstmLm(nn.Module):
    """Label embedding, the LSTM layers with dropout behind each, logits."""

    def __init__(self, embedding: nn.Embedding, layers: Iterable[nn.LSTM], *, dropout: float):
        super().__init__()
        self.target_dim = self.out_dim = embedding.in_dim
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(self.layers[-1].out_dim, self.out_dim)
        self.dropout = dropout

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: the state before the first label, zeros"""
        return nn.State(
            {
                name: layer.default_initial_state(batch_dims=batch_dims)
                for name, layer in self.layers.items()
            }
        )

    def __call__(
        self, label: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param label: the labels before, `[B, spatial_dim]`, or `[B]` for one step
        :return: logits `[B, spatial_dim, target_dim]` of the next labels, and the next state
        """
        x, new_state = self.embedding(label), nn.State()
        for name, layer in self.layers.items():
            x, new_state[name] = layer(x, spatial_dim=spatial_dim, state=state[name])
            x = nn.dropout(x, self.dropout)
        return self.output(x), new_state


def make_lstm_lm(
    target_dim: int | nn.Dim = 10_000,
    *,
    num_layers: int = 4,
    num_cells: int | nn.Dim = 2048,
    embedding_dim: int | nn.Dim = 128,
    dropout: float = 0.0,
) -> LstmLm:
    """
    An LSTM language model: `(label, *, spatial_dim, state) -> (logits, state)`.

    :param target_dim: number of labels, with those for begin and end of the sequence
    :param num_layers: number of LSTM layers
    :param num_cells: of each layer
    :param embedding_dim: size of the label embedding
    :param dropout: behind each layer
    :raises ValueError: `num_layers` is 0
    """
    _dims.check_num_layers("lstm_lm", num_layers)
    embedding_dim = _dims.as_dim(embedding_dim, "embedding")
    cells_dim = _dims.as_dim(num_cells, "cells")
    embedding = nn.Embedding(_dims.as_dim(target_dim, "labels"), embedding_dim)
    in_dims = [embedding_dim, *[cells_dim] * (num_layers - 1)]
    return LstmLm(embedding, [nn.LSTM(dim, cells_dim) for dim in in_dims], dropout=dropout)
