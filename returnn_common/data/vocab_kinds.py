"""The kinds of vocabularies: SentencePiece, subword-nmt, characters, bytes, phonemes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import lexicon as _lexicon
from .vocab_base import Vocab

UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"
BPE_SAMPLING = 0.1  # dropout of merges, https://arxiv.org/abs/1910.13267

_MERGE_MARK = "@@"  # subword-nmt: this label goes on in the next one


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


def _check_file(path: str, what: str) -> None:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path!r}, expected {what}")


def _probability(value: float, name: str) -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}, expected a probability between 0 and 1")
    return float(value)
