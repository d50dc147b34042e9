"""
What all vocabularies share: text to label indices and back, and the options that make RETURNN do the
same.

Encoding is RETURNN's own (``returnn.datasets.util.vocabulary``), so a label has one index here, in
a training and in recognition. A vocabulary is a small description: its file is read when it is first
needed, it pickles without what was read, and equality and hash are those of its content, the same in
every process, wherever the file lies.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any


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
