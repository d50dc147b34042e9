"""
LSTM decoder with attention to the encoder.

Bahdanau et al., 2014, https://arxiv.org/abs/1409.0473; for speech: Chan et al., "Listen, Attend and
Spell", 2015, https://arxiv.org/abs/1508.01211. In every step

    s_i = LSTM(s_{i-1}, [embedding of y_{i-1}, c_{i-1}])
    energy_{i,t} = v . tanh(W s_i + V h_t)
    c_i = sum over t of softmax(energy_i)_t h_t
    logits_i = linear(maxout([s_i, embedding of y_{i-1}, c_i]))

The default sizes are those of Zeyer et al., "Improved training of end-to-end attention models for
speech recognition", 2018, https://arxiv.org/abs/1805.03294, whose decoder also feeds the attention
weights back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from .. import _dims

MAXOUT = 2  # inputs of which one output of the readout is the maximum


class Attention(nn.Module):
    """Additive attention: v . tanh(W query + V key), softmax over the encoder, weighted sum."""

    def __init__(self, encoder_dim: nn.Dim, query_dim: nn.Dim, key_dim: nn.Dim):
        super().__init__()
        self.encoder_dim = encoder_dim
        self.key = nn.Linear(encoder_dim, key_dim)
        self.query = nn.Linear(query_dim, key_dim, with_bias=False)
        self.one_dim = nn.FeatureDim("energy", 1)
        self.energy = nn.Linear(key_dim, self.one_dim, with_bias=False)

    def transform_encoder(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.State:
        """:return: keys and values of the encoder output `[B, spatial_dim, encoder_dim]`"""
        return nn.State(key=self.key(source), value=source, spatial_dim=spatial_dim)

    def __call__(self, query: nn.Tensor, encoder: nn.State) -> nn.Tensor:
        """`[B, query_dim]` to `[B, encoder_dim]`"""
        energy = self.energy(nn.tanh(encoder.key + self.query(query)))
        energy = nn.squeeze(energy, axis=self.one_dim)
        weights = nn.softmax(energy, axis=encoder.spatial_dim)
        out = nn.matmul(weights, encoder.value, reduce=encoder.spatial_dim, use_mask=False)
        out.feature_dim = self.encoder_dim
        return out


class LstmDecoder(nn.Module):
    """Label embedding, LSTM, attention, readout; see the module docstring."""

    def __init__(
        self,
        encoder_dim: nn.Dim,
        target_dim: nn.Dim,
        *,
        cells_dim: nn.Dim,
        embedding_dim: nn.Dim,
        key_dim: nn.Dim,
        dropout: float,
    ):
        super().__init__()
        self.encoder_dim = encoder_dim
        self.target_dim = self.out_dim = target_dim
        self.embedding_dim, self.cells_dim, self.dropout = embedding_dim, cells_dim, dropout
        self.lstm_in_dim = embedding_dim + encoder_dim
        self.readout_in_dim = cells_dim + embedding_dim + encoder_dim
        self.readout_dim = nn.FeatureDim("readout", cells_dim.dimension)
        self.maxout_dim = nn.SpatialDim("maxout", MAXOUT)
        self.embedding = nn.Embedding(target_dim, embedding_dim)
        self.lstm = nn.LSTM(self.lstm_in_dim, cells_dim)
        self.attention = Attention(encoder_dim, cells_dim, key_dim)
        inner_dim = nn.FeatureDim("readout_in", MAXOUT * cells_dim.dimension)
        self.readout = nn.Linear(self.readout_in_dim, inner_dim)
        self.output = nn.Linear(self.readout_dim, target_dim)

    def default_initial_state(
        self, *, batch_dims: Sequence[nn.Dim], encoder: nn.State | None = None
    ) -> nn.State:
        """:return: the state before the first label, zeros"""
        dims = [*batch_dims, self.encoder_dim]
        return nn.State(
            lstm=self.lstm.default_initial_state(batch_dims=batch_dims),
            context=nn.zeros(dims, feature_dim=self.encoder_dim),
        )

    def transform_encoder(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.State:
        """:return: keys and values of the encoder output `[B, spatial_dim, encoder_dim]`"""
        _dims.check_input(
            "lstm_decoder", source, spatial_dim=spatial_dim, encoder_dim=self.encoder_dim
        )
        return self.attention.transform_encoder(source, spatial_dim=spatial_dim)

    def __call__(
        self, label: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State, encoder: nn.State
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param label: the labels before, `[B, spatial_dim]`, or `[B]` for one step
        :param encoder: of :meth:`transform_encoder`
        :return: logits `[B, spatial_dim, target_dim]` of the next labels, and the next state
        """
        embedding = self.embedding(label)
        if spatial_dim == nn.single_step_dim:
            (cells, context), state = self.step(embedding, state, encoder)
        else:
            (cells, context), state = nn.scan(
                lambda frame, before: self.step(frame, before, encoder),
                spatial_dim=spatial_dim,
                xs=embedding,
                initial=state,
            )
        return self.logits(cells, embedding, context), state

    def step(
        self, embedding: nn.Tensor, state: nn.State, encoder: nn.State
    ) -> tuple[tuple[nn.Tensor, nn.Tensor], nn.State]:
        """:return: LSTM output `[B, cells]` and context `[B, encoder_dim]`, and the next state"""
        parts = [(embedding, self.embedding_dim), (state.context, self.encoder_dim)]
        x, _ = nn.concat(*parts, out_dim=self.lstm_in_dim)
        cells, lstm = self.lstm(x, state=state.lstm, spatial_dim=nn.single_step_dim)
        context = self.attention(cells, encoder)
        return (cells, context), nn.State(lstm=lstm, context=context)

    def logits(self, cells: nn.Tensor, embedding: nn.Tensor, context: nn.Tensor) -> nn.Tensor:
        """:return: maxout readout and output layer, `[.., target_dim]`"""
        parts = [
            (cells, self.cells_dim),
            (embedding, self.embedding_dim),
            (context, self.encoder_dim),
        ]
        x, _ = nn.concat(*parts, out_dim=self.readout_in_dim)
        x = self.readout(x)
        x = nn.split_dims(x, axis=self.readout.out_dim, dims=[self.readout_dim, self.maxout_dim])
        x = nn.reduce_max(x, axis=self.maxout_dim)
        x.feature_dim = self.readout_dim
        return self.output(nn.dropout(x, self.dropout))


def make_lstm_decoder(
    encoder_dim: int | nn.Dim = 2048,
    target_dim: int | nn.Dim = 1000,
    *,
    num_cells: int | nn.Dim = 1000,
    embedding_dim: int | nn.Dim = 620,
    key_dim: int | nn.Dim = 1024,
    dropout: float = 0.3,
) -> LstmDecoder:
    """
    An LSTM decoder with attention: `(label, *, spatial_dim, state, encoder) -> (logits, state)`.

    :param encoder_dim: features of the encoder output; by default those of :func:`make_blstm`
    :param target_dim: number of labels, with those for begin and end of the sequence
    :param num_cells: of the LSTM, and size of the readout
    :param embedding_dim: size of the label embedding
    :param key_dim: size of the attention
    :param dropout: on the readout
    """
    return LstmDecoder(
        _dims.as_dim(encoder_dim, "encoder"),
        _dims.as_dim(target_dim, "labels"),
        cells_dim=_dims.as_dim(num_cells, "cells"),
        embedding_dim=_dims.as_dim(embedding_dim, "embedding"),
        key_dim=_dims.as_dim(key_dim, "key"),
        dropout=dropout,
    )
