"""
The core takes from RETURNN only what is there, and what is private of RETURNN only in nn/_returnn.py.

Read from the sources, so that this still tells what is missing when ``nn`` itself cannot be imported.
"""

from __future__ import annotations

import ast
import importlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "returnn_common"
CORE = [path for part in ("nn", "testing") for path in sorted((PACKAGE / part).glob("*.py"))]
FUNCTIONS = runpy.run_path(str(PACKAGE / "nn/_config_functions.py"))["FUNCTIONS"]
#: Attributes and arguments of RETURNN without an underscore that it does not promise to keep.
INTERNAL = {
    "derived_from_op",
    "dyn_size",
    "dyn_size_ext",
    "get_batch_info",
    "get_losses_initialized",
    "get_same_base",
    "reset_batch_and_raw",
    "same_as",
    "special",
}


def imports_of_returnn(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(module, name) of all that is imported from RETURNN, in functions too; no name for a whole module"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((n.name, None) for n in node.names if n.name.split(".")[0] == "returnn")
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "returnn":
            yield from ((str(node.module), alias.name) for alias in node.names)


def private_uses(tree: ast.AST) -> Iterator[str]:
    """what private parts of RETURNN the code touches"""
    for module, name in imports_of_returnn(tree):
        if any(part.startswith("_") for part in f"{module}.{name or ''}".split(".")):
            yield f"import of {module}.{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in INTERNAL or _is_foreign(node)):
            yield f"attribute {node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("_backend", "special"):
            yield f"argument {node.arg}"


def _is_foreign(node: ast.Attribute) -> bool:
    """a private attribute of an object of another class"""
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    is_super = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
    is_private = node.attr.startswith("_") and not node.attr.startswith("__")
    return is_private and not is_super and owner not in ("self", "cls", "sys")


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_imported_names_exist(path):
    for module, name in imports_of_returnn(ast.parse(path.read_text(encoding="utf-8"))):
        found = importlib.import_module(module)
        assert name in (None, "*") or hasattr(found, name), (
            f"RETURNN no longer has {module}.{name}, which {path.relative_to(PACKAGE)} imports"
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_config_functions_import_what_exists(name):
    for module, item in imports_of_returnn(ast.parse(FUNCTIONS[name])):
        assert item is None or hasattr(importlib.import_module(module), item), (
            f"RETURNN no longer has {module}.{item}, which the config function {name} imports"
        )


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_private_parts_are_touched_in_one_module(path):
    if path.name == "_returnn.py":
        pytest.skip("this is the module")
    found = sorted(set(private_uses(ast.parse(path.read_text(encoding="utf-8")))))
    assert not found, f"{path.relative_to(PACKAGE)} touches {found}; let nn/_returnn.py do that"


@pytest.mark.parametrize(
    "code",
    [
        "from returnn.frontend._backend import Backend",
        "from returnn.frontend.array_ import _masked_select_subset",
        "dim.dyn_size_ext = None",
        "dim.get_same_base()",
        "x._raw_backend.matmul(x, y)",
        "rf.convert_to_tensor(1, _backend=b)",
        "Dim(None, name='x', special=True)",
    ],
)
def test_private_use_is_found(code):
    assert list(private_uses(ast.parse(code)))


@pytest.mark.parametrize("code", ["self._x", "import returnn.frontend as rf", "super()._x(1)"])
def test_other_use_is_not_private(code):
    assert not list(private_uses(ast.parse(code)))
