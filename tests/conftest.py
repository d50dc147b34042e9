"""
Settings for all tests: before any framework is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Tests use small shapes: more threads only cost. A test that trains longer sets its own number.
    "OMP_NUM_THREADS": "1",
    # The same values on every machine: `CUDA_VISIBLE_DEVICES=0 pytest` runs on a GPU.
    "CUDA_VISIBLE_DEVICES": "",
}

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
if not os.environ["CUDA_VISIBLE_DEVICES"]:
    # RETURNN's native ops would otherwise be compiled for CUDA where its toolkit is installed.
    os.environ.setdefault("DISABLE_CUDA", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """
    :return: the folder with real recordings; the test is skipped where there is none
    """
    default = ROOT.parent / "shared/data"
    folder = Path(os.environ.get("RETURNN_COMMON_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set RETURNN_COMMON_TEST_DATA (see CONTRIBUTING.md)")
    return folder
