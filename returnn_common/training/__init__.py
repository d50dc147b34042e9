"""
Training with the loop in sight: sessions that run steps, update rules, checkpoints, batches from anywhere, logs.

Importing this imports neither TensorFlow nor torch.
"""

from __future__ import annotations

from . import checkpoints
from ._engine import Average
from .configs import run_config, to_config
from .controls import EarlyStopping, Newbob, every_seconds, every_steps
from .feeding import batches_from, prefetch
from .fitting import fit, step_of
from .logs import Log, averages
from .optimizers import UpdateRule
from .running import run
from .session import BACKENDS, Session, Step
from .tensorboard import TensorBoard

__all__ = [
    "BACKENDS",
    "Average",
    "EarlyStopping",
    "Log",
    "Newbob",
    "Session",
    "Step",
    "TensorBoard",
    "UpdateRule",
    "averages",
    "batches_from",
    "checkpoints",
    "every_seconds",
    "every_steps",
    "fit",
    "prefetch",
    "run",
    "run_config",
    "step_of",
    "to_config",
]
