"""The position-wise feed-forward part that transformer and conformer blocks share."""

from __future__ import annotations

from collections.abc import Callable

from .. import nn


class FeedForward(nn.Module):
    """
    layer norm, linear, activation, dropout, linear, dropout; the residual belongs to the block

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.3, with the norm first.
    """

    def __init__(
        self,
        dim: nn.Dim,
        hidden_dim: nn.Dim,
        *,
        activation: Callable[[nn.Tensor], nn.Tensor] = nn.relu,
        dropout: float,
    ):
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.norm = nn.LayerNorm(dim)
        self.linear_in = nn.Linear(dim, hidden_dim)
        self.activation = activation
        self.linear_out = nn.Linear(hidden_dim, dim)
        self.dropout = dropout

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        x = self.activation(self.linear_in(self.norm(x)))
        x = self.linear_out(nn.dropout(x, self.dropout))
        return nn.dropout(x, self.dropout)
