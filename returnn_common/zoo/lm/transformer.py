"""
Transformer language model, without positions: causal attention finds them itself.

Irie et al., "Language Modeling with Deep Transformers", 2019, https://arxiv.org/abs/1905.04226, which
has the default sizes, those for 10k BPE labels on LibriSpeech: 24 blocks of size 1024, 8 heads,
feed-forward 4096, label embeddings of size 128, no dropout, no positional encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import nn
from .. import _dims
from ..decoder.transformer import TrafoDecBlock

EMBEDDING_SIZE = 128


class TrafoLm(nn.Module):
    """Label embedding, a linear layer to the model size, the blocks, layer norm, logits."""

    def __init__(self, target_dim: nn.Dim, layers: Iterable[TrafoDecBlock], *, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.target_dim = self.out_dim = target_dim
        self.model_dim = self.layers[0].in_dim
        embedding_dim = nn.FeatureDim("embedding", EMBEDDING_SIZE)
        self.embedding = nn.Embedding(target_dim, embedding_dim)
        self.linear = nn.Linear(embedding_dim, self.model_dim)
        self.norm = nn.LayerNorm(self.model_dim)
        self.output = nn.Linear(self.model_dim, target_dim)
        self.dropout = dropout

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: the state before the first label"""
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
        x = nn.dropout(self.linear(self.embedding(label)), self.dropout)
        new_state = nn.State()
        for name, layer in self.layers.items():
            x, new_state[name] = layer(x, spatial_dim=spatial_dim, state=state[name])
        return self.output(self.norm(x)), new_state


def make_trafo_lm(
    target_dim: int | nn.Dim = 10_000,
    *,
    num_layers: int = 24,
    model_dim: int | nn.Dim = 1024,
    num_heads: int | nn.Dim = 8,
    dropout: float = 0.0,
) -> TrafoLm:
    """
    A transformer language model: `(label, *, spatial_dim, state) -> (logits, state)`.

    :param target_dim: number of labels, with those for begin and end of the sequence
    :param num_layers: number of blocks
    :param model_dim: size of the blocks
    :param num_heads: heads of each self-attention; must divide `model_dim`
    :param dropout: in all places
    :raises ValueError: `num_layers` is 0, or `model_dim` is not a multiple of `num_heads`
    """
    model_dim = _dims.as_dim(model_dim, "lm")
    sizes = {
        "num_heads": _dims.as_heads(num_heads, model_dim, "trafo_lm"),
        "ff_dim": nn.FeatureDim("ff", 4 * model_dim.dimension),
    }
    _dims.check_num_layers("trafo_lm", num_layers)
    layers = [TrafoDecBlock(None, model_dim, dropout=dropout, **sizes) for _ in range(num_layers)]
    return TrafoLm(_dims.as_dim(target_dim, "labels"), layers, dropout=dropout)
