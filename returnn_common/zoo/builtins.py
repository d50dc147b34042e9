"""
The entries of this package: the registration module that our own blocks have, as a plugin has one.
"""

from __future__ import annotations

from typing import Any

from ..hookspecs import BACKENDS, hookimpl


@hookimpl
def returnn_common_entries() -> list[dict[str, Any]]:
    """:return: the records of our own entries"""
    return [
        {
            "kind": "frontend",
            "name": "logmel",
            "summary": "log-mel features of raw audio, normalised per utterance",
            "target": ".zoo.frontend.logmel:make_logmel",
            "backends": BACKENDS,
            "tiny": {"sample_rate": 1000, "num_filters": 5},
            "vary": {
                "sample_rate": 1200,
                "num_filters": 6,
                "window_size": 0.030,
                "step_size": 0.008,
                "f_min": 100.0,
                "f_max": 400.0,
            },
        },
        {
            "kind": "frontend",
            "name": "conv_subsampling",
            "summary": "three convolutions over time and frequency that keep one of n frames",
            "target": ".zoo.frontend.conv_subsampling:make_conv_subsampling",
            "backends": BACKENDS,
            "tiny": {"in_dim": 7, "out_dim": 5, "channels": (2, 3, 4)},
            "vary": {"in_dim": 9, "out_dim": 6, "factor": 3, "channels": (3, 2, 5)},
        },
        {
            "kind": "augmentation",
            "name": "specaugment",
            "summary": "SpecAugment: masks in time and frequency, in training",
            "target": ".zoo.augmentation.specaugment:make_specaugment",
            "backends": BACKENDS,
            "tiny": {},
            "vary": {
                "frames_per_mask": 10,
                "max_width": 7,
                "max_feature_masks": 3,
                "max_feature_width": 0.5,
            },
        },
        {
            "kind": "encoder",
            "name": "conformer_block",
            "summary": "one conformer block with relative self-attention",
            "target": ".zoo.encoder.conformer:make_conformer_block",
            "backends": BACKENDS,
            "tiny": {"dim": 8, "num_heads": 2, "kernel_size": 3},
            "vary": {"dim": 12, "num_heads": 4, "ff_dim": 5, "kernel_size": 5, "dropout": 0.3},
        },
        {
            "kind": "encoder",
            "name": "conformer",
            "summary": "conformer encoder with convolutional subsampling",
            "target": ".zoo.encoder.conformer:make_conformer",
            "backends": BACKENDS,
            "tiny": {"in_dim": 7, "out_dim": 8, "num_layers": 2, "num_heads": 2},
            "vary": {
                "in_dim": 9,
                "out_dim": 12,
                "num_layers": 3,
                "num_heads": 4,
                "subsampling": 3,
                "dropout": 0.3,
            },
        },
        {
            "kind": "segmental",
            "name": "ctc",
            "summary": "CTC model on raw audio: log-mel, SpecAugment, conformer, output layer",
            "target": ".zoo.segmental.ctc:make_ctc",
            "backends": BACKENDS,
            "tiny": {"target_dim": 4},
            "vary": {"in_dim": 70, "target_dim": 5, "sample_rate": 8_000},
        },
    ]
