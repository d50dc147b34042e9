"""
Runs the fast tests against the oldest supported and the newest RETURNN and TensorFlow.

``python tests/run_floor_and_newest.py [options of pytest]``

Each end has a virtual environment in ``.venvs/``, made on first use and brought up to date on each.
The oldest releases stand in ``setup.py``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def read_oldest() -> dict[str, str]:
    """
    :return: distribution -> its oldest supported release
    """
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OLDEST":
            return ast.literal_eval(node.value)
    raise ValueError("setup.py has no line `OLDEST = {...}`")


def prepare(name: str, requirements: list[str]) -> Path:
    """
    :return: the interpreter of this environment, with our package and these requirements
    """
    folder = ROOT / ".venvs" / name
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "install", "-q", "--upgrade"]
    subprocess.run([*pip, "-e", ".[test]", *requirements], cwd=ROOT, check=True)
    return python


def main(pytest_args: list[str]) -> int:
    oldest = read_oldest()
    ends = {
        "oldest": [f"{name}=={version}" for name, version in oldest.items()],
        "newest": list(oldest),
    }
    failed = []
    for name, requirements in ends.items():
        print(f"--- {name}: {', '.join(requirements)}", flush=True)
        python = prepare(name, requirements)
        if subprocess.run([python, "-m", "pytest", "-q", *pytest_args], cwd=ROOT).returncode:
            failed.append(name)
    print("failed with: " + ", ".join(failed) if failed else "both passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
