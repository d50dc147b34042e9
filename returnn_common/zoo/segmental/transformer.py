"""
Attention-based encoder-decoder with transformers on both sides: log-mel frames in, labels out.

Vaswani et al., 2017, https://arxiv.org/abs/1706.03762; for speech: Dong et al., "Speech-Transformer",
2018, https://doi.org/10.1109/ICASSP.2018.8462506. One more label, the last index, stands for begin
and end: for labels 0 ... N - 1 the logits have N + 1 entries, and N is predicted behind the last
label. So any vocabulary fits, as for :class:`Ctc`.

The default sizes are the base model's of the paper, with label smoothing 0.1 (section 5.4).
"""

from __future__ import annotations

from ... import nn
from .. import _dims
from ..augmentation.specaugment import make_specaugment
from ..decoder.transformer import make_transformer_decoder
from ..encoder.transformer import make_trafo_encoder

LABEL_SMOOTHING = 0.1


class Transformer(nn.Module):
    """
    Augmentation, encoder and decoder of an attention model.

    :param encoder: `(source, *, in_spatial_dim) -> (out, out_spatial_dim)`
    :param decoder: `(label, *, spatial_dim, state, encoder) -> (logits, state)`; the last of its
        labels stands for begin and end
    :param target_dim: the labels, one less than those of the decoder
    :param augmentation: `(source, *, spatial_dim) -> source`; None for none
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        target_dim: nn.Dim,
        *,
        augmentation: nn.Module | None = None,
    ):
        super().__init__()
        if decoder.target_dim.dimension != target_dim.dimension + 1:
            raise ValueError(
                f"transformer: the decoder has {decoder.target_dim.dimension} labels, expected "
                f"{target_dim.dimension + 1}: those of target_dim, and one for begin and end"
            )
        self.augmentation, self.encoder, self.decoder = augmentation, encoder, decoder
        self.in_dim, self.out_dim = encoder.in_dim, decoder.target_dim
        self.target_dim, self.end_index = target_dim, target_dim.dimension

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
        :return: `cross_entropy`: with label smoothing, of each label and the end,
            `[B, targets_spatial_dim + 1]`
        """
        encoder, encoder_spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        targets = nn.set_sparse_dim(targets, self.out_dim)
        padding = {"axes": [targets_spatial_dim], "value": self.end_index}
        labels, (labels_dim,) = nn.pad(targets, padding=[(1, 0)], **padding)
        wanted, _ = nn.pad(targets, padding=[(0, 1)], out_dims=[labels_dim], **padding)
        logits, _ = self.decoder(
            labels,
            spatial_dim=labels_dim,
            state=self.decoder.default_initial_state(batch_dims=[nn.batch_dim]),
            encoder=self.decoder.transform_encoder(encoder, spatial_dim=encoder_spatial_dim),
        )
        return {"cross_entropy": smoothed_cross_entropy(logits, wanted)}


def smoothed_cross_entropy(
    logits: nn.Tensor, target: nn.Tensor, *, smoothing: float = LABEL_SMOOTHING
) -> nn.Tensor:
    """
    Cross-entropy against (1 - smoothing) of the target and smoothing spread over all labels:
    -(1 - s) log p(target) - s mean over labels of log p (https://arxiv.org/abs/1512.00567, section 7)

    :param logits: `[.., labels]`
    :param target: labels `[..]`
    :return: `[..]`
    """
    log_probs = nn.log_softmax(logits, axis=target.sparse_dim)
    uniform = -nn.reduce_mean(log_probs, axis=target.sparse_dim)
    hard = nn.cross_entropy(log_probs, target, estimated_type="log-probs")
    return (1 - smoothing) * hard + smoothing * uniform


def make_transformer(
    in_dim: int | nn.Dim = 80,
    target_dim: int | nn.Dim = 1000,
    *,
    num_layers: int = 6,
    model_dim: int | nn.Dim = 512,
    num_heads: int | nn.Dim = 8,
    dropout: float = 0.1,
) -> Transformer:
    """
    A whole transformer on log-mel frames: SpecAugment, 4x subsampling, encoder, decoder.

    For other parts, build :class:`Transformer` from an encoder and a decoder.

    :param in_dim: features per frame, e.g. of log-mel
    :param target_dim: number of labels, without begin and end; targets must have this very dim where
        a Dim is given
    :param num_layers: blocks of the encoder, and of the decoder
    :param model_dim: size of all blocks, even
    :param num_heads: heads of each attention; must divide `model_dim`
    :param dropout: in all places
    :raises ValueError: `num_layers` is 0, or `model_dim` is not a multiple of `num_heads`
    """
    model_dim = _dims.as_even_dim(model_dim, "transformer")
    target_dim = _dims.as_dim(target_dim, "labels")
    sizes = {
        "num_layers": num_layers,
        "num_heads": _dims.as_heads(num_heads, model_dim, "transformer"),
        "dropout": dropout,
    }
    labels_dim = nn.FeatureDim("labels_and_end", target_dim.dimension + 1)
    return Transformer(
        make_trafo_encoder(in_dim, model_dim, **sizes),
        make_transformer_decoder(model_dim, labels_dim, model_dim=model_dim, **sizes),
        target_dim,
        augmentation=make_specaugment(),
    )
