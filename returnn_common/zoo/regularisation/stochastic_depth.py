"""
Stochastic depth: in training, leave out whole blocks at random.

Huang et al., "Deep Networks with Stochastic Depth", 2016, https://arxiv.org/abs/1603.09382; for speech:
Pham et al., "Very Deep Self-Attention Networks for End-to-End Speech Recognition", 2019,
https://arxiv.org/abs/1904.13377.
"""

from __future__ import annotations

from collections.abc import Iterable

from ... import nn


class StochasticDepth(nn.Module):
    """
    x + mask / (1 - p) * (block(x) - x): for each sequence the mask is 0 with probability p, else 1.

    :param block: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`, which keeps all dims
    """

    def __init__(self, block: nn.Module, probability: float):
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(
                f"stochastic_depth: the probability is {probability!r}, expected one in [0, 1)"
            )
        if block.in_dim != block.out_dim:
            raise ValueError(f"stochastic_depth: the block maps {block.in_dim} to {block.out_dim}")
        self.in_dim = self.out_dim = block.in_dim
        self.block, self.probability = block, probability

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """`[B, in_spatial_dim, dim]` to the same, and `in_spatial_dim` itself"""
        out, spatial_dim = self.block(source, in_spatial_dim=in_spatial_dim)
        batch_dims = source.remaining_dims([in_spatial_dim, self.in_dim])
        change = nn.dropout(out - source, self.probability, axis=batch_dims)
        return source + change, spatial_dim


def stochastic_depth(
    blocks: Iterable[nn.Module], probability: float = 0.5
) -> list[StochasticDepth]:
    """
    Blocks that are left out in training, the later the more often: block i of n with i / n of the
    probability, i from 1 on (the paper's linear rule, equation 4).

    :param blocks: e.g. of :func:`make_conformer_block`
    :param probability: of the last block; 0.5 in both papers
    :raises ValueError: the probability is not in [0, 1), or a block changes its feature dim
    """
    blocks = list(blocks)
    return [
        StochasticDepth(block, probability * i / len(blocks))
        for i, block in enumerate(blocks, start=1)
    ]
