"""
The registration module of our datasets and vocabularies: it imports none of them.
"""

from __future__ import annotations

from typing import Any

from ..hookspecs import BACKENDS, hookimpl


@hookimpl
def returnn_common_entries() -> list[dict[str, Any]]:
    """:return: the records of our datasets and vocabularies"""
    return [
        _record(
            "dataset",
            "librispeech",
            "LibriSpeech, 960 h of read English: raw audio and labels",
            tiny={"vocab": "en-128", "partition_epoch": 1},
            vary={"parts": ("dev-clean",), "vocab": "en-1k", "partition_epoch": 2},
        ),
        _record(
            "dataset",
            "librispeech_text",
            "the text of LibriSpeech, for language models",
            tiny={"vocab": "en-128"},
            vary={"vocab": "en-1k", "partition_epoch": 2},
        ),
        _record(
            "dataset",
            "spoken_digits",
            "spoken digits, single or in strings, recorded or synthetic",
            vary={"folder": "other_digits", "vocab": "en-128", "partition_epoch": 2},
        ),
        _record("vocab", "bpe_en_128", "byte-pair encoding of English in upper case, 128 labels"),
        _record("vocab", "bpe_en_1k", "byte-pair encoding of English in upper case, 1000 labels"),
        _record("vocab", "bpe_en_5k", "byte-pair encoding of English in upper case, 5000 labels"),
        _record(
            "vocab",
            "characters",
            "single characters; by default those of LibriSpeech",
            tiny={"letters": "abc "},
            vary={"letters": "ab"},
        ),
        _record("vocab", "utf8_bytes", "the bytes of UTF-8, for any text"),
    ]


def _record(
    kind: str,
    name: str,
    summary: str,
    *,
    tiny: dict[str, Any] | None = None,
    vary: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "summary": summary,
        "target": f".data.makers:make_{name}",
        "backends": BACKENDS,
        "tiny": tiny or {},
        "vary": vary or {},
    }
