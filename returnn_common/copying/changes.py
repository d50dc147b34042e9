"""What a command about copies says of a file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """
    One file of a folder of copies, and what is known about it or done to it.

    :param path: within the folder, with ``/``
    :param state: in words: ``edited``, ``updated``, ...
    :param old: its text before; empty where there is none
    :param new: its text after
    """

    path: str
    state: str
    old: str = ""
    new: str = ""

    def diff(self) -> str:
        """:return: the difference of the two texts like ``diff -u``, empty where there is none"""
        old, new = (text.splitlines(keepends=True) for text in (self.old, self.new))
        return "".join(difflib.unified_diff(old, new, f"a/{self.path}", f"b/{self.path}"))
