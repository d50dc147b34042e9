"""
All metadata of the package. ``pip install .``; for development ``pip install -e ".[test]"``.
"""

import ast
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

# The oldest supported releases; tests/run_floor_and_newest.py reads them and tests both ends.
# This RETURNN knows behavior_version 31, which every generated config pins.
OLDEST = {"returnn": "1.20260917.92059", "tensorflow": "2.20.0"}

DATA = ["matplotlib", "rich", "soundfile"]
DEMO = ["espeakng-loader", "h5py", "jiwer", "matplotlib", "rich", "soundfile"]
TENSORBOARD = ["tensorboardX"]
TORCH = ["torch>=2.13"]
TEST = [
    *DEMO,
    *TENSORBOARD,
    "build",
    "i6_models",  # the conformer to compare with
    "mypy",
    "pytest>=8",
    "pytest-xdist",
    "ruff",
    "setuptools>=69",
    "torch==2.13.*",
    "typeguard",  # i6_models needs it, but does not require it
    "wordfreq==3.1.1",  # the vocabularies are made of it, to the byte
]


def read_version():
    """
    :return: `__version__` of the package, without importing it
    """
    tree = ast.parse((ROOT / "returnn_common/__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__version__":
            return ast.literal_eval(node.value)
    raise ValueError("returnn_common/__init__.py has no line `__version__ = ...`")


def find_layout():
    """
    :return: packages, and their folders where these differ: vocabs/ is beside the package here,
        and inside it in the wheel
    """
    packages = find_packages(include=["returnn_common*"])
    if (ROOT / "vocabs").is_dir():
        return [*packages, "returnn_common.vocabs"], {"returnn_common.vocabs": "vocabs"}
    return packages, {}


packages, package_dir = find_layout()

setup(
    name="returnn_common",
    version=read_version(),
    description="Speech and language models as Python modules, lowered to compact RETURNN layers",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Multimedia :: Sound/Audio :: Speech",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=packages,
    package_dir=package_dir,
    package_data={"returnn_common": ["py.typed"], "returnn_common.vocabs": ["**/*"]},
    install_requires=[
        f"returnn>={OLDEST['returnn']}",
        f"tensorflow>={OLDEST['tensorflow']}",
        "dm-tree",  # returnn.frontend imports it, but does not require it
        "numpy",
        "pluggy>=1.7",
        "safetensors",
        "sentencepiece",
    ],
    extras_require={
        "data": DATA,
        "demo": DEMO,
        "tensorboard": TENSORBOARD,
        "test": TEST,
        "torch": TORCH,
    },
    entry_points={"console_scripts": ["returnn-common = returnn_common.cli:main"]},
    zip_safe=False,
)
