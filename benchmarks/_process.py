"""Measure in processes of their own, where nothing is warm: one line of JSON for each answer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from returnn_common.files import write_text

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "DISABLE_CUDA": "1"}


class Worker:
    """
    The script again in another process, ``SCRIPT --worker NAME ARGS``, on the CPU with all its cores.

    It answers with :class:`Answers`.
    """

    def __init__(self, name: str, *args: Any):
        self.name = name
        command = [
            sys.executable,
            str(Path(sys.argv[0]).resolve()),
            "--worker",
            name,
            *map(str, args),
        ]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._errors,
            "text": True,
        }
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("OMP_NUM_THREADS", None)
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """end the process"""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def answer(self) -> dict[str, Any]:
        """:return: the next answer. RuntimeError where the process has ended without one"""
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(
                f"the process that measures {self.name!r} failed:\n{self._errors.read()[-8000:]}"
            )
        return json.loads(line)

    def ask(self, question: Any) -> dict[str, Any]:
        """:return: the answer to a line of input"""
        print(question, file=self._process.stdin, flush=True)
        return self.answer()


class Answers:
    """In the worker: answers go to stdout, and what RETURNN prints goes nowhere (errors still show)."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)

    def give(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self.out, flush=True)

    def questions(self) -> Iterator[str]:
        for line in sys.stdin:
            yield line.strip()


def warn_if_busy() -> float:
    """:return: how many processes of others run here for each core; a line says so where that spoils a measurement"""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > 0.3:
        print(
            f"The machine is busy, {load:.1f} processes for each core: times and ratios are not to be trusted."
        )
    return load


def write_json(path: str, figures: Any) -> None:
    """the whole file or nothing"""
    write_text(path, json.dumps(figures, indent=2) + "\n")
