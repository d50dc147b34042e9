"""Blocks as a picture: boxes in boxes, from the input down, and beside them their parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import whole_file
from ..hints import valid_names
from .blocks import Block

FORMATS = ("svg", "png")

# All in inches.
_WIDTH, _BARS, _MARGIN = 6.4, 2.6, 0.25  # of the boxes, of the bars, around all
_ROW, _PAD, _GAP, _WIDE_GAP = 0.34, 0.12, 0.13, 0.34
_COLOURS = ("#3b75af", "#c8752d", "#4f8f4f", "#8a5fa8", "#a8433f", "#5b8c93", "#927a2e")
_GREY, _INK = "#7a7a7a", "#222222"


@dataclass(frozen=True)
class _Box:
    """A placed block; `top` is measured downwards, `times` counts how often it exists."""

    block: Block
    left: float
    right: float
    top: float
    height: float
    level: int
    colour: str
    times: int
    is_leaf: bool
    label: str  # of the arrow above: the dims that come in, where they are new


def draw(root: Block, path: str | os.PathLike, *, depth: int = 3) -> None:
    """
    :param path: of the picture, which ends in ``.svg`` or ``.png``; an existing file is replaced
    :param depth: how many levels below the root are shown
    :raises ValueError: another ending
    :raises ImportError: matplotlib is not installed
    """
    ending = Path(path).suffix[1:].lower()
    if ending not in FORMATS:
        raise ValueError(
            f"{os.fspath(path)!r} has the ending {ending!r}{valid_names(ending, FORMATS)}"
        )
    boxes = list(_placed(root, depth))
    bottom = boxes[0].top + boxes[0].height + _WIDE_GAP
    figure, axes = _canvas(bottom)
    _draw_arrow(axes, bottom, root.out, length=_WIDE_GAP)
    for box in boxes:
        _draw_box(axes, box)
    _draw_bars(axes, boxes)
    with whole_file(path) as temporary:
        metadata = {"Date": None} if ending == "svg" else {"Software": None}
        figure.savefig(temporary, format=ending, dpi=150, metadata=metadata)


def _canvas(height: float) -> tuple[Any, Any]:
    """:return: figure and axes, one unit an inch, y downwards"""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"a picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    matplotlib.rcParams["svg.hashsalt"] = "returnn_common"  # the same bytes every time
    size = (_WIDTH + _BARS + 3 * _MARGIN, height + 2 * _MARGIN)
    figure = Figure(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-_MARGIN, size[0] - _MARGIN)
    axes.set_ylim(height + _MARGIN, -_MARGIN)
    axes.axis("off")
    return figure, axes


# --- places


def _placed(root: Block, depth: int) -> Iterator[_Box]:
    return _place(
        root,
        depth=depth,
        level=0,
        left=0.0,
        top=_WIDE_GAP,
        colour=_GREY,
        times=1,
        label=root.source,
    )


def _place(
    block: Block,
    *,
    depth: int,
    level: int,
    left: float,
    top: float,
    colour: str,
    times: int,
    label: str,
) -> Iterator[_Box]:
    """:return: the box of a block, then those in it"""
    children = block.children if level < depth else ()
    times *= block.repeat
    inner: list[_Box] = []
    y, dims = top + _ROW, block.source
    for i, child in enumerate(children):
        new = _label(child.source, dims)
        y += _WIDE_GAP if new else _GAP
        boxes = list(
            _place(
                child,
                depth=depth,
                level=level + 1,
                left=left + _PAD,
                top=y,
                colour=_COLOURS[i % len(_COLOURS)] if not level else colour,
                times=times,
                label=new,
            )
        )
        inner += boxes
        y += boxes[0].height
        dims = child.out or dims
    bottom = y + (_PAD if children else 0.0)
    yield _Box(
        block, left, _WIDTH - left, top, bottom - top, level, colour, times, not children, label
    )
    yield from inner


def _label(source: str, before: str) -> str:
    """:return: what is said of the dims that a block takes; nothing where they are those before it"""
    if source == before:
        return ""
    return source if _lengths(source) & _lengths(before) else f"and {source}"


def _lengths(dims: str) -> set[str]:
    """:return: the names of the dynamic dims: ``time`` of ``[B, time/4, 512]``"""
    return {part for part in re.findall(r"[^\W\d]\w*", dims) if part != "B"}


# --- drawing


def _draw_box(axes: Any, box: _Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    shade = 0.16 if box.is_leaf else 0.05
    for shift in (0.07, 0.035, 0.0) if box.block.repeat > 1 else (0.0,):
        axes.add_patch(
            FancyBboxPatch(
                (box.left + shift, box.top - shift),
                box.right - box.left,
                box.height,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=_tint(box.colour, shade),
                edgecolor=box.colour,
                linewidth=0.9,
            )
        )
    middle = box.top + _ROW / 2
    name = axes.text(
        box.left + 0.1, middle, box.block.name, size=8.5, weight="bold", color=_INK, va="center"
    )
    times = f"{box.block.repeat} x " if box.block.repeat > 1 else ""
    axes.annotate(
        f"{times}{box.block.module}",
        xy=(1, 0.5),
        xycoords=name,
        xytext=(6, 0),
        textcoords="offset points",
        size=8,
        color=_GREY,
        va="center",
    )
    axes.text(box.right - 0.1, middle, box.block.out, size=7.5, color=_INK, va="center", ha="right")
    _draw_arrow(axes, box.top, box.label, length=_WIDE_GAP if box.label else _GAP)


def _draw_arrow(axes: Any, end: float, label: str, *, length: float) -> None:
    """an arrow down to this place, and what flows there"""
    x = _WIDTH / 2
    style = {"arrowstyle": "-|>", "color": _GREY, "linewidth": 0.8, "mutation_scale": 6}
    style = {**style, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(x, end), xytext=(x, end - length), arrowprops=style)
    axes.text(x + 0.1, end - length / 2, label, size=7, color=_GREY, va="center")


def _draw_bars(axes: Any, boxes: list[_Box]) -> None:
    """beside each innermost box its parameters, the longest bar for the most"""
    left, total = _WIDTH + _MARGIN + 0.1, boxes[0].block.parameters
    leaves = [box for box in boxes if box.is_leaf and box.block.parameters]
    most = max((box.times * box.block.parameters for box in leaves), default=1)
    heading = f"{_short(total)} parameters, {boxes[0].block.layers} layers"
    axes.text(
        left, boxes[0].top + _ROW / 2, heading, size=8.5, weight="bold", color=_INK, va="center"
    )
    for box in leaves:
        length = 0.9 * box.times * box.block.parameters / most
        axes.barh(box.top + _ROW / 2, length, height=0.16, left=left, color=_tint(box.colour, 0.7))
        times = f"{box.times} x " if box.times > 1 else ""
        text = f"{times}{_short(box.block.parameters)}"
        axes.text(left + length + 0.06, box.top + _ROW / 2, text, size=7.5, color=_INK, va="center")


def _short(number: int) -> str:
    """:return: three digits: ``1.05 M``"""
    for unit, name in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def _tint(colour: str, strength: float) -> tuple[float, ...]:
    """:return: the colour on white, 1 for all of it"""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(1 - strength * (1 - part) for part in parts)
