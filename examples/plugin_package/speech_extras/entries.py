"""
What this package offers to returnn_common: the module that the entry point names.

It is imported whenever entries are listed, so it imports none of what it lists.
"""

from __future__ import annotations

from typing import Any

import pluggy

hookimpl = pluggy.HookimplMarker("returnn_common")

BACKENDS = ["tensorflow-net-dict", "torch"]


@hookimpl
def returnn_common_entries() -> list[dict[str, Any]]:
    """:return: one record for each entry"""
    return [
        {
            "kind": "encoder",
            "name": "tdnn",
            "summary": "time-delay network: dilated convolutions over time",
            "target": ".tdnn:make_tdnn",
            "backends": BACKENDS,
            "tiny": {"in_dim": 7, "out_dim": 5, "num_layers": 3},
            "vary": {"in_dim": 8, "out_dim": 6, "num_layers": 4, "dilation": 2, "dropout": 0.3},
        },
        {
            "kind": "dataset",
            "name": "yes_no",
            "summary": "the 60 recordings of OpenSLR 1: eight times yes or no in Hebrew",
            "target": ".yes_no:YesNo",
            "backends": BACKENDS,
            "tiny": {},
            "vary": {"vocab": "en-128", "partition_epoch": 2},
        },
        {
            "kind": "vocab",
            "name": "words",
            "summary": "whole words of a closed list",
            "target": ".words:make_words",
            "backends": BACKENDS,
            "tiny": {},
            "vary": {"words": ["one", "two"]},
        },
    ]
