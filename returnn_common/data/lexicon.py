"""
Pronunciation lexicons: a word and its phonemes in each line, separated by spaces or tabs::

    HELLO  HH AH0 L OW1
    HELLO(2)  HH EH0 L OW1
    ;;; a comment

Formats: https://www.openslr.org/11 (LibriSpeech), https://github.com/cmusphinx/cmudict.
"""

from __future__ import annotations

import os

_COMMENTS = ";;;"
_COMMENT_BEHIND = " #"


def read_lexicon(path: str | os.PathLike) -> dict[str, list[str]]:
    """
    :return: for each word the phonemes of its first pronunciation
    :raises ValueError: a line has a word without phonemes, or there is no word
    """
    lexicon: dict[str, list[str]] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            word, *phonemes = line.split(_COMMENT_BEHIND)[0].split() or [""]
            if not word or line.startswith(_COMMENTS):
                continue
            if not phonemes:
                raise ValueError(
                    f"{os.fspath(path)!r}, line {number}: expected a word and its phonemes, got {line!r}"
                )
            lexicon.setdefault(word, phonemes)
    if not lexicon:
        raise ValueError(f"{os.fspath(path)!r} is a lexicon without words")
    return lexicon


def phonemes_of(lexicon: dict[str, list[str]]) -> list[str]:
    """:return: all phonemes, sorted"""
    return sorted({phoneme for pronunciation in lexicon.values() for phoneme in pronunciation})


def returnn_expression(path: str | os.PathLike, *, unknown: str) -> str:
    """
    :param path: of the lexicon
    :param unknown: stands for a word that is not in it
    :return: a Python expression of a function from text to phonemes, with nothing but Python in it:
        RETURNN evaluates it in a process that need not know this package
    """
    read = (
        f"{{line.split()[0]: ' '.join(line.split({_COMMENT_BEHIND!r})[0].split()[1:])"
        f" for line in reversed(open({os.fspath(path)!r}, encoding='utf-8').readlines()) if line.split()}}"
    )
    use = f"' '.join(lexicon.get(word, {unknown!r}) for word in text.split())"
    return f"(lambda lexicon: lambda text: {use})({read})"
