"""
Corpora, vocabularies, and what makes their files.

A dataset is made without arguments, ``Librispeech()``, and gives options for RETURNN and numpy
batches; see :mod:`dataset` for the interface, docs/data.md for the use. The names here are imported
on first use; none imports TensorFlow or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset
    from .librispeech import Librispeech, LibrispeechFolder
    from .librispeech_text import LibrispeechText
    from .part import Part
    from .paths import get_common_data_path
    from .speech_dataset import SpeechDataset
    from .spoken_digits import SpokenDigits
    from .vocab_base import Vocab
    from .vocabularies import bpe, characters, phonemes, sentencepiece, subword_nmt, utf8_bytes

_HOMES = {
    "dataset": "Dataset",
    "librispeech": "Librispeech LibrispeechFolder",
    "librispeech_text": "LibrispeechText",
    "part": "Part",
    "paths": "get_common_data_path",
    "speech_dataset": "SpeechDataset",
    "spoken_digits": "SpokenDigits",
    "vocab_base": "Vocab",
    "vocabularies": "bpe characters phonemes sentencepiece subword_nmt utf8_bytes",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    import importlib

    from ..hints import valid_names

    if name in _NAMES:
        return getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)
    known = "" if name.startswith("_") else valid_names(name, sorted(_NAMES))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{known}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
