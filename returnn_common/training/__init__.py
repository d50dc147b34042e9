"""
Training with the loop in sight: sessions that run steps, update rules, checkpoints.

Importing this imports neither TensorFlow nor torch.
"""

from __future__ import annotations

from . import checkpoints
from ._engine import Average
from .optimizers import UpdateRule
from .session import Session, Step

__all__ = ["Average", "Session", "Step", "UpdateRule", "checkpoints"]
