"""What an error says about a wrong name: the nearest right spellings, and which names are valid."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_misses(name: str, valid: Iterable[str]) -> str:
    """:return: ``"; did you mean 'a' or 'b'?"``, or nothing where no valid name is near"""
    near = difflib.get_close_matches(str(name), list(valid), n=3)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def valid_names(name: str, valid: Iterable[str]) -> str:
    """:return: :func:`near_misses`, then all valid names; goes behind ``"there is no thing 'name'"``"""
    names = list(valid)
    return f"{near_misses(name, names) or ';'} valid are: {', '.join(names) or 'none'}"
