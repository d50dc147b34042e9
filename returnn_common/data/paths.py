"""Where prepared data lies."""

from __future__ import annotations

import os
import posixpath

DEFAULT_FOLDER = "data-common"  # typically a symlink, beside the config
VARIABLE = "RETURNN_COMMON_DATA_PATH"


def get_common_data_path(path: str = "") -> str:
    """
    The place of prepared data, by a name that is the same for everybody. Nothing is looked up in
    the file system, so that a config can be made anywhere.

    :param path: relative, e.g. ``"librispeech/dev-clean.zip"``
    :return: `path` below the folder that the environment variable ``RETURNN_COMMON_DATA_PATH``
        names, or else below ``data-common``, relative to the working directory
    :raises ValueError: `path` is absolute or leads out of the folder
    """
    inside = posixpath.normpath(path) if path else ""
    if os.path.isabs(path) or inside.split("/")[0] == "..":
        raise ValueError(
            f"the path is {path!r}, expected one below the common folder, such as 'librispeech'"
        )
    base = os.environ.get(VARIABLE) or DEFAULT_FOLDER
    return os.path.join(base, inside) if inside not in ("", ".") else base
