"""
Who may import whom: every import of the package, also those inside functions, against one table.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "returnn_common"

FRAMEWORKS = ("jax", "keras", "returnn.tf", "returnn.torch", "tensorflow", "torch")

# These import a framework at their top. Only nn and training may import them, inside functions.
LATE_MODULES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Part:
    """What a part may import; "*" is everything."""

    own: tuple[str, ...] = ()
    other: tuple[str, ...] = ()  # apart from the standard library
    frameworks: bool = False  # inside functions


LEAVES = ("files", "hints", "lines")  # every part may import them
LEAF_AT_THE_TOP = Part(own=("*",), other=("*",), frameworks=True)
BLOCKS = ("nn", "zoo._dims", "zoo._feed_forward", "zoo._positions")

# The longest name that a module begins with counts: zoo.encoder.conformer belongs to zoo.encoder.
PARTS = {
    "": Part(),
    "__main__": Part(own=("cli",)),
    "cli": LEAF_AT_THE_TOP,
    "copying": LEAF_AT_THE_TOP,
    "demo": LEAF_AT_THE_TOP,
    "showing": LEAF_AT_THE_TOP,
    "testing": LEAF_AT_THE_TOP,
    "zoo_commands": LEAF_AT_THE_TOP,
    "files": Part(),
    "hints": Part(),
    "lines": Part(other=("returnn",)),
    "hookspecs": Part(other=("pluggy",)),
    "records": Part(own=("hookspecs",), other=("pluggy",)),
    "entry_points": Part(own=("hookspecs", "records")),
    "plugins": Part(own=("entry_points", "hookspecs", "records")),
    "nn": Part(other=("numpy", "returnn", "tree"), frameworks=True),
    "training": Part(
        own=("data", "nn"),  # the part of a dataset that a config names
        other=("matplotlib", "numpy", "returnn", "safetensors", "tensorboardX"),
        frameworks=True,
    ),
    "data": Part(
        other=(
            "espeakng_loader",
            "matplotlib",
            "numpy",
            "returnn.datasets",
            "returnn.tensor",
            "rich",
            "sentencepiece",
            "soundfile",
        )
    ),
    "data.entries": Part(own=("hookspecs",)),
    "zoo": Part(own=("hookspecs", "plugins", "records")),
    "zoo._dims": Part(own=("nn",)),
    "zoo._feed_forward": Part(own=("nn",)),
    "zoo._positions": Part(own=("nn",)),
    "zoo.augmentation": Part(own=BLOCKS),
    "zoo.frontend": Part(own=BLOCKS),
    "zoo.encoder": Part(own=(*BLOCKS, "zoo.frontend")),
    "zoo.decoder": Part(own=BLOCKS),
    "zoo.regularisation": Part(own=BLOCKS),
    "zoo.schedule": Part(),
    "zoo.lm": Part(own=(*BLOCKS, "zoo.decoder")),
    "zoo.segmental": Part(
        own=(*BLOCKS, "zoo.augmentation", "zoo.decoder", "zoo.encoder", "zoo.frontend")
    ),
}


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is relative to our package if `own`."""

    module: str
    line: int
    target: str
    own: bool
    late: bool


def is_in(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.") or not prefix


def part_of(module: str) -> str | None:
    """
    :return: the part with the longest name; None if the module is in no part
    """
    if not module:
        return ""
    return max((p for p in PARTS if p and is_in(module, p)), key=len, default=None)


def module_name(file: Path, package: Path) -> str:
    """
    :return: dotted name relative to the package, "" for the package itself
    """
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(module: str, package: Path) -> bool:
    path = package.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walk(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """
    :return: all nodes, and for each whether it does not run when the module is imported
    """
    for child in ast.iter_child_nodes(node):
        child_late = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        child_late = child_late or is_type_checking(child)
        yield child, child_late
        yield from walk(child, child_late)


def imports_of(file: Path, package: Path) -> Iterator[Import]:
    """
    :return: all imports of this file
    """
    module = module_name(file, package)
    folder = [package.name, *file.relative_to(package).parent.parts]
    for node, late in walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name, own=False, late=late)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                target = ".".join([*base, alias.name])
                if node.level:
                    inside = ".".join([*base[1:], alias.name])
                    target = inside if exists(inside, package) else ".".join(base[1:])
                yield Import(module, node.lineno, target, own=bool(node.level), late=late)


def wrong_with(item: Import, package_name: str) -> str | None:
    """
    :return: what is wrong with this import, or None
    """
    part = part_of(item.module)
    if part is None:
        return "belongs to no part in the table PARTS"
    allowed = PARTS[part]
    if item.own:
        target = part_of(item.target)
        if item.target in LATE_MODULES and not (part in ("nn", "training") and item.late):
            return f"{item.target} imports a framework: only nn and training, inside functions"
        if target not in (part, "", *LEAVES, *allowed.own) and "*" not in allowed.own:
            return f"{part or 'the package itself'} may not import {item.target}"
        return None
    if is_in(item.target, package_name):
        return f"import {item.target} relatively: the package must work under any name"
    if item.target.split(".")[0] in sys.stdlib_module_names:
        return None
    if any(is_in(item.target, framework) for framework in FRAMEWORKS):
        if not allowed.frameworks:
            return f"{part or 'the package itself'} may not import {item.target}"
        if not item.late and item.module not in LATE_MODULES:
            return f"import {item.target} inside a function"
        return None
    if not any(is_in(item.target, other) for other in allowed.other) and "*" not in allowed.other:
        return f"{part or 'the package itself'} may not import {item.target}"
    return None


def violations(package: Path) -> list[str]:
    """
    :return: one line for each import that the table does not allow
    """
    found = []
    for file in sorted(package.rglob("*.py")):
        for item in imports_of(file, package):
            wrong = wrong_with(item, package.name)
            if wrong:
                found.append(f"{file.relative_to(package)}:{item.line}: {wrong}")
    return found


def test_package_keeps_to_the_table():
    assert violations(PACKAGE) == []


def test_no_part_has_a_way_back():
    """The table itself has no cycle, so that 'no arrow points up' has a meaning."""
    order: list[str] = []
    left = {name: set(part.own) - {"*"} for name, part in PARTS.items() if "*" not in part.own}
    left["__main__"].discard("cli")
    while left:
        ready = [name for name, own in left.items() if own <= set(order)]
        assert ready, f"a cycle among {sorted(left)}"
        order += ready
        for name in ready:
            del left[name]


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("nn/core.py", "from ..zoo import registry", "nn may not import zoo.registry"),
        ("nn/core.py", "from .. import data", "nn may not import data"),
        ("nn/core.py", "import tensorflow as tf", "import tensorflow inside a function"),
        ("nn/core.py", "if True:\n    from torch import nn", "import torch.nn inside a function"),
        ("nn/core.py", "class A:\n    import torch.nn", "import torch.nn inside a function"),
        ("nn/core.py", "from returnn.tf import compat", "import returnn.tf.compat inside"),
        ("nn/core.py", "import returnn_common.nn", "import returnn_common.nn relatively"),
        ("nn/core.py", "from returnn_common import nn", "import returnn_common.nn relatively"),
        ("nn/core.py", "def f():\n    from ..training import x", "nn may not import training"),
        ("zoo/encoder/a.py", "from ..segmental import b", "zoo.encoder may not import zoo.seg"),
        ("zoo/encoder/a.py", "from ...data import digits", "zoo.encoder may not import data"),
        ("zoo/encoder/a.py", "import returnn", "zoo.encoder may not import returnn"),
        ("zoo/encoder/a.py", "def f():\n    import torch", "zoo.encoder may not import torch"),
        ("data/corpus.py", "from ..zoo import encoder", "data may not import zoo.encoder"),
        ("data/corpus.py", "from .. import nn", "data may not import nn"),
        ("data/corpus.py", "import returnn.frontend", "data may not import returnn.frontend"),
        ("data/corpus.py", "import scipy", "data may not import scipy"),
        ("hookspecs.py", "from . import plugins", "hookspecs may not import plugins"),
        ("plugins.py", "from .nn import x", "plugins may not import nn"),
        ("cli.py", "import torch", "import torch inside a function"),
        ("__init__.py", "from . import nn", "the package itself may not import nn"),
        ("helpers.py", "from . import nn", "belongs to no part"),
    ],
)
def test_violation_is_found(file, code, expected, tmp_path):
    found = violations(make_tree(tmp_path, file, code))
    assert len(found) == 1
    assert found[0].startswith(file)
    assert expected in found[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("nn/core.py", "import math\nimport returnn.frontend as rf\nfrom .other import x"),
        ("nn/core.py", "def f():\n    import tensorflow\n    from returnn.tf import compat"),
        ("nn/core.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("nn/core.py", "from .. import __version__"),
        ("zoo/segmental/a.py", "from ..encoder import b\nfrom ... import nn"),
        ("demo.py", "from . import nn, zoo, data\nfrom .zoo.encoder import a\nimport rich"),
    ],
)
def test_allowed_is_not_a_violation(file, code, tmp_path):
    assert violations(make_tree(tmp_path, file, code)) == []


def make_tree(folder: Path, file: str, code: str) -> Path:
    """
    :return: a package with the parts that the cases name, and this code in this file
    """
    package = folder / "returnn_common"
    for name in ("nn", "zoo/encoder", "zoo/segmental", "data", "training"):
        (package / name).mkdir(parents=True)
    (package / "plugins.py").touch()
    (package / "zoo/registry.py").touch()
    (package / file).write_text(code, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    "code",
    [
        "import returnn_common",
        "import returnn_common; dir(returnn_common); hasattr(returnn_common, 'nnn')",
        "run('--help')",
        "run('--version')",
        "run('demo', '--help')",
        "run('list')",
        "run('info', 'transformer')",
        "run('plugins')",
    ],
)
def test_stays_light(code):
    """Importing the package, help and listing import no framework, and RETURNN neither."""
    run = (
        "import runpy, sys\n"
        "def run(*args):\n"
        "    sys.argv[1:] = args\n"
        "    try:\n"
        "        runpy.run_module('returnn_common', run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as exit:\n"
        "        assert not exit.code, exit.code\n"
    )
    report = "\nprint('loaded:', sorted({'returnn', 'tensorflow', 'torch'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", run + code + report],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded: []"


def test_every_module_imports_without_extras_and_frameworks():
    """Where none of the extras is installed, all modules can be imported; none loads TensorFlow."""
    missing = ["espeakng_loader", "h5py", "jiwer", "matplotlib", "rich", "soundfile", "torch"]
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"for name in {all_modules()!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'tensorflow' not in sys.modules, name\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def all_modules() -> list[str]:
    names = [module_name(file, PACKAGE) for file in sorted(PACKAGE.rglob("*.py"))]
    wanted = [name for name in names if name and name not in LATE_MODULES | {"__main__"}]
    return [f"{PACKAGE.name}.{name}" for name in wanted]
