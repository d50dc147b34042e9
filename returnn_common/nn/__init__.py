"""
The core: models are plain Python modules on named dims.

``nn`` is RETURNN's frontend (``returnn.frontend``, RF) under one name, plus what turns its modules into compact RETURNN
layers: :func:`lower`. Every public name of RF is reachable as ``nn.NAME``; the names below read or lower better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import returnn.frontend as _rf
from returnn.tensor import Dim, Tensor, TensorDict, batch_dim, single_step_dim

from ..hints import near_misses
from . import _returnn, functions
from ._backend import LayersBackend
from ._graph import Node
from ._names import FeatureDim, SpatialDim, any_feature_dim, any_spatial_dim
from ._stage import Stage
from .functions import (
    check_length,
    cross_entropy,
    ctc_greedy_decode,
    ctc_loss,
    dropout,
    mark_as_loss,
    masked_computation,
    scan,
    select_frames,
    unmask,
)
from .lowering import Lowered, growing_config_text, lower
from .root_module import RootModule
from .stages import (
    Stages,
    declared,
    epoch_loop,
    extern_data,
    init_ctx,
    load,
    step_loop,
    store,
)
from .torch_config import torch_config

if TYPE_CHECKING:
    from returnn.frontend import *  # noqa: F403

_returnn.register(Node, LayersBackend)
_returnn.select_if_none(LayersBackend)
_returnn.require_behavior_version()
_returnn.wrap_once(Tensor, "mark_as_loss", mark_as_loss)
_returnn.wrap_once(Tensor, "__bool__", functions.truth_value)
_returnn.wrap_once(_rf, "combine", functions.combine)


def __getattr__(name: str) -> Any:
    try:
        return getattr(_rf, name)
    except AttributeError:
        raise AttributeError(f"nn has no {name!r}{near_misses(name, __dir__())}") from None


def __dir__() -> list[str]:
    return sorted({*(name for name in {**vars(_rf), **globals()} if not name.startswith("_"))})
