"""
A vocabulary of whole words, for tasks with a closed list of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from returnn_common.data import Vocab


@dataclass(frozen=True, eq=False)
class WordVocab(Vocab):
    """Whole words; a text with another word is an error."""

    words: tuple[str, ...]

    @property
    def opts(self) -> dict[str, Any]:
        return {
            "class": "Vocabulary",
            "vocab_file": None,
            "labels": list(self.words),
            "unknown_label": None,
        }

    def decode(self, indices: Iterable[int]) -> str:
        return " ".join(self.words[index] for index in indices)


def make_words(words: Sequence[str] = ("no", "yes")) -> WordVocab:
    """
    Whole words, e.g. ``yes`` and ``no``.

    :param words: in the order of their indices
    :raises ValueError: a word is given twice, or has a space
    """
    for word in words:
        if len(word.split()) != 1 or list(words).count(word) > 1:
            raise ValueError(f"words: expected different words without spaces, got {list(words)}")
    return WordVocab(tuple(words))
