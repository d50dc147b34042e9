"""
Train vocabularies with SentencePiece on the words of a text and their counts.

The same counts give the same bytes: words are sorted, one thread trains, and the model goes from
memory to memory, for a model that is trained from a file holds the name of that file.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..hints import valid_names
from .archives import read_entries, transcripts_path
from .librispeech import prepared_parts
from .librispeech_files import TRAIN, find_parts, scan
from .librispeech_preparation import FOLDER
from .paths import get_common_data_path

MODEL_TYPES = ("bpe", "unigram")
CORPORA = ("librispeech",)
_NUM_SPECIAL = 3  # <unk>, <s>, </s>
_LONGEST = 4192  # bytes; the default of SentencePiece, which skips longer lines
_UNIGRAM_WORDS = 3 * 10**6  # with their counts, which is 430 MB
_WORD_BEGIN = "\u2581"  # SentencePiece's sign for it
_COUNT = re.compile(r"(\S+)\t(\d+)")
_TRANSCRIPT = re.compile(r"\d+-\d+-\d+ (.*)")  # of LibriSpeech


def train_vocab(counts: Mapping[str, int], size: int, *, model_type: str = "bpe") -> bytes:
    """
    :param counts: of words
    :param size: number of labels, with the three for unknown, begin and end. A small text may not
        have as many: the model then has as many as it has
    :param model_type: "bpe" (https://arxiv.org/abs/1508.07909) or "unigram"
        (https://arxiv.org/abs/1804.10959)
    :return: the content of a SentencePiece model file. The text is taken as it is, not normalised
    :raises ValueError: there is no word, `size` is below the number of characters, or there is no
        such type
    """
    from sentencepiece import SentencePieceTrainer

    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"there is no model type {model_type!r}{valid_names(model_type, MODEL_TYPES)}"
        )
    counts = {word: count for word, count in counts.items() if count > 0}
    _check(counts, size)
    if model_type == "unigram":
        counts = _scaled(counts)
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=_table(counts),
        max_sentence_length=max(_LONGEST, *(len(line.encode()) for line in _table(counts))),
        model_writer=model,
        input_format="tsv",
        vocab_size=size,
        hard_vocab_limit=False,
        model_type=model_type,
        character_coverage=1.0,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,  # errors only
    )
    return model.getvalue()


def size_of(model: bytes) -> int:
    """:return: number of labels of a SentencePiece model"""
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=model).vocab_size()


def count_words(source: str | os.PathLike) -> Counter[str]:
    """
    :param source: a text with a sentence a line, transcripts of LibriSpeech, word counts
        (``WORD<TAB>COUNT`` in each line), these with ".gz", an archive of ours, the folder of
        LibriSpeech, or "librispeech" for its prepared training data
    :raises ValueError: it is none of these, or has no word
    """
    path = Path(source)
    if not path.exists() and str(source) not in CORPORA:
        raise ValueError(
            f"there is no file, folder or corpus {str(source)!r}{valid_names(str(source), CORPORA)}"
        )
    counts: Counter[str] = Counter()
    for line in _lines(path):
        word_count, transcript = _COUNT.fullmatch(line), _TRANSCRIPT.fullmatch(line)
        if word_count:
            counts[word_count[1]] += int(word_count[2])
        else:
            counts.update((transcript[1] if transcript else line).split())
    if not counts:
        raise ValueError(f"{str(source)!r} has no word")
    return counts


def upper_case(counts: Mapping[str, int]) -> Counter[str]:
    """:return: the counts of the words in upper case"""
    upper: Counter[str] = Counter()
    for word, count in counts.items():
        upper[word.upper()] += count
    return upper


def _lines(path: Path) -> Iterator[str]:
    if not path.exists():
        yield from _lines_of_prepared()
    elif path.is_dir():
        found = scan(list(find_parts(path).values()))
        yield from (recording.text for recording in found.recordings)
    elif path.suffix == ".zip":
        yield from (entry.text for entry in read_entries(path))
    else:
        yield from _lines_of_file(path)


def _lines_of_prepared() -> Iterator[str]:
    names = [name for name in prepared_parts()[0] if name in TRAIN]
    if not names:
        raise ValueError(f"no training data of LibriSpeech in {get_common_data_path(FOLDER)!r}")
    for name in names:
        archive = get_common_data_path(f"{FOLDER}/{name}.zip")
        yield from _lines_of_file(Path(transcripts_path(archive)))


def _lines_of_file(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as exc:
        raise ValueError(f"{str(path)!r} is not text in UTF-8: {exc}") from exc


def _check(counts: Mapping[str, int], size: int) -> None:
    if not counts:
        raise ValueError("a vocabulary needs words, got none")
    for word in counts:
        if word.split() != [word]:
            raise ValueError(f"expected words without spaces, got {word!r}")
    smallest = len(set("".join(counts)) | {_WORD_BEGIN}) + _NUM_SPECIAL
    if not isinstance(size, int) or size < smallest:
        raise ValueError(
            f"the size is {size!r}, expected at least {smallest}: one for each character of the text,"
            f" and {_NUM_SPECIAL} for unknown, begin and end"
        )


def _scaled(counts: Mapping[str, int]) -> dict[str, int]:
    """:return: smaller counts: SentencePiece takes 120 bytes for each count of each word"""
    factor = _UNIGRAM_WORDS / sum(counts.values())
    return {word: max(1, round(count * min(1.0, factor))) for word, count in counts.items()}


def _table(counts: Mapping[str, int]) -> Iterable[str]:
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{word}\t{count}"
