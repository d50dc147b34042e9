"""
The model of the demo and what it is trained with: a small conformer with CTC on characters.
"""

from __future__ import annotations

from .. import nn
from ..data.digits import LABELS, SAMPLE_RATE
from ..zoo.augmentation.specaugment import make_specaugment
from ..zoo.encoder.conformer import Conformer, make_conformer_block
from ..zoo.frontend.conv_subsampling import make_conv_subsampling
from ..zoo.frontend.logmel import make_logmel
from ..zoo.segmental.ctc import Ctc

SUBSAMPLING = 3  # frames of 10 ms per frame of the conformer


def make_model(
    dim: int = 128, *, num_layers: int = 4, num_filters: int = 40, subsampling: int = SUBSAMPLING
) -> Ctc:
    """
    A small conformer-CTC on raw audio, of 1.1 million parameters: everything is cut down from
    Conformer (S) of https://arxiv.org/abs/2005.08100 until it learns most per second on two cores.

    :param dim: of the conformer
    :param num_layers: of the conformer
    :param num_filters: of log-mel
    :param subsampling: frames of 10 ms per frame of the conformer. Short recordings of a digit have
        15 frames and up to 6 characters, so 4 is too many
    """
    frontend = make_conv_subsampling(num_filters, dim, factor=subsampling, channels=(16, 16, 16))
    layers = [
        make_conformer_block(frontend.out_dim, num_heads=2, ff_dim=2 * dim, kernel_size=15)
        for _ in range(num_layers)
    ]
    return Ctc(
        Conformer(frontend, layers, dropout=0.1),
        nn.FeatureDim("characters", len(LABELS)),
        frontend=make_logmel(SAMPLE_RATE, frontend.in_dim),
        augmentation=make_specaugment(max_width=10, max_feature_masks=3),
    )


def make_extern_data() -> dict[str, nn.Tensor]:
    """:return: templates of "data" `[B, T, 1]`, raw audio, and "classes" `[B, S]`, characters"""
    audio_dim = nn.FeatureDim("audio", 1)
    audio = [nn.batch_dim, nn.SpatialDim("time"), audio_dim]
    characters = nn.FeatureDim("characters", len(LABELS))
    return {
        "data": nn.Tensor("data", audio, "float32", feature_dim=audio_dim),
        "classes": nn.Tensor(
            "classes", [nn.batch_dim, nn.SpatialDim("classes_time")], "int32", sparse_dim=characters
        ),
    }


def train_step(*, model: Ctc, extern_data: dict[str, nn.Tensor], **_) -> None:
    """Marks the CTC loss, normalised by the number of characters."""
    source, targets = extern_data["data"], extern_data["classes"]
    losses = model.losses(
        source,
        in_spatial_dim=source.dims[1],
        targets=targets,
        targets_spatial_dim=targets.dims[1],
    )
    num_characters = targets.dims[1].get_size_tensor()
    losses["ctc"].mark_as_loss("ctc", custom_inv_norm_factor=num_characters)


def forward_step(*, model: Ctc, extern_data: dict[str, nn.Tensor], **_) -> None:
    """Marks the output "log_probs" `[B, T', characters and blank]`."""
    source = extern_data["data"]
    log_probs, spatial_dim = model.log_probs(source, in_spatial_dim=source.dims[1])
    log_probs.mark_as_output("log_probs", shape=[nn.batch_dim, spatial_dim, model.out_dim])
