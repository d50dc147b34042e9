"""
What takes the place of RF's own functions while a model is traced: so RF's modules lower as compactly as ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Tensor

from . import _returnn
from ._attention import relative_positional_encoding
from ._features import mel_filterbank
from ._norms import batch_norm, copy_masked, dropout, gating, layer_norm

#: (where RF has it, its name) -> ours
REPLACED: dict[tuple[Any, str], Callable] = {
    (rf, "dropout"): dropout,
    (rf, "gating"): gating,
    (Tensor, "copy_masked"): copy_masked,
    (rf.audio, "mel_filterbank"): mel_filterbank,
    (_returnn.mel, "mel_filterbank"): mel_filterbank,
    (rf.LayerNorm, "__call__"): layer_norm,
    (rf.BatchNorm, "__call__"): batch_norm,
    (_returnn.attention, "relative_positional_encoding"): relative_positional_encoding,
}
