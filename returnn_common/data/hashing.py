"""A hash of descriptions that is the same in every process; Python's own is not."""

from __future__ import annotations

import hashlib
from typing import Any

from .vocab_base import Vocab


def stable_hash(value: Any) -> int:
    """:return: a hash of plain values and our own objects, the same in every process"""
    return int(hashlib.sha256(_canonical(value).encode()).hexdigest()[:15], 16)


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(f"{_canonical(k)}: {_canonical(v)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_canonical, value))})"
    if isinstance(value, Vocab):
        return f"Vocab({value.content_hash})"
    return repr(value)
