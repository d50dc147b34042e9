"""
Take the source of an entry home, edit it, and still get later changes of the original.

:func:`copy` writes the entry's file and those that it needs into a folder, :func:`status` says what
you and the original changed since, :func:`update` brings both together. Nothing of yours is
overwritten, and nothing is written outside of the folder.
"""

from ._copy import copy
from ._status import status
from ._update import WAITING, update
from .changes import Change
from .originals import files_of, import_line

__all__ = ["WAITING", "Change", "copy", "files_of", "import_line", "status", "update"]
