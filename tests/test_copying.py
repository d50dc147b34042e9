"""
Copies of entries: they compute what the original computes, and no edit is ever lost.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from returnn_common import cli, copying, nn, plugins, zoo
from returnn_common.copying import merging, rewriting
from returnn_common.testing import Case, kinds
from returnn_common.zoo import registry

ROOT = Path(__file__).parent.parent

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def config_text(model: nn.Module) -> str:
    """:return: the config of an encoder on `[B, T, in_dim]`"""
    time_dim = nn.SpatialDim("time")
    data = nn.Tensor("data", [nn.batch_dim, time_dim, model.in_dim], "float32")

    def step(*, model, extern_data, **_):
        out, _ = model(extern_data["data"], in_spatial_dim=time_dim)
        nn.reduce_sum(out, axis=model.out_dim).mark_as_loss("sum")

    return nn.lower(model, step, {"data": data}).config_text()


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """:return: imports a module of `tmp_path`, which is forgotten at the end"""
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_copied_conformer_is_the_same_until_edited(tmp_path, imported):
    copying.copy("conformer", tmp_path / "my_models")
    sizes = {"in_dim": 7, "out_dim": 6, "num_layers": 2, "num_heads": 2}
    original = zoo.get("conformer", **sizes)
    copied = imported("my_models.encoder.conformer").make_conformer(**sizes)
    assert type(copied).__module__ == "my_models.encoder.conformer"
    assert type(copied.frontend).__module__ == "my_models.frontend.conv_subsampling"
    assert [n for n, _ in copied.named_parameters()] == [n for n, _ in original.named_parameters()]
    assert config_text(copied) == config_text(original)


MODELS = [entry for entry in registry.entries() if entry.target.startswith("returnn_common.zoo.")]


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    """:return: a folder with the package `all_models`, copies of all our models"""
    folder = tmp_path_factory.mktemp("copies")
    for entry in MODELS:
        copying.copy(entry.full_name, folder / "all_models")
    return folder


def test_copies_need_no_original(copies, tmp_path):
    """They come without importing our zoo; a dataset, too."""
    copying.copy("librispeech", copies / "my_data")
    lines = [
        "import sys; sys.path.append(sys.argv[1])",
        "sys.modules.update(dict.fromkeys(['returnn_common.zoo']))  # no import of it succeeds",
        *(copying.import_line(entry.full_name, copies / "all_models") for entry in MODELS),
        copying.import_line("librispeech", copies / "my_data"),
        "assert make_librispeech().keys == ['data', 'classes']",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines), ROOT], cwd=copies, check=True)
    assert {change.state for change in copying.status(copies / "all_models")} == {"clean"}


@pytest.mark.parametrize(
    "entry", [entry for entry in MODELS if entry.kind in kinds.KINDS], ids=lambda entry: entry.name
)
def test_copy_makes_the_same_network(entry, copies, monkeypatch):
    monkeypatch.syspath_prepend(copies)
    line = copying.import_line(entry.full_name, copies / "all_models")
    _, module, _, function = line.split()
    copied = getattr(importlib.import_module(module), function)
    assert copied is not registry.load(entry)
    case = Case(entry)
    expected = nn.lower(case.model, case.step, case.extern_data)
    case = Case(entry)
    case.maker = copied
    found = nn.lower(case.model, case.step, case.extern_data)
    assert list(found.parameters) == list(expected.parameters)
    assert found.config_text() == expected.config_text()


def test_header_and_the_least_other_changes(tmp_path):
    copying.copy("returnn_common/logmel", tmp_path / "mine")
    copied = (tmp_path / "mine/frontend/logmel.py").read_text().splitlines()
    original = (ROOT / "returnn_common/zoo/frontend/logmel.py").read_text().splitlines()
    version = importlib.import_module("returnn_common").__version__
    assert (
        copied[0]
        == f"# Copied from zoo/frontend/logmel.py of returnn_common {version}, Apache-2.0."
    )
    changed = [pair for pair in zip(original, copied[2:], strict=True) if pair[0] != pair[1]]
    assert changed == [("from ... import nn", "from returnn_common import nn")]


# --- a plugin package, whose files the tests write


ENTRIES = """
import pluggy

@pluggy.HookimplMarker("returnn_common")
def returnn_common_entries():
    record = {"kind": "encoder", "summary": "x", "backends": ["torch"], "tiny": {}, "vary": {}}
    return [
        {**record, "name": "block", "target": ".blocks.block:make_block"},
        {**record, "name": "other", "target": ".blocks.other:make_other"},
    ]
"""

FILES = {
    "my_zoo/__init__.py": "raise ImportError('copying imports nothing')\n",
    "my_zoo/entries.py": ENTRIES,
    "my_zoo/blocks/__init__.py": '"""Blocks."""\n',
    "my_zoo/blocks/block.py": """\
import math
from ..parts import scale
from my_zoo.blocks import shapes
import my_zoo.names as names


def make_block(size=1):
    first = 1
    second = 2
    third = 3
    fourth = 4
    fifth = 5
    return size
""",
    "my_zoo/blocks/shapes.py": "from my_zoo.blocks.deep import (\n    a,\n)\n",
    "my_zoo/blocks/deep.py": "a = 1\n",
    "my_zoo/blocks/other.py": "from .deep import a\n\n\ndef make_other(size=a):\n    return size\n",
    "my_zoo/parts.py": "from returnn_common.hints import valid_names as scale\n",
    "my_zoo/names.py": "",
}


class Package:
    """The plugin package `my_zoo` in a folder on the path."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.write(FILES)

    def write(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
        importlib.invalidate_caches()

    def edit(self, old: str, new: str, path: str = "my_zoo/blocks/block.py") -> None:
        """change a file of the package"""
        text = (self.folder / path).read_text()
        assert old in text
        self.write({path: text.replace(old, new)})


@pytest.fixture
def package(tmp_path, monkeypatch, imported):
    """:return: the :class:`Package`, which is registered"""
    package = Package(tmp_path)
    (tmp_path / "my_zoo/__init__.py").write_text("")
    entries = imported("my_zoo.entries")
    package.write(FILES)
    monkeypatch.setattr(plugins, "_registered", {})
    zoo.register_module(entries)
    return package


@pytest.fixture
def copy(package, tmp_path):
    """:return: the folder with a copy of `block`"""
    copying.copy("block", tmp_path / "mine")
    return tmp_path / "mine"


def states(changes: list[copying.Change]) -> dict[str, str]:
    return {change.path: change.state for change in changes}


def state_of_block(folder: Path) -> str:
    return states(copying.status(folder))["blocks/block.py"]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_plugin_package(copy, imported):
    """All imports within the package become relative, the others stay."""
    assert set(states(copying.status(copy))) == {
        "blocks/__init__.py",
        "blocks/block.py",
        "blocks/deep.py",
        "blocks/shapes.py",
        "names.py",
        "parts.py",
    }
    lines = (copy / "blocks/block.py").read_text().splitlines()
    assert lines[0] == "# Copied from my_zoo/blocks/block.py of my_zoo.entries."
    assert lines[2:6] == [
        "import math",
        "from ..parts import scale",
        "from . import shapes",
        "from .. import names as names",
    ]
    assert (copy / "blocks/shapes.py").read_text().endswith("\nfrom .deep import (\n    a,\n)\n")
    module = imported("mine.blocks.block")
    assert module.make_block(3) == 3
    assert module.shapes.a == 1


def test_second_entry_shares_files(copy):
    edit(copy / "blocks/deep.py", "a = 1", "a = 2")
    before = tree(copy)
    changes = states(copying.copy("other", copy))
    assert changes == {
        "blocks/__init__.py": "there",
        "blocks/deep.py": "there",
        "blocks/other.py": "copied",
    }
    after = tree(copy)
    assert {path: after[path] for path in before if path.endswith(".py")} == {
        path: text for path, text in before.items() if path.endswith(".py")
    }
    assert states(copying.status(copy))["blocks/deep.py"] == "edited"
    assert states(copying.copy("block", copy))["blocks/block.py"] == "there"


def test_single_file(tmp_path, monkeypatch, imported):
    """A module beside a recipe, in no package."""
    code = ENTRIES.replace(".blocks.block:", "beside:").replace(".blocks.other:", "beside:")
    (tmp_path / "beside.py").write_text(code + "import math\n\ndef make_block(): return 7\n")
    monkeypatch.setattr(plugins, "_registered", {})
    zoo.register_module(imported("beside"))
    (change,) = copying.copy("block", tmp_path / "mine")
    assert change.path == "beside.py"
    assert imported("mine.beside").make_block() == 7
    assert copying.import_line("block", tmp_path / "mine") == "from mine.beside import make_block"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import importlib\nx = importlib.import_module('.a', 'b')", "block.py:2: .*import_module"),
        ("from importlib import import_module as f", "block.py:1: imports dynamically"),
        ("x = __import__('math')", "block.py:1: imports dynamically"),
        ("open(__file__)", "block.py:1: looks for its own place .__file__."),
        (
            "import my_zoo.names",
            "block.py:1: 'import my_zoo.names' cannot .*'from my_zoo import names'",
        ),
        ("import math, my_zoo.names as n", "block.py:1: one import takes copied and other modules"),
        ("import my_zoo.names as n, my_zoo.parts", "block.py:1: 'import my_zoo.names' cannot be"),
        ("from .... import x", "block.py:1: 'from .... import' leaves the package 'my_zoo.blocks'"),
    ],
)
def test_what_cannot_be_copied(line, message, package, tmp_path):
    """It is refused, with the place, and nothing is written."""
    package.write({"my_zoo/blocks/block.py": f"{line}\ndef make_block(): pass\n"})
    with pytest.raises(ValueError, match=message):
        copying.copy("block", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_module_with_files_beside_it(package, tmp_path, imported):
    """It stays where it is, and the copy imports it from there."""
    package.write({"my_zoo/__init__.py": "", "my_zoo/blocks/shapes.py": "a = __file__\n"})
    package.edit("from my_zoo.blocks import shapes", "from .shapes import a\nfrom . import shapes")
    copying.copy("block", tmp_path / "mine")
    assert "blocks/shapes.py" not in states(copying.status(tmp_path / "mine"))
    lines = (tmp_path / "mine/blocks/block.py").read_text().splitlines()
    assert lines[4:6] == ["from my_zoo.blocks.shapes import a", "from my_zoo.blocks import shapes"]
    assert imported("mine.blocks.block").a == str(tmp_path / "my_zoo/blocks/shapes.py")


def test_module_that_is_not_there(package, tmp_path):
    package.write({"my_zoo/blocks/block.py": "from . import nothing\ndef make_block(): pass\n"})
    copying.copy("block", tmp_path / "mine")  # perhaps a name that blocks/__init__.py makes
    package.write({"my_zoo/blocks/block.py": "from .nothing import x\ndef make_block(): pass\n"})
    with pytest.raises(ValueError, match=r"no Python source of 'my_zoo.blocks.nothing'"):
        copying.copy("block", tmp_path / "other")


# --- nothing is overwritten, nothing is written elsewhere


def test_file_in_the_way(package, tmp_path):
    (tmp_path / "mine/blocks").mkdir(parents=True)
    (tmp_path / "mine/blocks/deep.py").write_text("mine = 1\n")
    before = tree(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"mine/blocks/deep.py is in the way"):
        copying.copy("block", tmp_path / "mine")
    assert tree(tmp_path / "mine") == before


def test_link_to_another_folder(package, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/blocks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"mine/blocks/__init__.py is outside of the folder"):
        copying.copy("block", tmp_path / "mine")
    assert tree(tmp_path / "elsewhere") == {}
    assert not (tmp_path / "mine/.returnn_common").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"entries": {"x": ["../secret.py"]}}', "secret.py is outside of the folder"),
        ('{"entries": {"x": ["/etc/passwd"]}}', "is outside of the folder"),
        ('{"entries": ["x"]}', "copied.json: expected what returnn-common copy wrote"),
        ("[]", "copied.json: expected what"),
        ("", "copied.json: expected what"),
    ],
)
def test_hostile_or_broken_record(text, message, copy):
    (copy / ".returnn_common/copied.json").write_text(text)
    for command in (copying.status, copying.update):
        with pytest.raises(ValueError, match=message):
            command(copy)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("my-models", "'my-models' cannot be imported; a name like 'my_models' can"),
        ("file", "file is a file, expected a folder"),
    ],
)
def test_wrong_folder(folder, message, package, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        copying.copy("block", tmp_path / folder)
    with pytest.raises(ValueError, match="there are no copies in"):
        copying.status(tmp_path)


def test_interrupted_copy_goes_on(package, tmp_path, monkeypatch):
    write, calls = copying.store.Store.write, []

    def failing(self, path, text):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(self, path, text)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(copying.store.Store, "write", failing)
        copying.copy("block", tmp_path / "mine")
    copying.copy("block", tmp_path / "mine")
    copying.copy("block", tmp_path / "whole")
    assert tree(tmp_path / "mine") == tree(tmp_path / "whole")
    assert not list(tmp_path.rglob("*.tmp"))


# --- status and update


def test_states(copy, package):
    assert set(states(copying.status(copy)).values()) == {"clean"}
    edit(copy / "blocks/block.py", "first = 1", "first = 10")
    assert state_of_block(copy) == "edited"
    package.edit("fifth = 5", "fifth = 50")
    assert state_of_block(copy) == "edited and outdated"
    edit(copy / "blocks/block.py", "first = 10", "first = 1")
    assert state_of_block(copy) == "outdated"
    (copy / "blocks/block.py").unlink()
    assert state_of_block(copy) == "deleted"
    plugins._registered.clear()
    assert states(copying.status(copy))["parts.py"] == "without original"


def test_version_alone_changes_nothing(copy, monkeypatch):
    (plugin,) = plugins._registered.values()
    newer = replace(plugin, version="2.0")
    monkeypatch.setattr(plugins, "_registered", {newer.name: newer})
    before = tree(copy)
    assert set(states(copying.update(copy)).values()) == {"clean"}
    assert tree(copy) == before


def test_update_of_what_was_not_edited(copy, package, tmp_path):
    package.edit("fifth = 5", "fifth = 50")
    package.edit("import math\n", "import math\nfrom .new import b\n")
    package.write({"my_zoo/blocks/new.py": "b = 2\n"})
    changes = states(copying.update(copy))
    assert changes["blocks/block.py"] == "updated"
    assert changes["blocks/new.py"] == "added"
    copying.copy("block", tmp_path / "fresh")
    assert tree(copy) == tree(tmp_path / "fresh")
    assert set(states(copying.update(copy)).values()) == {"clean"}


@needs_git
def test_update_keeps_edits(copy, package):
    edit(copy / "blocks/block.py", "first = 1", "first = 10")
    package.edit("fifth = 5", "fifth = 50")
    assert states(copying.update(copy))["blocks/block.py"] == "merged"
    text = (copy / "blocks/block.py").read_text()
    assert "first = 10\n" in text
    assert "fifth = 50\n" in text
    assert state_of_block(copy) == "edited"


@needs_git
def test_newer_version_and_an_edit_on_top_of_a_file(copy, package, monkeypatch):
    """The header has another version then, which is no conflict with the lines below it."""
    edit(copy / "blocks/block.py", "import math\n", "import cmath\n")
    package.edit("fifth = 5", "fifth = 50")
    (plugin,) = plugins._registered.values()
    newer = replace(plugin, version="2.0")
    monkeypatch.setattr(plugins, "_registered", {newer.name: newer})
    assert states(copying.update(copy))["blocks/block.py"] == "merged"
    lines = (copy / "blocks/block.py").read_text().splitlines()
    assert lines[0] == "# Copied from my_zoo/blocks/block.py of my_zoo.entries 2.0."
    assert lines[2] == "import cmath"
    assert lines[-2] == "    fifth = 50"


@needs_git
def test_conflict(copy, package):
    """Both are kept between markers, and no later update touches the file before they are gone."""
    edit(copy / "blocks/block.py", "third = 3", "third = 'mine'")
    package.edit("third = 3", "third = 'theirs'")
    assert states(copying.update(copy))["blocks/block.py"] == "merged with conflicts"
    text = (copy / "blocks/block.py").read_text()
    start, middle, end = (text.index(m) for m in ("<<<<<<< yours", "=======", ">>>>>>> original"))
    assert start < text.index("'mine'") < middle < text.index("'theirs'") < end
    package.edit("fifth = 5", "fifth = 50")
    assert states(copying.update(copy))["blocks/block.py"] == "in conflict"
    assert (copy / "blocks/block.py").read_text() == text
    (copy / "blocks/block.py").write_text(
        text[:start] + "    third = 'ours'\n" + text[end:].partition("\n")[2]
    )
    assert states(copying.update(copy))["blocks/block.py"] == "merged"
    text = (copy / "blocks/block.py").read_text()
    assert "third = 'ours'\n" in text
    assert "fifth = 50\n" in text


@needs_git
def test_command_tells_of_conflicts(copy, package, capsys):
    edit(copy / "blocks/block.py", "third = 3", "third = 'mine'")
    package.edit("third = 3", "third = 'theirs'")
    for state in ("merged with conflicts", "in conflict"):
        assert cli.main(["update", str(copy)]) == 1
        captured = capsys.readouterr()
        assert f"{state}  blocks/block.py\n" in captured.out
        assert captured.err.endswith("the original's changes meet in blocks/block.py\n")


def test_update_without_git(copy, package, monkeypatch):
    edit(copy / "blocks/block.py", "first = 1", "first = 10")
    package.edit("fifth = 5", "fifth = 50")
    mine = (copy / "blocks/block.py").read_text()
    monkeypatch.setenv("PATH", str(copy))
    assert states(copying.update(copy))["blocks/block.py"] == "original beside it"
    assert (copy / "blocks/block.py").read_text() == mine
    assert "fifth = 50" in (copy / "blocks/block.py.new").read_text()
    package.edit("second = 2", "second = 20")
    assert states(copying.update(copy))["blocks/block.py"] == "in conflict"
    assert "second = 2\n" in (copy / "blocks/block.py.new").read_text()
    (copy / "blocks/block.py.new").unlink()
    assert state_of_block(copy) == "edited and outdated"


def test_file_in_another_encoding(copy):
    (copy / "blocks/block.py").write_bytes("# é\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"blocks/block.py: expected text in UTF-8"):
        copying.status(copy)


def test_update_leaves_what_was_deleted(copy, package):
    (copy / "blocks/block.py").unlink()
    package.edit("fifth = 5", "fifth = 50")
    assert states(copying.update(copy))["blocks/block.py"] == "deleted"
    assert not (copy / "blocks/block.py").exists()


def test_update_leaves_what_is_not_needed_any_more(copy, package):
    package.edit("import my_zoo.names as names\n", "")
    assert states(copying.update(copy))["names.py"] == "without original"
    assert (copy / "names.py").exists()
    assert "names.py" not in states(copying.status(copy))
    (copy / "names.py").unlink()
    package.edit("import math\n", "import math\nimport my_zoo.names as names\n")
    package.write({"my_zoo/names.py": "new = 1\n"})
    assert states(copying.update(copy))["names.py"] == "added"
    assert states(copying.status(copy))["names.py"] == "clean"


def test_file_in_the_way_of_an_update(copy, package):
    package.edit("import math\n", "from .new import b\n")
    package.write({"my_zoo/blocks/new.py": "b = 2\n"})
    (copy / "blocks/new.py").write_text("my own\n")
    before = tree(copy)
    with pytest.raises(ValueError, match=r"blocks/new.py is in the way"):
        copying.update(copy)
    assert tree(copy) == before


def test_copying_more_from_a_newer_version(copy, package):
    package.edit("a = 1", "a = 7", path="my_zoo/blocks/deep.py")
    with pytest.raises(ValueError, match=r"deep.py was copied from another version.*update .*mine"):
        copying.copy("other", copy)
    copying.update(copy)
    assert states(copying.copy("other", copy))["blocks/deep.py"] == "there"


@pytest.mark.parametrize("command", ["copy", "update"])
def test_dry_run(command, copy, package):
    package.edit("fifth = 5", "fifth = 50")
    before = tree(copy)
    if command == "copy":
        changes = copying.copy("block", copy.parent / "other", dry_run=True)
        assert not (copy.parent / "other").exists()
        assert states(changes)["blocks/block.py"] == "copied"
    else:
        changes = copying.update(copy, dry_run=True)
        assert states(changes)["blocks/block.py"] == "updated"
    assert tree(copy) == before


def test_command_line(copy, package, capsys):
    target = str(copy.parent / "third")
    assert cli.main(["copy", "block", "--to", target, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "copied  blocks/block.py\n" in printed
    assert printed.endswith("\nNothing was written (--dry-run).\n")
    assert cli.main(["copy", "block", "--to", target]) == 0
    (line,) = capsys.readouterr().out.splitlines()[-1:]
    assert line == f"With {copy.parent} on the path: from third.blocks.block import make_block"
    package.edit("fifth = 5", "fifth = 50")
    assert cli.main(["status", target]) == 0
    assert "outdated  blocks/block.py\n" in capsys.readouterr().out
    assert cli.main(["update", target, "--diff"]) == 0
    printed = capsys.readouterr().out
    assert "updated  blocks/block.py\n" in printed
    assert "\n--- a/blocks/block.py\n+++ b/blocks/block.py\n" in printed
    assert "\n-    fifth = 5\n+    fifth = 50\n" in printed
    assert cli.main(["status", os.path.dirname(target)]) == 1
    assert "there are no copies in" in capsys.readouterr().err


# --- parts


@pytest.mark.parametrize(
    ("module", "package", "expected"),
    [
        ("a.b.c", "a.b", ".c"),
        ("a.b", "a.b", "."),
        ("a.x", "a.b", "..x"),
        ("a", "a.b.c", "..."),
        ("a.x.y", "a.b.c", "...x.y"),
        ("a.bc", "a.b", "..bc"),
    ],
)
def test_relative(module, package, expected):
    assert rewriting.relative(module, package) == expected
    assert importlib.util.resolve_name(expected, package).rstrip(".") == module


@needs_git
def test_merge():
    base = "".join(f"{i}\n" for i in range(9))
    ours, theirs = base.replace("1\n", "one\n"), base.replace("7\n", "sieben é\n")
    assert merging.merge(ours, base, theirs) == ours.replace("7\n", "sieben é\n")
    assert not merging.has_conflict("x <<<<<<< y\n>>>>>>> z\n")
