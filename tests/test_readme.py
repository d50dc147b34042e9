"""
The documents do what they say: every Python block runs, and the CI runs the test command.

The blocks under one ``##`` heading run in order in one process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_FENCE = re.compile(
    r"^(?:<!-- skip: (?P<skip>[^\n]+) -->\n\s*)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def python_blocks(text: str) -> list[str]:
    """
    :return: the code of all Python blocks but the skipped ones
    """
    fences = _FENCE.finditer(text)
    return [f["code"] for f in fences if f["language"] == "python" and not f["skip"]]


def programs(text: str) -> list[str]:
    """
    :return: one program for each ``##`` section that has Python blocks
    """
    # A comment in a code block may begin with "##" too: look only outside the blocks.
    outside = _FENCE.sub(lambda fence: " " * len(fence[0]), text)
    starts = [0, *(match.start() for match in re.finditer(r"^## ", outside, re.MULTILINE))]
    sections = [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return ["\n".join(blocks) for blocks in map(python_blocks, sections) if blocks]


def run_program(code: str, folder: Path) -> subprocess.CompletedProcess:
    """
    :return: how it ended, in a fresh process with this working directory
    """
    (folder / "program.py").write_text(code, encoding="utf-8")
    code = f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_path('program.py')"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]),
    }  # of processes that it starts
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )


def all_programs() -> list:
    files = [file for file in (ROOT / "README.md", *ROOT.glob("docs/*.md")) if file.exists()]
    return [
        pytest.param(code, id=f"{file.stem}-{number}")
        for file in sorted(files)
        for number, code in enumerate(programs(file.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize("code", all_programs())
def test_program_of_document_runs(code, tmp_path):
    result = run_program(code, tmp_path)
    assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"


SAMPLE = """\
# Title

```python
a = 3
```

```sh
false
```

## One

```python
## not a heading
b = 5
```
text
```python
print(b + 2)
```

## Two

<!-- skip: needs a GPU -->
```python
raise ValueError("not run")
```

## Three

```python
assert b == 5
```
"""


def test_programs_of_a_document(tmp_path):
    found = programs(SAMPLE)
    assert found == ["a = 3\n", "## not a heading\nb = 5\n\nprint(b + 2)\n", "assert b == 5\n"]
    assert run_program(found[1], tmp_path).stdout == "7\n"
    # Sections do not see each other.
    assert "NameError" in run_program(found[2], tmp_path).stderr


def ci_run(folder: Path, readme: str, *args: str) -> subprocess.CompletedProcess:
    """
    :return: how `.ci/run` ended in a checkout with this README
    """
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "README.md").write_text(readme, encoding="utf-8")
    (folder / "venv/bin").mkdir(parents=True)
    pytest_stub = folder / "venv/bin/pytest"
    pytest_stub.write_text("#!/bin/sh\necho pytest was given: $*\n")
    pytest_stub.chmod(0o755)
    return subprocess.run(
        [folder / ".ci/run", *args], cwd="/", capture_output=True, text=True, check=False
    )


def test_ci_runs_the_test_command(tmp_path):
    readme = (
        "# Title\n```sh\nfalse\n```\n"
        "<!-- test command -->\n```sh\ntest -d .ci && echo 'in the checkout'\n```\n"
        "```sh\nfalse\n```\n"
    )
    result = ci_run(tmp_path, readme)
    assert result.returncode == 0, result.stderr
    assert "in the checkout\n" in result.stdout
    assert result.stdout.endswith("pytest was given: -q -m slow and ci\n")


@pytest.mark.parametrize(
    "readme",
    ["# no marker\n```sh\ntrue\n```\n", "<!-- test command -->\n```sh\ntrue\ntrue\n```\n"],
)
def test_ci_needs_one_test_command(readme, tmp_path):
    result = ci_run(tmp_path, readme)
    assert result.returncode == 1
    assert "expected one line in a fenced block" in result.stderr


def test_ci_fails_with_the_test_command(tmp_path):
    result = ci_run(tmp_path, "<!-- test command -->\n```sh\nfalse && true\n```\n")
    assert result.returncode != 0
    assert "pytest was given" not in result.stdout


def test_readme_has_the_test_command():
    """Word for word what a newcomer types, in a fresh checkout."""
    result = subprocess.run(
        [ROOT / ".ci/run", "--print"], capture_output=True, text=True, check=True
    )
    command = 'python3 -m venv venv && venv/bin/pip install -e ".[test]" && venv/bin/pytest'
    assert result.stdout.splitlines()[0] == f"+ {command}"
