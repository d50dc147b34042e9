"""
The zoo: models and their blocks by name. ``zoo.list()`` names them, ``zoo.get(name, **options)``
makes one.

Importing this, and listing, imports neither RETURNN nor a framework.
"""

from .registry import get, list_names

list = list_names

__all__ = ["get", "list"]
