"""
The example of a plugin package, installed where it was not before, and used from there.

Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_common import hookspecs

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """:return: a folder with the installed package"""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(
        EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, folder / "site", source]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def run(installed: Path, *args: str | Path) -> str:
    """:return: what Python prints with these arguments, the installed package and ours on the path"""
    env = {**os.environ, "PYTHONPATH": f"{installed / 'site'}{os.pathsep}{ROOT}"}
    result = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=installed,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_its_own_tests_pass(installed):
    """Among them the battery."""
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--rootdir", installed]
    printed = run(installed, "-m", "pytest", *options, installed / "source/tests")
    assert "3 passed" in printed


def test_commands(installed):
    command = ("-m", "returnn_common")
    listed = run(installed, *command, "list", "speech-extras/*")
    assert [line.split()[0] for line in listed.splitlines()] == ["tdnn", "words", "yes_no"]
    described = run(installed, *command, "info", "tdnn")
    assert "origin      speech-extras 0.1.0, MIT" in described
    assert str(installed / "site/speech_extras/tdnn.py") in described
    (line,) = [x for x in run(installed, *command, "plugins").splitlines() if "speech-extras" in x]
    assert line.split() == ["speech-extras", "0.1.0", "speech_extras", "loaded", "3", "entries"]


def test_entries_are_like_ours(installed):
    code = """
from returnn_common import copying, nn, zoo
tdnn = zoo.get("speech-extras/tdnn", in_dim=7, out_dim=5)
ctc = zoo.get("ctc", in_dim=7, target_dim=3, encoder=tdnn)
assert ctc.encoder is tdnn
assert zoo.get("yes_no").vocab == zoo.get("words") != zoo.get("words", words=["one", "two"])
assert zoo.info("tdnn", size=True).num_parameters == 512 * (80 + 5 * 512) * 3 + 6 * 3 * 512
for name in ("tdnn", "yes_no", "words"):
    copying.copy(name, "mine")
from mine.tdnn import make_tdnn
from mine.yes_no import YesNo
assert [n for n, _ in make_tdnn().named_parameters()] == [
    n for n, _ in zoo.get("tdnn").named_parameters()
]
"""
    run(installed, "-c", code)


# --- docs/plugins.md

# `test_readme.py` skips these blocks; they are checked here.
FENCE = re.compile(
    r"<!-- skip: (part of|the file|uses) (\S+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
BLOCKS = FENCE.findall((ROOT / "docs/plugins.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "code"), [b[1:] for b in BLOCKS if b[0] == "part of"])
def test_page_quotes_the_package(file, code):
    assert code in (EXAMPLE / file).read_text(encoding="utf-8")


def test_module_of_the_page(tmp_path):
    """The module without packaging works as it stands there."""
    ((_, name, module),) = [block for block in BLOCKS if block[0] == "the file"]
    ((_, _, use),) = [block for block in BLOCKS if block[0] == "uses"]
    (tmp_path / name).write_text(module)
    check = "assert encoder.out_dim.dimension == 256\n"
    result = subprocess.run(
        [sys.executable, "-c", use + check],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("my_blocks/projection (encoder): one linear layer\n")


def test_page_names_all_kinds():
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    rows = [line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(hookspecs.KINDS)


def test_page_has_the_entry_point():
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert toml in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
