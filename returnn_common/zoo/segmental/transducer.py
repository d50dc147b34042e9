"""
Transducer (RNN-T): an encoder, a predictor of labels, and a joint network over all pairs of both.

Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, https://arxiv.org/abs/1211.3711.
The blank is the last index, as in CTC, and stands for the begin of the labels, too. The defaults are
those of the Conformer paper, https://arxiv.org/abs/2005.08100, Table 1: a conformer and one LSTM of size
640.
"""

from __future__ import annotations

from ... import nn
from .. import _dims
from ..augmentation.specaugment import make_specaugment
from ..encoder.conformer import make_conformer
from .transducer_parts import (
    Joint,
    Predictor,
    make_transducer_joint,
    make_transducer_predictor,
    transducer_loss,
)


class Transducer(nn.Module):
    """
    Augmentation, encoder, predictor and joint network.

    :param encoder: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`
    :param predictor: `(label, *, spatial_dim, state) -> (out, state)`, of the labels and the blank
    :param joint: `(encoder, predictor) -> logits` of the labels and the blank
    :param target_dim: the labels, without blank
    :param augmentation: `(source, *, spatial_dim) -> source`; None for none
    """

    def __init__(
        self,
        encoder: nn.Module,
        predictor: Predictor,
        joint: Joint,
        target_dim: nn.Dim,
        *,
        augmentation: nn.Module | None = None,
    ):
        super().__init__()
        self.augmentation, self.encoder = augmentation, encoder
        self.predictor, self.joint = predictor, joint
        self.in_dim, self.out_dim, self.target_dim = encoder.in_dim, joint.out_dim, target_dim
        self.blank_index = target_dim.dimension

    def encode(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: `[B, in_spatial_dim, in_dim]`
        :return: `[B, spatial_dim, encoder.out_dim]` and `spatial_dim`
        """
        if self.augmentation is not None:
            source = self.augmentation(source, spatial_dim=in_spatial_dim)
        return self.encoder(source, in_spatial_dim=in_spatial_dim)

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
        :return: `transducer`: -log p(targets | source), `[B]`
        """
        encoder, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        targets = nn.set_sparse_dim(targets, self.out_dim)
        padding = {"axes": [targets_spatial_dim], "value": self.blank_index}
        labels, (labels_dim,) = nn.pad(targets, padding=[(1, 0)], **padding)
        wanted, _ = nn.pad(targets, padding=[(0, 1)], out_dims=[labels_dim], **padding)
        state = self.predictor.default_initial_state(batch_dims=[nn.batch_dim])
        predicted, _ = self.predictor(labels, spatial_dim=labels_dim, state=state)
        log_probs = nn.log_softmax(self.joint(encoder, predicted), axis=self.out_dim)
        loss = transducer_loss(
            log_probs,
            wanted,
            spatial_dim=spatial_dim,
            labels_dim=labels_dim,
            num_labels=targets_spatial_dim.get_size_tensor(),
            blank_index=self.blank_index,
        )
        return {"transducer": loss}


def make_transducer(
    in_dim: int | nn.Dim = 80,
    target_dim: int | nn.Dim = 1000,
    *,
    encoder: nn.Module | None = None,
    predictor_dim: int | nn.Dim = 640,
    joint_dim: int | nn.Dim = 640,
) -> Transducer:
    """
    A transducer on log-mel frames: SpecAugment, encoder, predictor, joint network.

    :param in_dim: features per frame, e.g. of log-mel
    :param target_dim: number of labels, without blank; targets must have this very dim where a Dim
        is given
    :param encoder: by default :func:`make_conformer` with its defaults
    :param predictor_dim: size of the predictor's embedding and LSTM
    :param joint_dim: size of the joint network's hidden layer
    :raises ValueError: `encoder` takes another `in_dim`
    """
    if encoder is None:
        encoder = make_conformer(in_dim)
    size = in_dim.dimension if isinstance(in_dim, nn.Dim) else in_dim
    if encoder.in_dim.dimension != size:
        raise ValueError(
            f"transducer: the encoder takes {encoder.in_dim.dimension} features, but in_dim is {size}"
        )
    target_dim = _dims.as_dim(target_dim, "labels")
    out_dim = nn.FeatureDim("labels_and_blank", target_dim.dimension + 1)
    predictor = make_transducer_predictor(out_dim, predictor_dim)
    return Transducer(
        encoder,
        predictor,
        make_transducer_joint(encoder.out_dim, predictor.out_dim, out_dim, joint_dim=joint_dim),
        target_dim,
        augmentation=make_specaugment(),
    )
