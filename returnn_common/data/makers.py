"""
The entries of the zoo that are datasets and vocabularies: what ``zoo.get("librispeech")`` calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from .librispeech import Librispeech
from .librispeech_text import LibrispeechText
from .spoken_digits import SpokenDigits
from .vocab_base import Vocab
from .vocab_kinds import CharacterVocab, SentencePieceVocab, Utf8ByteVocab
from .vocabularies import LETTERS, bpe, characters, utf8_bytes


def make_librispeech(
    parts: Sequence[str] | None = None,
    *,
    vocab: Vocab | str = "en-1k",
    partition_epoch: int = 20,
) -> Librispeech:
    """
    LibriSpeech as prepared, raw audio and labels. https://www.openslr.org/12

    :param parts: names such as ``"train-clean-100"``; by default all those that are prepared
    :param vocab: of the targets, or the name of one of ours
    :param partition_epoch: an epoch is this part of the training data
    """
    return Librispeech(parts, vocab=vocab, partition_epoch=partition_epoch)


def make_librispeech_text(
    vocab: Vocab | str = "en-1k", *, partition_epoch: int = 1
) -> LibrispeechText:
    """
    The text of LibriSpeech, for language models. https://www.openslr.org/11

    :param vocab: of the labels, or the name of one of ours
    :param partition_epoch: an epoch is this part of the training data
    """
    return LibrispeechText(vocab=vocab, partition_epoch=partition_epoch)


def make_spoken_digits(
    folder: str = "digits", *, vocab: Vocab | str | None = None, partition_epoch: int = 1
) -> SpokenDigits:
    """
    Spoken digits as prepared, single or in strings, recorded or synthetic.

    :param folder: below the common data folder
    :param vocab: of the targets; by default the characters of the words for digits
    :param partition_epoch: an epoch is this part of the training data
    """
    return SpokenDigits(folder, vocab=vocab, partition_epoch=partition_epoch)


def make_bpe_en_128() -> SentencePieceVocab:
    """English in upper case, 128 labels: ``data.bpe("en-128")``."""
    return bpe("en-128")


def make_bpe_en_1k() -> SentencePieceVocab:
    """English in upper case, 1000 labels: ``data.bpe("en-1k")``."""
    return bpe("en-1k")


def make_bpe_en_5k() -> SentencePieceVocab:
    """English in upper case, 5000 labels: ``data.bpe("en-5k")``."""
    return bpe("en-5k")


def make_characters(letters: Sequence[str] = LETTERS) -> CharacterVocab:
    """
    Single characters, behind labels for unknown, begin and end.

    :param letters: in the order of their indices; by default space, apostrophe, A-Z
    """
    return characters(letters)


def make_utf8_bytes() -> Utf8ByteVocab:
    """The 256 bytes of UTF-8, for any text."""
    return utf8_bytes()
