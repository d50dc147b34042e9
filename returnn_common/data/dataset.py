"""
The interface of all datasets.

A dataset is a description: it opens no file before a part of it is asked for, it pickles, equal
descriptions are equal and have one hash in every process, and what it returns are copies.
"""

from __future__ import annotations

import functools
from typing import Any

from .hashing import stable_hash
from .part import Part
from .vocab_base import Vocab


class Dataset:
    """
    Base of all datasets: the parts ``train``, ``dev``, ``devtrain`` and those of ``eval``, each a
    :class:`Part`, the vocabulary ``vocab``, and ``extern_data``.
    """

    vocab: Vocab

    @property
    def train(self) -> Part:
        """the training data"""
        raise NotImplementedError

    @property
    def dev(self) -> Part:
        """what the learning rate and the best epoch are chosen with"""
        raise NotImplementedError

    @property
    def devtrain(self) -> Part:
        """a fixed piece of the training data, read like :attr:`dev`"""
        raise NotImplementedError

    @property
    def eval(self) -> dict[str, Part]:
        """by name, what is recognised and scored"""
        raise NotImplementedError

    @property
    def extern_data(self) -> dict[str, Any]:
        """templates of the data by key, with named dims that are the same every time"""
        return dict(self._extern_data)

    @functools.cached_property
    def _extern_data(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def keys(self) -> list[str]:
        """the data keys, without making dims"""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """:return: the description, without what was computed from it"""
        return {k: v for k, v in self.__dict__.items() if k != "_extern_data"}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return stable_hash((type(self).__name__, self.__getstate__()))
