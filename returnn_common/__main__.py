"""
``python -m returnn_common``: the same as the console script ``returnn-common``.
"""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
