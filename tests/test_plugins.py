"""
Entries of other packages: installed, registered, switched off, and broken in every way that occurs.

Each plugin is a distribution in a folder on the path: a module, its metadata, its entry points.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from returnn_common import cli, plugins, records, zoo

ROOT = Path(__file__).parent.parent

GOOD = """
import pluggy

hookimpl = pluggy.HookimplMarker("returnn_common")


@hookimpl
def returnn_common_entries():
    return [
        {
            "kind": "encoder",
            "name": "NAME",
            "summary": "an encoder",
            "target": "NAME_blocks:make_NAME",
            "backends": ["torch"],
            "tiny": {},
            "vary": {"size": 2},
        }
    ]
"""

BLOCKS = '''
"""Someone and Other, "A paper", 1999, https://example.org/paper."""


def make_NAME(size: int = 1):
    """
    A number.

    :param size: of the
        :class:`number`
    """
    return size
'''


class Site:
    """A folder on the path, where distributions are installed."""

    def __init__(self, folder: Path):
        self.folder = folder

    def install(self, name: str, code: str = GOOD, *, module: str = "", **changes: str) -> None:
        """
        :param changes: `entry_points`, `metadata`, `blocks`: the text of these files
        """
        module = module or name
        files = {
            f"{module}.py": code.replace("NAME", name),
            f"{name}_blocks.py": changes.get("blocks", BLOCKS).replace("NAME", name),
            f"{name}-1.5.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n"
            + changes.get("metadata", ""),
            f"{name}-1.5.dist-info/entry_points.txt": changes.get(
                "entry_points", f"[returnn_common]\n{name} = {module}\n"
            ),
        }
        for path, text in files.items():
            (self.folder / path).parent.mkdir(exist_ok=True)
            (self.folder / path).write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """
    :return: an empty :class:`Site`; what plugins were known is forgotten before and after
    """
    monkeypatch.syspath_prepend(tmp_path)
    for name in (plugins.STRICT, plugins.SELECTED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plugins, "_registered", {})
    plugins.installed.cache_clear()
    yield Site(tmp_path)
    plugins.installed.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def failures() -> dict[str, str]:
    return {p.name: p.reason for p in plugins.all_plugins() if p.state == "failed"}


def test_installed_plugin(site):
    site.install("my_zoo", metadata="License-Expression: MIT\n")
    assert zoo.list("my*") == ["my_zoo"] == zoo.list("my_zoo/*")
    assert zoo.get("my_zoo") == 1
    assert zoo.get("my-zoo/my_zoo", size=5) == 5
    assert zoo.list("my*", backend="tensorflow-net-dict") == []
    (plugin,) = plugins.installed()
    assert (plugin.owner, plugin.version, plugin.licence) == ("my_zoo", "1.5", "MIT")


def test_describing_a_plugin_imports_no_block(site):
    site.install(
        "my_zoo", metadata="License: BSD\n", blocks=BLOCKS + "\nimport missing_framework\n"
    )
    info = zoo.info("my_zoo")
    assert "my_zoo_blocks" not in sys.modules
    assert info.signature == "make_my_zoo(size=1)"
    (argument,) = info.arguments
    assert (argument.annotation, argument.default, argument.doc) == ("int", "1", "of the `number`")
    assert info.paper == 'Someone and Other, "A paper", 1999, https://example.org/paper'
    assert (info.distribution, info.version, info.licence) == ("my_zoo", "1.5", "BSD")
    assert info.file == str(site.folder / "my_zoo_blocks.py")
    assert info.num_parameters is None
    with pytest.raises(
        ImportError, match="my_zoo/my_zoo: my_zoo_blocks cannot be imported: No mod"
    ):
        zoo.get("my_zoo")


BROKEN = {
    "import": ("import missing_library\n", "ModuleNotFoundError: .*'missing_library' .*bad.py:1"),
    "syntax": ("def f(:\n", "SyntaxError: "),
    "exit": ("import sys\nsys.exit('no licence')\n", "SystemExit: no licence .*bad.py:2"),
    "raises": (GOOD.replace("return [", "1 / 0\n    return ["), "ZeroDivisionError: .*bad.py:9"),
    "misspelt": (
        GOOD.replace("_entries", "_entires"),
        "no hook 'returnn_common_entires'; did you mean 'returnn_common_entries'",
    ),
    "arguments": (GOOD.replace("entries()", "entries(registry)"), "hook.*registry"),
    "unmarked": (GOOD.replace("@hookimpl", ""), "not marked with pluggy.HookimplMarker"),
    "no_hook": ("x = 3\n", "bad has no hook returnn_common_entries"),
    "version": (
        "returnn_common_api_version = 7\n" + GOOD,
        "for version 7 of the hooks, this returnn_common has version 1",
    ),
    "none": (GOOD.replace("return [", "x = ["), "returned a NoneType, expected a list of dicts"),
    "no_dict": (GOOD.replace("return [", "return ['x',"), "a record is a str, expected a dict"),
    "key": (
        GOOD.replace('"summary"', '"sumary"'),
        "record 'bad' has the key 'sumary'; did you mean 'summary'",
    ),
    "missing": (GOOD.replace('"tiny": {},', ""), "the record 'bad' lacks tiny"),
    "kind": (GOOD.replace('"encoder"', '"encoders"'), "no kind 'encoders'; did you mean 'encoder'"),
    "backend": (GOOD.replace('"torch"', '"toch"'), "no backend 'toch'; did you mean 'torch'"),
    "backends": (GOOD.replace('["torch"]', '"torch"'), "backends is 'torch', expected a list"),
    "tiny": (GOOD.replace('"tiny": {}', '"tiny": []'), "tiny is .*expected a dict"),
    "name": (GOOD.replace('"NAME"', '"a/b"'), "'a/b': expected a name of letters"),
    "no_name": (GOOD.replace('"NAME"', "7"), "name is 7, expected a str"),
    "summary": (GOOD.replace('"an encoder"', '"a\\nb"'), "expected a summary of one line"),
    "target": (GOOD.replace("blocks:", "blocks."), "expected a target like 'module:function'"),
    "relative": (
        GOOD.replace('"NAME_blocks', '"..blocks'),
        "target '..blocks:make_bad' is relative",
    ),
    "twice": (GOOD.replace("    ]", "    ] * 2"), "2 records have the name 'bad'"),
}


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_plugin(code, reason, site, caplog, capsys, monkeypatch):
    """One line; it is shown with its reason; everything else works; in strict mode it is an error."""
    site.install("bad", code)
    site.install("good")
    with caplog.at_level(logging.WARNING):
        assert {"good", "conformer"} <= set(zoo.list())
        assert zoo.get("good") == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert line.startswith("returnn_common: the plugin 'bad' of bad is left out: ")
    with pytest.raises(ValueError, match="there is no entry .*; broken plugins: bad"):
        zoo.get("bad")
    assert cli.main(["plugins"]) == 0
    (shown,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bad 1.5")]
    assert "failed" in shown
    for text in (line, shown, failures()["bad"]):
        assert re.search(reason, text), text
    monkeypatch.setenv(plugins.STRICT, "1")
    with pytest.raises(plugins.PluginError, match="broken plugins .*: bad: "):
        zoo.list()
    assert cli.main(["plugins"]) == 1
    assert "failed" in capsys.readouterr().out


def test_strict_option(site, capsys, monkeypatch):
    monkeypatch.setenv(plugins.STRICT, "0")
    site.install("bad", "1 / 0")
    assert cli.main(["list"]) == 0
    capsys.readouterr()
    assert cli.main(["list", "--strict"]) == 1
    assert "bad: ZeroDivisionError" in capsys.readouterr().err


def test_two_distributions_with_one_entry_point(site, monkeypatch):
    for name in ("b_zoo", "a_zoo"):
        site.install(name, entry_points=f"[returnn_common]\nblocks = {name}\n")
    assert zoo.list("?_zoo") == ["a_zoo"]
    assert failures()["blocks"].startswith(
        "ValueError: a_zoo has an entry point of the name 'blocks', too; RETURNN_COMMON_PLUGINS=b_zoo"
    )
    monkeypatch.setenv(plugins.SELECTED, "b_zoo")
    plugins.installed.cache_clear()
    assert zoo.list("?_zoo") == ["b_zoo"]


def test_entry_point_that_is_no_module(site):
    """An object with the hook is as good as a module; anything else is told."""
    code = GOOD.replace("@hookimpl\ndef", "class Plugin:\n  @hookimpl\n  def").replace(
        "entries():", "entries(self):"
    )
    site.install(
        "good", code + "\nplugin = Plugin()\n", entry_points="[returnn_common]\na = good:plugin\n"
    )
    site.install("bad", "plugin = 3\n", entry_points="[returnn_common]\nb = bad:plugin\n")
    assert zoo.get("good") == 1
    assert failures() == {"b": "ValueError: 3 has no hook returnn_common_entries"}


def test_two_entry_points_of_a_distribution(site):
    site.install("two", entry_points="[returnn_common]\none = two\nother = second\n")
    (site.folder / "second.py").write_text(GOOD.replace("NAME", "other"))
    (site.folder / "other_blocks.py").write_text(BLOCKS.replace("NAME", "other"))
    assert (zoo.get("two/two"), zoo.get("two/other")) == (1, 1)
    plugins.installed.cache_clear()
    site.install("two", entry_points="[returnn_common]\none = two\nother = two\n")
    assert failures()["other"].endswith("another entry point of this distribution has two/two, too")


def test_block_that_is_not_python(site):
    site.install("my_zoo", blocks="def make_NAME(:\n")
    with pytest.raises(ValueError, match=r"my_zoo_blocks.py:1: invalid syntax"):
        zoo.info("my_zoo")


def test_broken_metadata(site):
    site.install("good")
    site.install("bad", entry_points="[returnn_common]\nno equals sign\n")
    site.install("strange")
    (site.folder / "strange-1.5.dist-info/entry_points.txt").write_bytes(b"[returnn_common]\n\xff")
    site.install("anonymous")
    (site.folder / "anonymous-1.5.dist-info/METADATA").write_text("Version: 3\n")
    assert failures() == {"bad": "its entry_points.txt cannot be read"}
    assert "good" in zoo.list()


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR BSD-3-Clause\nLicense: x\n", "MIT OR BSD-3-Clause"),
        ("License: The licence\n        of this\n", "The licence"),
        ("Classifier: A\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("", ""),
    ],
)
def test_licence(metadata, licence, site):
    """The three ways in which a distribution may state it."""
    site.install("my_zoo", metadata=metadata)
    assert zoo.info("my_zoo").licence == licence


def test_own_distribution_is_not_loaded(site):
    """A checkout beside an installed version: the entries of this one count."""
    site.install("returnn_common", module="other_version")
    assert plugins.installed() == ()
    assert "other_version" not in sys.modules


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", []), ("a_zoo", ["a_zoo"]), (" B-Zoo,other ", ["a_zoo", "b_zoo"]), ("b_zoo,", ["b_zoo"])],
)
def test_selected_plugins(value, expected, site, monkeypatch):
    site.install("a_zoo", entry_points="[returnn_common]\nother = a_zoo\n")
    site.install("b_zoo")
    monkeypatch.setenv(plugins.SELECTED, value)
    assert zoo.list("?_zoo") == expected
    off = {plugin.owner for plugin in plugins.installed() if plugin.state == "off"}
    assert off == {"a_zoo", "b_zoo"} - set(expected)
    assert off.isdisjoint(sys.modules)
    assert "conformer" in zoo.list()


def test_selected_plugin_is_not_installed(site, monkeypatch):
    site.install("my_zoo")
    monkeypatch.setenv(plugins.SELECTED, "my_zo")
    assert failures()["my-zo"].endswith("names it, but it is not installed; did you mean 'my-zoo'?")


def test_one_name_of_two_owners(site):
    site.install("a_zoo", GOOD.replace('"NAME"', '"shared10"'))
    site.install("b_zoo", GOOD.replace('"NAME"', '"shared10"'))
    site.install("c_zoo", GOOD.replace('"NAME"', '"shared9"'))
    with pytest.raises(ValueError, match="'shared10': write 'a_zoo/shared10' or 'b_zoo/shared10'"):
        zoo.get("shared10")
    assert zoo.list("shared*") == ["shared9", "a_zoo/shared10", "b_zoo/shared10"]
    assert zoo.get("b_zoo/shared10") == 1
    with pytest.raises(ValueError, match="'b_zoo/shared11'; did you mean 'b_zoo/shared10'"):
        zoo.get("b_zoo/shared11")


def test_target_that_is_not_there(site):
    site.install("my_zoo", blocks="def make_my_zo(): pass")
    hint = "no 'make_my_zoo'; did you mean 'make_my_zo'"
    with pytest.raises(ImportError, match=hint):
        zoo.get("my_zoo")
    with pytest.raises(ValueError, match="my_zoo/my_zoo: my_zoo_blocks defines " + hint):
        zoo.info("my_zoo")


def test_command_line_prints_one_line(site):
    """In a process of its own, as one sees it."""
    site.install("bad", "1 / 0")
    env = {**os.environ, "PYTHONPATH": f"{site.folder}{os.pathsep}{ROOT}"}
    result = subprocess.run(
        [sys.executable, "-m", "returnn_common", "list", "--kind", "encoder"],
        cwd=site.folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = result.stderr.splitlines()
    assert line.startswith("returnn_common: the plugin 'bad' of bad is left out: ZeroDivisionError")
    assert "\nconformer " in result.stdout


# --- modules beside a recipe


def module_of(name: str, code: str = GOOD) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(code.replace("NAME_blocks", name).replace("NAME", name), module.__dict__)
    return module


def test_register_module(site, monkeypatch):
    (site.folder / "beside.py").write_text(
        (GOOD + BLOCKS).replace("NAME_blocks", "beside").replace("NAME", "beside")
    )
    import beside

    zoo.register_module(beside)
    assert zoo.get("beside", size=3) == zoo.get("beside/beside", size=3) == 3
    info = zoo.info("beside")
    assert (info.distribution, info.version) == ("beside", "")
    assert info.file == str(site.folder / "beside.py")
    zoo.register_module(beside)
    assert zoo.list("beside*") == ["beside"]


def test_register_module_with_a_relative_target(site):
    (site.folder / "recipe").mkdir()
    (site.folder / "recipe/entries.py").write_text(
        GOOD.replace("NAME", "mine").replace('"mine_b', '".b')
    )
    (site.folder / "recipe/blocks.py").write_text(BLOCKS.replace("NAME", "mine"))
    from recipe import entries

    zoo.register_module(entries)
    assert zoo.get("mine") == 1
    assert zoo.info("recipe.entries/mine").file == str(site.folder / "recipe/blocks.py")


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        ("conformer", TypeError, "expected a module, got 'conformer'"),
        (module_of("nothing", ""), ValueError, "nothing: nothing has no hook"),
        (module_of("odd", BROKEN["no_dict"][0]), TypeError, "odd: a record is a str"),
        (module_of("odd", BROKEN["arguments"][0]), ValueError, "odd: .*registry"),
        (module_of("my_zoo"), ValueError, "there is a plugin 'my_zoo' already; rename"),
        (module_of("Returnn_Common"), ValueError, "there is a plugin 'Returnn_Common' already"),
    ],
)
def test_register_module_mistakes(module, error, message, site):
    site.install("my_zoo")
    with pytest.raises(error, match=message):
        zoo.register_module(module)
    assert plugins.all_plugins() == (*plugins.builtin(), *plugins.installed())


def test_record_is_checked_with_its_name():
    with pytest.raises(ValueError, match="record 'x': expected a target"):
        code = GOOD.replace("blocks:", "").replace("NAME", "x")
        records.entries_of(module_of("x", code), owner="me", package="")
