"""
Linear subsampling: some neighbouring frames side by side, and a linear layer to the model size.

Stacking frames and keeping one of n: Sak et al., "Fast and Accurate Recurrent Neural Network Acoustic
Models for Speech Recognition", 2015, https://arxiv.org/abs/1507.06947, section 3. Without overlap it is
a convolution as wide as its stride.
"""

from __future__ import annotations

from ... import nn
from .. import _dims


class LinearSubsampling(nn.Module):
    """Frames 0 ... n - 1 give the first output, n ... 2 n - 1 the next; zeros follow the last."""

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim, *, factor: int):
        super().__init__()
        self.in_dim, self.out_dim, self.factor = in_dim, out_dim, factor
        self.linear = nn.Conv1d(in_dim, out_dim, factor, strides=factor, padding="valid")

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, out_spatial_dim, out_dim]` and `out_spatial_dim`, ceil(frames / factor) frames
        """
        dims = {"in_dim": self.in_dim, "in_spatial_dim": in_spatial_dim}
        _dims.check_input("linear_subsampling", source, **dims)
        padded_dim = in_spatial_dim + (self.factor - 1)
        x, _ = nn.pad(
            source.copy_masked(0.0, dims=[in_spatial_dim]),
            axes=[in_spatial_dim],
            padding=[(0, self.factor - 1)],
            out_dims=[padded_dim],
            value=0.0,
            handle_dynamic_dims=False,  # zeros follow each sequence already
        )
        return self.linear(x, in_spatial_dim=padded_dim)


def make_linear_subsampling(
    in_dim: int | nn.Dim = 80, out_dim: int | nn.Dim = 512, *, factor: int = 3
) -> LinearSubsampling:
    """
    A linear layer on `factor` neighbouring frames, which keeps one of `factor` frames.

    :param in_dim: features per frame
    :param out_dim: the size of the model behind it
    :param factor: input frames per output frame; 3 in the paper
    :raises ValueError: `factor` is not positive
    """
    if factor < 1:
        raise ValueError(f"linear_subsampling: factor must be positive, got {factor!r}")
    return LinearSubsampling(
        _dims.as_dim(in_dim, "in_dim"), _dims.as_dim(out_dim, "out_dim"), factor=factor
    )
