"""
The conformer that the benchmarks measure, ours and those of its peers, all of the same sizes.

Three 3x3 convolutions with 6x subsampling in front, relative self-attention, a depthwise convolution with batch norm
(statistics over all frames, padding included, as in plain torch), and dropout in all places. Its mask is drawn for
every element on all sides, so RF's conformer runs with ``rf_dropout_broadcast = False`` where nothing else is said.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).parent.parent))

BATCH, FRAMES, FEATURES = 8, 600, 80
DIM, HEADS, FF_DIM, KERNEL, DROPOUT = 256, 4, 1024, 31, 0.1
CHANNELS, STRIDES = (32, 64, 64), ((1, 2), (3, 1), (2, 1))  # over time and frequency
NORMS = ("batch", "layer")


@functools.cache
def extern_data() -> dict[str, Any]:
    """:return: the template of the features `[B, time, 80]`, the same dims for all models of a process"""
    from returnn_common import nn

    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("feature", FEATURES)]
    return {"data": nn.Tensor("data", dims, "float32", feature_dim=dims[-1])}


def extern_data_options() -> dict[str, Any]:
    """:return: the same as in a RETURNN config"""
    return {
        "data": {"dim_tags": extern_data()["data"].dims, "dtype": "float32", "feature_dim_axis": 2}
    }


def batch(lengths: tuple[int, ...] = (FRAMES,) * BATCH) -> dict[str, numpy.ndarray]:
    """:return: features, the same in every process, and their lengths"""
    features = numpy.random.RandomState(1).randn(len(lengths), max(lengths), FEATURES)
    return {"data": features.astype("float32"), "data:size1": numpy.array(lengths, "int32")}


def feature_dim() -> Any:
    return extern_data()["data"].feature_dim


# --- ours, and RETURNN's own on the same frontend


def our_conformer(*, num_layers: int = 6, norm: str = "batch", dropout: float = DROPOUT) -> Any:
    """:return: the conformer of our zoo, for either backend"""
    from returnn_common import nn
    from returnn_common.zoo.encoder.conformer import Conformer, make_conformer_block
    from returnn_common.zoo.frontend.conv_subsampling import make_conv_subsampling

    dim, heads = nn.FeatureDim("conformer", DIM), nn.SpatialDim("num_heads", HEADS)
    ff_dim = nn.FeatureDim("ff", FF_DIM)
    frontend = make_conv_subsampling(feature_dim(), dim, factor=6, channels=CHANNELS)
    norms = {"batch": functools.partial(nn.BatchNorm, use_mask=False), "layer": nn.LayerNorm}
    layers = [
        make_conformer_block(
            dim,
            num_heads=heads,
            ff_dim=ff_dim,
            kernel_size=KERNEL,
            dropout=dropout,
            conv_norm=norms[norm],
        )
        for _ in range(num_layers)
    ]
    return Conformer(frontend, layers, dropout=dropout)


def rf_conformer(*, num_layers: int = 6, norm: str = "batch") -> Any:
    """:return: RETURNN's ``ConformerEncoder``, for the backend that is selected"""
    import returnn.frontend as rf
    from returnn.frontend.encoder.conformer import ConformerConvSubsample, ConformerEncoder
    from returnn.tensor import Dim

    subsampling = ConformerConvSubsample(
        feature_dim(),
        out_dims=[Dim(size, name=f"conv{i}") for i, size in enumerate(CHANNELS)],
        filter_sizes=[(3, 3)] * 3,
        strides=list(STRIDES),
    )
    batch_norm = {"conv_norm": rf.BatchNorm, "conv_norm_opts": {"use_mask": False}}
    return ConformerEncoder(
        feature_dim(),
        Dim(DIM, name="conformer"),
        num_layers=num_layers,
        input_layer=subsampling,
        ff_dim=Dim(FF_DIM, name="ff"),
        input_dropout=DROPOUT,
        dropout=DROPOUT,
        att_dropout=DROPOUT,
        num_heads=HEADS,
        conv_kernel_size=KERNEL,
        encoder_layer_opts=batch_norm if norm == "batch" else {"conv_norm": rf.LayerNorm},
    )


def step(*, model: Any, extern_data: Any, **_: Any) -> None:
    """mark a loss on the output that has a gradient behind the last layer norm: the mean square of what is positive"""
    from returnn_common import nn

    source = extern_data["data"]
    out, _ = model(source, in_spatial_dim=source.dims[1])
    nn.reduce_mean(nn.square(nn.relu(out)), axis=model.out_dim).mark_as_loss("loss")


def output_step(*, model: Any, extern_data: Any, **_: Any) -> None:
    source = extern_data["data"]
    out, _ = model(source, in_spatial_dim=source.dims[1])
    out.mark_as_output("out")


def rf_settings(
    *, num_layers: int = 6, norm: str = "batch", share_masks: bool = False, **more: Any
) -> dict[str, Any]:
    """
    :param share_masks: dropout masks are shared over batch and time, which is RF's default
    :return: a RETURNN config that trains RF's conformer
    """
    from returnn_common.nn import _returnn

    return {
        "task": "train",
        "behavior_version": _returnn.BEHAVIOR_VERSION,
        "rf_dropout_broadcast": share_masks,
        "rf_att_dropout_broadcast": share_masks,
        "extern_data": extern_data_options(),
        "get_model": lambda **_: rf_conformer(num_layers=num_layers, norm=norm),
        "train_step": step,
        "log_verbosity": [1],
        **more,
    }


# --- i6_models

#: Where the conformer of i6_models differs; all else is the same.
I6_DIFFERENCES = (
    "i6_models: attention through torch's scaled_dot_product_attention, one joined projection to query, key and value; "
    "the frontend pads its strided convolutions by one frame on both sides and its linear layer has a bias as ours; "
    "no dropout behind the frontend; padding frames are not zeroed before convolutions"
)


def i6_conformer(*, num_layers: int = 6) -> Any:
    """:return: the relative conformer of i6_models, plain torch, Transformer-XL positions as in RF's defaults"""
    import torch
    from i6_models.assemblies.conformer import conformer_rel_pos_v1 as rel_pos
    from i6_models.config import ModuleFactoryV1
    from i6_models.parts import conformer as parts

    shared = {"dropout": DROPOUT, "dropout_broadcast_axes": None}
    silu = torch.nn.functional.silu
    feed_forward = parts.ConformerPositionwiseFeedForwardV2Config(
        input_dim=DIM, hidden_dim=FF_DIM, activation=silu, **shared
    )
    attention = parts.ConformerMHSARelPosV1Config(
        input_dim=DIM,
        num_att_heads=HEADS,
        with_bias=True,
        att_weights_dropout=DROPOUT,
        learnable_pos_emb=False,
        rel_pos_clip=None,
        with_linear_pos=True,
        with_pos_bias=True,
        separate_pos_emb_per_head=True,
        pos_emb_dropout=0.0,
        **shared,
    )
    batch_norm = torch.nn.BatchNorm1d(DIM, eps=1e-3)
    convolution = parts.ConformerConvolutionV2Config(
        channels=DIM, kernel_size=KERNEL, activation=silu, norm=batch_norm, **shared
    )
    block = rel_pos.ConformerRelPosBlockV1Config(
        ff_cfg=feed_forward, mhsa_cfg=attention, conv_cfg=convolution
    )
    frontend = ModuleFactoryV1(*_i6_frontend())
    cfg = rel_pos.ConformerRelPosEncoderV1Config(
        num_layers=num_layers, frontend=frontend, block_cfg=block
    )
    return rel_pos.ConformerRelPosEncoderV1(cfg)


def _i6_frontend() -> tuple[type, Any]:
    import torch
    from i6_models.parts.frontend import generic_frontend

    kind = generic_frontend.FrontendLayerType
    cfg = generic_frontend.GenericFrontendV1Config(
        in_features=FEATURES,
        layer_ordering=[kind.Conv2d, kind.Activation] * 3,
        conv_kernel_sizes=[(3, 3)] * 3,
        conv_strides=list(STRIDES),
        conv_paddings=[(1, 1)] * 3,
        conv_out_dims=list(CHANNELS),
        pool_kernel_sizes=None,
        pool_strides=None,
        pool_paddings=None,
        activations=[torch.nn.ReLU()] * 3,
        out_features=DIM,
    )
    return generic_frontend.GenericFrontendV1, cfg


def i6_loss(model: Any, features: Any, lengths: Any) -> Any:
    """:return: the loss of :func:`step`"""
    import torch

    mask = torch.arange(features.shape[1], device=features.device)[None, :] < lengths[:, None]
    (out,), mask = model(features, mask)
    frames = out.relu().square().mean(dim=-1)
    return (frames * mask).sum() / mask.sum()
