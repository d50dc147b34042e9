"""Whole models with losses: ``.encode(...)``, ``.losses(...)``."""
