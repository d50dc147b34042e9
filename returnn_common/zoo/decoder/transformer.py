"""
Transformer decoder: causal self-attention, attention to the encoder, feed-forward, each behind a
layer norm.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, with the norm
first (https://arxiv.org/abs/2002.04745) and one norm behind the last block. The default sizes are
those of the paper's base model: 6 blocks of size 512, 8 heads, feed-forward 2048, dropout 0.1; they
are also those of ESPnet's transformer recipe for LibriSpeech.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import nn
from .. import _dims
from .._feed_forward import FeedForward
from .._positions import sinusoids


class TrafoDecBlock(nn.Module):
    """x + causal self-attention, + attention to the encoder, + feed-forward"""

    def __init__(
        self,
        encoder_dim: nn.Dim | None,
        dim: nn.Dim,
        *,
        num_heads: nn.Dim,
        ff_dim: nn.Dim,
        dropout: float,
    ):
        """:param encoder_dim: None for a block without attention to an encoder, as in an LM"""
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.encoder_dim, self.dropout = encoder_dim, dropout
        sizes = {"key_dim_total": dim, "value_dim_total": dim, "num_heads": num_heads}
        self.self_att_norm = nn.LayerNorm(dim)
        self.self_att = nn.CausalSelfAttention(dim, dim, att_dropout=dropout, **sizes)
        self.cross_att = None
        if encoder_dim is not None:
            self.cross_att_norm = nn.LayerNorm(dim)
            self.cross_att = nn.CrossAttention(encoder_dim, dim, dim, att_dropout=dropout, **sizes)
        self.ff = FeedForward(dim, ff_dim, dropout=dropout)

    def default_initial_state(
        self, *, batch_dims: Sequence[nn.Dim], encoder: nn.State | None = None
    ) -> nn.State:
        """:return: the state before the first step: no keys and values yet"""
        return nn.State(self_att=self.self_att.default_initial_state(batch_dims=batch_dims))

    def transform_encoder(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.State:
        """
        :return: keys and values of the encoder output `[B, spatial_dim, encoder_dim]`
        :raises ValueError: this block attends to no encoder
        """
        if self.cross_att is None:
            raise ValueError("trafo_dec_block: made without encoder_dim, it attends to no encoder")
        _dims.check_input(
            "trafo_dec_block", source, spatial_dim=spatial_dim, encoder_dim=self.encoder_dim
        )
        return self.cross_att.transform_encoder(source, axis=spatial_dim)

    def __call__(
        self,
        source: nn.Tensor,
        *,
        spatial_dim: nn.Dim,
        state: nn.State,
        encoder: nn.State | None = None,
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: `[B, spatial_dim, dim]`, or `[B, dim]` for one step
        :param encoder: of :meth:`transform_encoder`
        :return: the same dims, and the next state
        """
        att, att_state = self.self_att(
            self.self_att_norm(source), axis=spatial_dim, state=state.self_att
        )
        x = source + nn.dropout(att, self.dropout)
        if self.cross_att is not None:
            att = self.cross_att(self.cross_att_norm(x), encoder)
            x = x + nn.dropout(att, self.dropout)
        return x + self.ff(x), nn.State(self_att=att_state)


def make_trafo_dec_block(
    encoder_dim: int | nn.Dim = 512,
    dim: int | nn.Dim = 512,
    *,
    num_heads: int | nn.Dim = 8,
    ff_dim: int | nn.Dim | None = None,
    dropout: float = 0.1,
) -> TrafoDecBlock:
    """
    One transformer decoder block: `(source, *, spatial_dim, state, encoder) -> (out, state)`.

    :param encoder_dim: features of the encoder output
    :param dim: size of the block
    :param num_heads: heads of each attention; must divide `dim`
    :param ff_dim: hidden size of the feed-forward, by default four times `dim` as in the paper
    :param dropout: behind each part, within the feed-forward, and on the attention weights
    :raises ValueError: `dim` is not a multiple of `num_heads`
    """
    dim = _dims.as_dim(dim, "decoder")
    return TrafoDecBlock(
        _dims.as_dim(encoder_dim, "encoder"),
        dim,
        num_heads=_dims.as_heads(num_heads, dim, "trafo_dec_block"),
        ff_dim=_dims.as_dim(4 * dim.dimension if ff_dim is None else ff_dim, "ff"),
        dropout=dropout,
    )


class TransformerDecoder(nn.Module):
    """Scaled label embedding, sinusoidal positions, dropout, the blocks, layer norm, logits."""

    def __init__(self, target_dim: nn.Dim, layers: Iterable[TrafoDecBlock], *, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        first = self.layers[0]
        self.target_dim = self.out_dim = target_dim
        self.encoder_dim, self.model_dim = first.encoder_dim, first.in_dim
        self.embedding = nn.Embedding(target_dim, self.model_dim)
        self.norm = nn.LayerNorm(self.model_dim)
        self.output = nn.Linear(self.model_dim, target_dim)
        self.dropout = dropout

    def default_initial_state(
        self, *, batch_dims: Sequence[nn.Dim], encoder: nn.State | None = None
    ) -> nn.State:
        """:return: the state before the first label"""
        state = nn.State(position=nn.zeros((), dtype="int32"))
        for name, layer in self.layers.items():
            state[name] = layer.default_initial_state(batch_dims=batch_dims, encoder=encoder)
        return state

    def transform_encoder(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.State:
        """:return: of the encoder output `[B, spatial_dim, encoder_dim]` what each block needs"""
        return nn.State(
            {
                name: layer.transform_encoder(source, spatial_dim=spatial_dim)
                for name, layer in self.layers.items()
            }
        )

    def __call__(
        self, label: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State, encoder: nn.State
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param label: the labels before, `[B, spatial_dim]`, or `[B]` for one step
        :param encoder: of :meth:`transform_encoder`
        :return: logits `[B, spatial_dim, target_dim]` of the next labels, and the next state
        """
        x = self.model_dim.dimension**0.5 * self.embedding(label)
        position = sinusoids(spatial_dim, self.model_dim, start=state.position)
        x = nn.dropout(x + position, self.dropout)
        single = spatial_dim == nn.single_step_dim
        new_state = nn.State(
            position=state.position + (1 if single else spatial_dim.get_dim_value_tensor())
        )
        for name, layer in self.layers.items():
            x, new_state[name] = layer(
                x, spatial_dim=spatial_dim, state=state[name], encoder=encoder[name]
            )
        return self.output(self.norm(x)), new_state


def make_transformer_decoder(
    encoder_dim: int | nn.Dim = 512,
    target_dim: int | nn.Dim = 1000,
    *,
    num_layers: int = 6,
    model_dim: int | nn.Dim = 512,
    num_heads: int | nn.Dim = 8,
    dropout: float = 0.1,
) -> TransformerDecoder:
    """
    A transformer decoder: `(label, *, spatial_dim, state, encoder) -> (logits, state)`.

    :param encoder_dim: features of the encoder output
    :param target_dim: number of labels, with those for begin and end of the sequence
    :param num_layers: number of blocks
    :param model_dim: size of the blocks, even
    :param num_heads: heads of each attention; must divide `model_dim`
    :param dropout: in all places
    :raises ValueError: `num_layers` is 0, or `model_dim` is not a multiple of `num_heads`
    """
    encoder_dim = _dims.as_dim(encoder_dim, "encoder")
    model_dim = _dims.as_even_dim(model_dim, "decoder")
    sizes = {
        "num_heads": _dims.as_heads(num_heads, model_dim, "transformer_decoder"),
        "ff_dim": nn.FeatureDim("decoder_ff", 4 * model_dim.dimension),
    }
    _dims.check_num_layers("transformer_decoder", num_layers)
    layers = [
        make_trafo_dec_block(encoder_dim, model_dim, dropout=dropout, **sizes)
        for _ in range(num_layers)
    ]
    return TransformerDecoder(_dims.as_dim(target_dim, "labels"), layers, dropout=dropout)
