"""
Vocabularies: text to label indices and back, and the options that make RETURNN do the same.

Encoding is RETURNN's own (``returnn.datasets.util.vocabulary``), so a label has one index here, in
a training and in recognition. A vocabulary is a small description: its file is read when it is first
needed, it pickles without what was read, and equality and hash are those of its content, the same in
every process, wherever the file lies.
"""

from __future__ import annotations

import functools
import hashlib
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..hints import valid_names
from . import lexicon as _lexicon

UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"
LETTERS = " '" + string.ascii_uppercase  # what LibriSpeech transcripts are made of
DEFAULT_BPE = "en-1k"
BPE_SAMPLING = 0.1  # dropout of merges, https://arxiv.org/abs/1910.13267

_MERGE_MARK = "@@"  # subword-nmt: this label goes on in the next one


class Vocab:
    """
    Base of all vocabularies.

    ``opts`` are the options of RETURNN's ``Vocabulary.create_vocab``, as a dataset takes them for
    its targets, ``train_opts`` those in training, where labels may be sampled. ``post_process``
    is what RETURNN does with the text before (an option of its datasets), None for nothing.
    """

    post_process: str | None = None

    @property
    def opts(self) -> dict[str, Any]:
        """a new dict every time"""
        raise NotImplementedError

    @property
    def train_opts(self) -> dict[str, Any]:
        """a new dict every time"""
        return self.opts

    def _content(self) -> bytes:
        """what the labels depend on"""
        return repr(sorted(self.opts.items())).encode()

    def _check(self) -> None:
        """:raises: an error for the user where a file is missing or not what it should be"""

    @functools.cached_property
    def _returnn(self) -> Any:
        from returnn.datasets.util.vocabulary import Vocabulary

        self._check()
        return Vocabulary.create_vocab(**self.opts)

    @property
    def size(self) -> int:
        """number of labels, without the blank"""
        return self._returnn.num_labels

    @property
    def labels(self) -> list[str]:
        """all labels, in the order of their indices"""
        return list(self._returnn.labels)

    @property
    def bos_index(self) -> int | None:
        """the label for the begin of a sentence; None where there is none"""
        return self._returnn.bos_label_id

    @property
    def eos_index(self) -> int | None:
        """the label for the end of a sentence; None where there is none"""
        return self._returnn.eos_label_id

    @property
    def unk_index(self) -> int | None:
        """the label for what no other label covers; None where there is none"""
        return self._returnn.unknown_label_id

    @property
    def blank_index(self) -> int:
        """
        The blank of CTC and transducers: it is not a label but the index behind all labels, as
        everywhere in RETURNN.
        """
        return self.size

    def encode(self, text: str) -> list[int]:
        """:return: the label indices of `text`, as RETURNN makes them, without begin and end"""
        return self._returnn.get_seq(text)

    def decode(self, indices: Iterable[int]) -> str:
        """
        :param indices: of labels; those for begin and end of a sentence are left out
        :return: the text
        """
        raise NotImplementedError

    def to_words(self, indices: Iterable[int]) -> list[str]:
        """:return: the words of :meth:`decode`, which is what word errors are counted on"""
        return self.decode(indices).split()

    @functools.cached_property
    def content_hash(self) -> str:
        """64 hexadecimal digits that change with the labels, and only with them"""
        self._check()
        return hashlib.sha256(type(self).__name__.encode() + b"\n" + self._content()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return int(self.content_hash[:15], 16)  # Python's own differs from process to process

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _spoken(self, indices: Iterable[int]) -> list[int]:
        """:return: the indices without begin and end of a sentence, checked"""
        kept = [int(index) for index in indices]
        for index in kept:
            if not 0 <= index < self.size:
                raise ValueError(f"label index {index} is not below the size {self.size}")
        silent = (self.bos_index, self.eos_index)
        return [index for index in kept if index not in silent]


@dataclass(frozen=True, eq=False)
class SentencePieceVocab(Vocab):
    """A model file of SentencePiece, with or without sampling in training."""

    path: str
    sampling: float | None = None

    @property
    def opts(self) -> dict[str, Any]:
        return {"class": "SentencePieces", "model_file": self.path}

    @property
    def train_opts(self) -> dict[str, Any]:
        if self.sampling is None:
            return self.opts
        return {**self.opts, "enable_sampling": True, "alpha": self.sampling, "nbest_size": -1}

    def with_sampling(self, alpha: float = BPE_SAMPLING) -> SentencePieceVocab:
        """
        :param alpha: for BPE the probability to drop a merge (BPE dropout,
            https://arxiv.org/abs/1910.13267, whose default it is), for a unigram model the
            smoothing of the distribution that is sampled from (https://arxiv.org/abs/1804.10959)
        :return: the same vocabulary, sampled in training. SentencePiece has one global seed, which
            RETURNN sets in each epoch, and a process takes it over when it first samples
        """
        return replace(self, sampling=_probability(alpha, "alpha"))

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def decode(self, indices: Iterable[int]) -> str:
        return self._processor.decode(self._spoken(indices))

    @functools.cached_property
    def _processor(self) -> Any:
        return self._returnn.sp

    def _content(self) -> bytes:
        return f"{self.sampling}\n".encode() + Path(self.path).read_bytes()

    def _check(self) -> None:
        from sentencepiece import SentencePieceProcessor

        _check_file(self.path, "a SentencePiece model")
        try:
            SentencePieceProcessor(model_file=self.path)
        except (RuntimeError, OSError) as exc:
            raise ValueError(f"{self.path!r} is not a SentencePiece model") from exc


@dataclass(frozen=True, eq=False)
class SubwordNmtVocab(Vocab):
    """Codes and vocabulary of subword-nmt, which many existing checkpoints use."""

    codes: str
    vocab: str
    sampling: float | None = None

    @property
    def opts(self) -> dict[str, Any]:
        return {
            "class": "BytePairEncoding",
            "bpe_file": self.codes,
            "vocab_file": self.vocab,
            **self._special,
        }

    @property
    def train_opts(self) -> dict[str, Any]:
        if self.sampling is None:
            return self.opts
        return {
            "class": "SamplingBytePairEncoding",
            "vocab_file": self.vocab,
            "breadth_prob": self.sampling,
            **self._special,
        }

    def with_sampling(self, breadth_prob: float = BPE_SAMPLING) -> SubwordNmtVocab:
        """
        :param breadth_prob: of RETURNN's ``SamplingBytePairEncoding``: the probability to go on
            with another split than the longest
        :return: the same vocabulary, sampled in training
        """
        return replace(self, sampling=_probability(breadth_prob, "breadth_prob"))

    def decode(self, indices: Iterable[int]) -> str:
        text = " ".join(self._returnn.id_to_label(index) for index in self._spoken(indices))
        return f"{text} ".replace(f"{_MERGE_MARK} ", "").rstrip()

    @functools.cached_property
    def _special(self) -> dict[str, Any]:
        """the special labels, as far as the vocabulary has them"""
        from returnn.datasets.util.vocabulary import Vocabulary

        self._check()
        plain = Vocabulary(self.vocab, unknown_label=None)
        wanted = {"unknown_label": UNKNOWN, "bos_label": BOS, "eos_label": EOS}
        found = {key: plain.label_to_id(label, None) for key, label in wanted.items()}
        return {
            key: label if found[key] is not None else None
            for key, label in wanted.items()
            if found[key] is not None or key == "unknown_label"  # else RETURNN's default is "UNK"
        }

    def _content(self) -> bytes:
        files = [Path(path).read_bytes() for path in (self.codes, self.vocab)]
        return b"\n".join([str(self.sampling).encode(), *files])

    def _check(self) -> None:
        _check_file(self.codes, "the codes of subword-nmt")
        _check_file(self.vocab, "the vocabulary of subword-nmt")


@dataclass(frozen=True, eq=False)
class CharacterVocab(Vocab):
    """Single characters, behind the labels for unknown, begin and end."""

    letters: str

    @property
    def opts(self) -> dict[str, Any]:
        return {
            "class": "CharacterTargets",
            "vocab_file": None,
            "labels": [UNKNOWN, BOS, EOS, *self.letters],
            "unknown_label": UNKNOWN,
            "bos_label": BOS,
            "eos_label": EOS,
        }

    def decode(self, indices: Iterable[int]) -> str:
        return self._returnn.get_seq_labels(self._spoken(indices))


@dataclass(frozen=True, eq=False)
class Utf8ByteVocab(Vocab):
    """The 256 bytes of UTF-8. No text has a byte 0: it is begin and end of a sentence."""

    @property
    def opts(self) -> dict[str, Any]:
        return {"class": "Utf8ByteTargets", "bos_label": 0, "eos_label": 0}

    def decode(self, indices: Iterable[int]) -> str:
        return bytes(self._spoken(indices)).decode(errors="replace")


@dataclass(frozen=True, eq=False)
class PhonemeVocab(Vocab):
    """The phonemes of a pronunciation lexicon, behind the labels for unknown, begin and end."""

    path: str

    @property
    def opts(self) -> dict[str, Any]:
        return {
            "class": "Vocabulary",
            "vocab_file": None,
            "labels": [UNKNOWN, BOS, EOS, *_lexicon.phonemes_of(self._lexicon)],
            "unknown_label": UNKNOWN,
            "bos_label": BOS,
            "eos_label": EOS,
        }

    @property
    def post_process(self) -> str:  # type: ignore[override]
        """an expression that RETURNN evaluates: the words of a text to their phonemes"""
        return _lexicon.returnn_expression(self.path, unknown=UNKNOWN)

    @functools.cached_property
    def _lexicon(self) -> dict[str, list[str]]:
        return _lexicon.read_lexicon(self.path)

    def encode(self, text: str) -> list[int]:
        """:return: the phonemes of the first pronunciation of each word; one unknown for others"""
        words = text.split()
        return self._returnn.get_seq(
            " ".join(" ".join(self._lexicon.get(w, [UNKNOWN])) for w in words)
        )

    def decode(self, indices: Iterable[int]) -> str:
        """:return: the phonemes, with spaces: phonemes do not tell where a word ends"""
        return self._returnn.get_seq_labels(self._spoken(indices))

    def _content(self) -> bytes:
        return repr(sorted(self._lexicon.items())).encode()

    def _check(self) -> None:
        _check_file(self.path, "a pronunciation lexicon")


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


def _check_file(path: str, what: str) -> None:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path!r}, expected {what}")


def _probability(value: float, name: str) -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}, expected a probability between 0 and 1")
    return float(value)
