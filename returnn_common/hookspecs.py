"""
The hooks of the pluggy project ``returnn_common``, for our own entries and for those of other
packages.

A plugin is a module with functions of these names, marked with
``pluggy.HookimplMarker("returnn_common")``. It should import neither its blocks nor a framework: it
is imported whenever entries are listed. Other packages name it in an entry point of the group
``returnn_common``.

Such a module may say for which version of these hooks it was written,
``returnn_common_api_version = 1``; without this line it is the first one.
"""

from __future__ import annotations

from typing import Any

import pluggy

PROJECT = "returnn_common"
API_VERSION = 1  # raised when a plugin written for the hooks as they were would not work any more

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

KINDS = (
    "augmentation",
    "dataset",
    "decoder",
    "encoder",
    "frontend",
    "lm",
    "schedule",
    "segmental",
    "vocab",
)
BACKENDS = ("tensorflow-net-dict", "torch")


@hookspec
def returnn_common_entries() -> list[dict[str, Any]]:
    """
    :return: one record for each entry, a dict of

        - ``kind``: one of :data:`KINDS`, which says how the made object is called
        - ``name``: as in ``zoo.get(name)``
        - ``summary``: one line
        - ``target``: ``"module:function"``, imported when the entry is used; with a dot in front it
          is relative to the package of the registration module. The options of ``zoo.get`` are the
          arguments of this function; each has a default
        - ``backends``: those of :data:`BACKENDS` where it works
        - ``tiny``: arguments for a very small one, for tests
        - ``vary``: for each argument another value than in ``tiny``, for tests. In both, a string
          ``"module:name"`` stands for what cannot be written in a module that imports little
    """
