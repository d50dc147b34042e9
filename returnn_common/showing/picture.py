"""Blocks as a picture: boxes in boxes, from the input down, and beside them their parameters."""

from __future__ import annotations

import os
import re
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
_HEADING: dict[str, Any] = {"size": 8.5, "weight": "bold", "color": _INK, "va": "center"}


@dataclass(frozen=True)
class _Place:
    """
    Where a block is drawn, and how.

    :param top: measured downwards
    :param times: how often the block around it exists
    :param label: of the arrow above: the dims that come in, where they are new
    """

    left: float
    top: float
    level: int
    colour: str
    times: int
    label: str


@dataclass(frozen=True)
class _Box:
    """A placed block."""

    block: Block
    place: _Place
    height: float
    is_leaf: bool

    @property
    def bottom(self) -> float:
        """measured downwards"""
        return self.place.top + self.height

    @property
    def right(self) -> float:
        """as far from the right as it is from the left"""
        return _WIDTH - self.place.left

    @property
    def times(self) -> int:
        """how often it exists"""
        return self.place.times * self.block.repeat


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
    matplotlib = _matplotlib()
    # without what a user has set up for other figures; the same bytes every time
    settings = {**matplotlib.rcParamsDefault, "svg.hashsalt": "returnn_common"}
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    with matplotlib.rc_context(settings), whole_file(path) as temporary:
        figure = _figure(_placed(root, depth))
        figure.savefig(temporary, format=ending, dpi=150, metadata=metadata)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            f"a picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    return matplotlib


def _figure(boxes: list[_Box]) -> Any:
    root = boxes[0]
    figure, axes = _canvas(root.bottom + _WIDE_GAP)
    _draw_arrow(axes, root.bottom + _WIDE_GAP, root.block.out, length=_WIDE_GAP)
    for box in boxes:
        _draw_frame(axes, box)
        _draw_labels(axes, box)
    _draw_bars(axes, boxes)
    return figure


def _canvas(height: float) -> tuple[Any, Any]:
    """:return: figure and axes, one unit an inch, y downwards"""
    from matplotlib.figure import Figure

    size = (_WIDTH + _BARS + 3 * _MARGIN, height + 2 * _MARGIN)
    figure = Figure(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-_MARGIN, size[0] - _MARGIN)
    axes.set_ylim(height + _MARGIN, -_MARGIN)
    axes.axis("off")
    return figure, axes


# --- places


def _placed(root: Block, depth: int) -> list[_Box]:
    """:return: the boxes of the root and of all that is shown below it, each before those in it"""
    return _boxes(root, _Place(0.0, _WIDE_GAP, 0, _GREY, 1, root.source), depth)


def _boxes(block: Block, place: _Place, depth: int) -> list[_Box]:
    inner: list[_Box] = []
    bottom, dims = place.top + _ROW, block.source
    for i, child in enumerate(block.children if depth else ()):
        label = _label(child.source, dims)
        boxes = _boxes(
            child,
            _Place(
                left=place.left + _PAD,
                top=bottom + (_WIDE_GAP if label else _GAP),
                level=place.level + 1,
                colour=place.colour if place.level else _COLOURS[i % len(_COLOURS)],
                times=place.times * block.repeat,
                label=label,
            ),
            depth - 1,
        )
        inner += boxes
        bottom, dims = boxes[0].bottom, child.out or dims
    bottom += _PAD if inner else 0.0
    return [_Box(block, place, bottom - place.top, not inner), *inner]


def _label(source: str, before: str) -> str:
    """:return: what is said of the dims that a block takes; nothing where they are those before it"""
    if source == before:
        return ""
    new, old = _lengths(source), _lengths(before)
    return f"and {source}" if new and old and not new & old else source


def _lengths(dims: str) -> set[str]:
    """:return: the names of the dynamic dims: ``time`` of ``[B, time/4, 512]``"""
    return {part for part in re.findall(r"[^\W\d]\w*", dims) if part != "B"}


# --- drawing


def _draw_frame(axes: Any, box: _Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    shade = 0.16 if box.is_leaf else 0.05
    for shift in (0.07, 0.035, 0.0) if box.block.repeat > 1 else (0.0,):
        axes.add_patch(
            FancyBboxPatch(
                (box.place.left + shift, box.place.top - shift),
                box.right - box.place.left,
                box.height,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=_tint(box.place.colour, shade),
                edgecolor=box.place.colour,
                linewidth=0.9,
            )
        )
    _draw_arrow(axes, box.place.top, box.place.label, length=_WIDE_GAP if box.place.label else _GAP)


def _draw_labels(axes: Any, box: _Box) -> None:
    """its name, class and output"""
    left, middle = box.place.left + 0.1, box.place.top + _ROW / 2
    name = axes.text(left, middle, box.block.name, **_HEADING)
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
    axes.text(left, boxes[0].place.top + _ROW / 2, heading, **_HEADING)
    for box in leaves:
        length = 0.9 * box.times * box.block.parameters / most
        axes.barh(
            box.place.top + _ROW / 2,
            length,
            height=0.16,
            left=left,
            color=_tint(box.place.colour, 0.7),
        )
        times = f"{box.times} x " if box.times > 1 else ""
        text = f"{times}{_short(box.block.parameters)}"
        axes.text(
            left + length + 0.06, box.place.top + _ROW / 2, text, size=7.5, color=_INK, va="center"
        )


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
