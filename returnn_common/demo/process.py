"""
Run RETURNN in a process of its own, keep what it prints, and tell how far it is.
"""

from __future__ import annotations

import collections
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# "train epoch 3, step 7, cost:ctc 1.2, ..." (TensorFlow), "ep 3 train, step 7, ctc 1.2, ..." (torch)
_STEP = re.compile(
    r"(?:train epoch (?P<tf_epoch>\d+)|ep (?P<torch_epoch>\d+) train), step (?P<step>\d+), "
    r".*?ctc (?P<loss>[\w.+-]+).*?complete (?P<complete>[\d.]+)%"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal


class Step(NamedTuple):
    """What RETURNN prints after a training step."""

    epoch: int
    step: int  # within the epoch
    loss: float
    complete: float  # of the epoch, 0 to 1


def parse_step(line: str) -> Step | None:
    """:return: None for any other line"""
    match = _STEP.search(line)
    if not match:
        return None
    epoch = int(match["tf_epoch"] or match["torch_epoch"])
    return Step(epoch, int(match["step"]), float(match["loss"]), float(match["complete"]) / 100)


def run_returnn(config: Path, *, log: Path, on_line: Callable[[str], None]) -> None:
    """
    Run ``python -m returnn CONFIG`` in the folder of the config. It ends when we end, whatever ends us.

    :param config: file
    :param log: what RETURNN prints is added to this file
    :param on_line: called with every line
    :raises ChildProcessError: if RETURNN fails; says its last words and where to read the others
    """
    command = [sys.executable, "-u", "-m", "returnn", config.name]
    last_lines: collections.deque[str] = collections.deque(maxlen=1)
    process = subprocess.Popen(
        command,
        cwd=config.parent,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    try:
        with log.open("a", encoding="utf-8") as log_file:
            for line in process.stdout or ():
                log_file.write(line)
                log_file.flush()
                last_lines.extend([line.strip()] if line.strip() else [])
                on_line(line)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if code:
        said = _COLOUR.sub("", "".join(last_lines))
        raise ChildProcessError(
            f"RETURNN failed (exit code {code}) with {config}: {said}\nAll that it said is in {log}"
        )


def _environment() -> dict[str, str]:
    """:return: ours, with our import paths, for a torch config imports this package"""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no messages below warnings
    return env


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1  # see prctl(2)
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
