"""
The zoo: models and their parts by name, ours and those of installed plugins. ``zoo.list()`` names
them, ``zoo.info(name)`` describes one, ``zoo.get(name, **options)`` makes one.

Importing this, and listing, imports neither RETURNN nor a framework.
"""

from .registry import get, info, list_names, register_module

list = list_names

__all__ = ["get", "info", "list", "register_module"]
