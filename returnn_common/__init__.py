"""
Models for speech and language as ordinary Python modules, lowered to compact RETURNN layers.

The parts, each imported on first use: ``nn`` (the core), ``zoo`` (models), ``data`` (corpora).
Importing this package alone imports no framework, not even RETURNN.
"""

from __future__ import annotations

from types import ModuleType

__version__ = "0.1.0.dev0"


def _part_names() -> list[str]:
    """
    :return: the public modules of this package, sorted
    """
    import pkgutil

    return sorted(
        info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")
    )


def __getattr__(name: str) -> ModuleType:
    """
    :return: the part (``returnn_common.nn``, ...), imported now
    """
    import importlib

    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parts = _part_names()
    if name in parts:
        return importlib.import_module(f".{name}", __name__)
    from .hints import valid_names

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{valid_names(name, parts)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_part_names()})
