"""Vocabularies by name or file: ``data.bpe("en-1k")`` and the others."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

from ..hints import valid_names
from .vocab_base import Vocab
from .vocab_kinds import (
    CharacterVocab,
    PhonemeVocab,
    SentencePieceVocab,
    SubwordNmtVocab,
    Utf8ByteVocab,
)

LETTERS = " '" + string.ascii_uppercase  # what LibriSpeech transcripts are made of
DEFAULT_BPE = "en-1k"


def bpe(name: str = DEFAULT_BPE) -> SentencePieceVocab:
    """
    :param name: of a vocabulary in the folder vocabs/ of this package: "en-128", "en-1k", "en-5k"
    :return: a byte-pair encoding of English in upper case
    :raises ValueError: there is none of this name
    :raises FileNotFoundError: there is no folder vocabs/
    """
    folder = vocabs_folder()
    names = sorted(file.stem for file in folder.glob("*.model"))
    if name not in names:
        raise ValueError(f"there is no vocabulary {name!r}{valid_names(name, names)}")
    return SentencePieceVocab(str(folder / f"{name}.model"))


def sentencepiece(path: str | Path) -> SentencePieceVocab:
    """:param path: a model file of SentencePiece, e.g. of ``returnn-common vocab train``"""
    return SentencePieceVocab(str(path))


def subword_nmt(codes: str | Path, vocab: str | Path) -> SubwordNmtVocab:
    """
    :param codes: the file that ``subword-nmt learn-bpe`` writes
    :param vocab: the labels: one a line, or a Python dict from label to index. Those named
        ``<unk>``, ``<s>`` and ``</s>`` have their meaning
    """
    return SubwordNmtVocab(str(codes), str(vocab))


def characters(letters: Sequence[str] = LETTERS) -> CharacterVocab:
    """
    :param letters: single characters, in the order of their indices; by default those of
        LibriSpeech transcripts: space, apostrophe, A-Z
    :raises ValueError: not single characters, or one of them twice
    """
    for letter in letters:
        if len(letter) != 1:
            raise ValueError(f"characters: expected single characters, got {letter!r}")
        if list(letters).count(letter) > 1:
            raise ValueError(f"characters: {letter!r} is given twice")
    return CharacterVocab("".join(letters))


def utf8_bytes() -> Utf8ByteVocab:
    """:return: the 256 bytes of UTF-8, for any text"""
    return Utf8ByteVocab()


def phonemes(lexicon: str | Path) -> PhonemeVocab:
    """
    :param lexicon: a text file, a word and its phonemes in each line, as the lexicon of LibriSpeech
        (https://www.openslr.org/11) and CMUdict have it. Of several pronunciations the first counts
    """
    return PhonemeVocab(str(lexicon))


def as_vocab(vocab: Vocab | str) -> Vocab:
    """
    :param vocab: a vocabulary, the name of one for :func:`bpe`, or a SentencePiece model file
    :raises TypeError: it is something else
    """
    if isinstance(vocab, Vocab):
        return vocab
    if not isinstance(vocab, str):
        raise TypeError(f"expected a vocabulary or the name of one, such as 'en-1k', got {vocab!r}")
    return sentencepiece(vocab) if vocab.endswith(".model") else bpe(vocab)


def vocabs_folder() -> Path:
    """
    :return: the folder of our vocabularies: inside the package (in a wheel) or beside it
    :raises FileNotFoundError: there is neither
    """
    package = Path(__file__).parent.parent
    for folder in (package / "vocabs", package.parent / "vocabs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"there is no folder {str(package / 'vocabs')!r}: copy the folder vocabs/ of the repository"
        f" of returnn_common there, or name a file with data.sentencepiece(path)"
    )
