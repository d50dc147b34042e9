"""
The lowered network of an entry, to look at: a tree of blocks with their dims, parameters and
layers, as text or as a picture.
"""

from .blocks import Block, blocks_of
from .picture import draw
from .text import as_text

__all__ = ["Block", "as_text", "blocks_of", "draw"]
