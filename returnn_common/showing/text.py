"""Blocks as a tree of text lines."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import Block


def as_text(root: Block, *, depth: int = 3) -> str:
    """
    :param depth: how many levels below the root are shown
    :return: one line for each block: name, class, dims, parameters, layers
    """
    rows = [("block", "", "takes", "gives", "parameters", "layers"), _row(root, "")]
    rows += _rows(root, "", depth)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(_line(row, widths) for row in rows)


def _rows(parent: Block, indent: str, depth: int) -> Iterator[tuple[str, ...]]:
    for child in parent.children if depth else ():
        is_last = child is parent.children[-1]
        yield _row(child, indent + ("└─ " if is_last else "├─ "))
        yield from _rows(child, indent + ("   " if is_last else "│  "), depth - 1)


def _row(block: Block, indent: str) -> tuple[str, ...]:
    times = f"{block.repeat} x " if block.repeat > 1 else ""
    parameters = f"{times}{block.parameters:,}" if block.parameters else ""
    return (
        f"{indent}{block.name}",
        block.module,
        block.source,
        block.out,
        parameters,
        f"{times}{block.layers}",
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(row[:4], widths)]
    right = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:])]
    return "  ".join([*left, *right]).rstrip()
