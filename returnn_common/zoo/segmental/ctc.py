"""
CTC: an encoder, a linear layer to the labels and the blank, and the loss that sums over all
alignments.

Graves et al., "Connectionist Temporal Classification", 2006. The blank is the last index, as
everywhere in RETURNN: for labels 0 ... N - 1 the logits have N + 1 entries, and the blank is N.
"""

from __future__ import annotations

from ... import nn
from .. import _dims
from ..augmentation.specaugment import make_specaugment
from ..encoder.conformer import make_conformer
from ..frontend.logmel import make_logmel


class Ctc(nn.Module):
    """
    Front end, augmentation, encoder and output layer of a CTC model.

    :param encoder: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`, with `in_dim` and
        `out_dim`
    :param target_dim: the labels, without blank
    :param frontend: called before, like an encoder; None where the input already is what the
        encoder takes
    :param augmentation: `(source, *, spatial_dim) -> source`, between the two; None for none
    """

    def __init__(
        self,
        encoder: nn.Module,
        target_dim: nn.Dim,
        *,
        frontend: nn.Module | None = None,
        augmentation: nn.Module | None = None,
    ):
        super().__init__()
        self.frontend, self.augmentation, self.encoder = frontend, augmentation, encoder
        self.in_dim = encoder.in_dim if frontend is None else frontend.in_dim
        self.target_dim = target_dim
        self.blank_index = target_dim.dimension
        self.out_dim = nn.FeatureDim("labels_and_blank", target_dim.dimension + 1)
        self.output = nn.Linear(encoder.out_dim, self.out_dim)

    def encode(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: the input, `[B, in_spatial_dim]` audio with a front end like log-mel, else
            `[B, in_spatial_dim, in_dim]`
        :return: `[B, spatial_dim, encoder.out_dim]` and `spatial_dim`
        """
        spatial_dim = in_spatial_dim
        if self.frontend is not None:
            source, spatial_dim = self.frontend(source, in_spatial_dim=spatial_dim)
        if self.augmentation is not None:
            source = self.augmentation(source, spatial_dim=spatial_dim)
        return self.encoder(source, in_spatial_dim=spatial_dim)

    def logits(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """:return: `[B, spatial_dim, out_dim]`, not normalised, and `spatial_dim`"""
        encoder, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        return self.output(encoder), spatial_dim

    def log_probs(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :return: log p(label or blank | frame, source), `[B, spatial_dim, out_dim]`, and
            `spatial_dim`
        """
        logits, spatial_dim = self.logits(source, in_spatial_dim=in_spatial_dim)
        return nn.log_softmax(logits, axis=self.out_dim), spatial_dim

    def losses(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        targets: nn.Tensor,
        targets_spatial_dim: nn.Dim,
    ) -> dict[str, nn.Tensor]:
        """
        :param targets: labels `[B, targets_spatial_dim]` of `target_dim`
        :return: `ctc`: -log p(targets | source), `[B]`; 0, without gradient, where the frames are
            fewer than the labels and the blanks between equal neighbours
        """
        logits, spatial_dim = self.logits(source, in_spatial_dim=in_spatial_dim)
        loss = nn.ctc_loss(
            logits=logits,
            targets=targets,
            input_spatial_dim=spatial_dim,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=self.blank_index,
        )
        return {"ctc": loss}

    def decode_greedy(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim
    ) -> tuple[nn.Tensor, nn.Dim]:
        """
        The best label of every frame, repetitions and blanks removed.

        :return: labels `[B, out_spatial_dim]` of `target_dim`, and `out_spatial_dim`
        """
        logits, spatial_dim = self.logits(source, in_spatial_dim=in_spatial_dim)
        return nn.ctc_greedy_decode(
            logits,
            in_spatial_dim=spatial_dim,
            blank_index=self.blank_index,
            target_dim=self.target_dim,
        )


def make_ctc(
    in_dim: int | nn.Dim = 80,
    target_dim: int | nn.Dim = 1000,
    *,
    encoder: nn.Module | None = None,
    sample_rate: int = 16_000,
) -> Ctc:
    """
    A CTC model on raw audio: log-mel, SpecAugment, encoder, output layer.

    For features as input, or another augmentation, build :class:`Ctc` from its parts.

    :param in_dim: number of mel filters, the input of the encoder
    :param target_dim: number of labels, without blank; targets must have this very dim where a Dim
        is given
    :param encoder: by default :func:`make_conformer` with its defaults
    :param sample_rate: of the audio, in Hz
    :raises ValueError: `encoder` takes another `in_dim`
    """
    if encoder is None:
        encoder = make_conformer(in_dim)
    size = in_dim.dimension if isinstance(in_dim, nn.Dim) else in_dim
    if encoder.in_dim.dimension != size:
        raise ValueError(
            f"ctc: the encoder takes {encoder.in_dim.dimension} features, but in_dim is {size}"
        )
    return Ctc(
        encoder,
        _dims.as_dim(target_dim, "labels"),
        frontend=make_logmel(sample_rate, encoder.in_dim),
        augmentation=make_specaugment(),
    )
