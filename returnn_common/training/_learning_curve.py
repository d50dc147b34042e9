"""The picture of a training: its losses and its learning rate over the epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Points = list[tuple[int, float]]
_STYLES = (".-", ".--", ".:", ".-.")  # by parts of the data
_PANEL_HEIGHT, _RATE_HEIGHT, _WIDTH = 2.6, 1.3, 7.0  # inches


def learning_curve(lines: Sequence[Mapping[str, Any]]) -> Any:
    """
    A matplotlib figure: a panel for each loss, which have scales of their own, with a curve for each part of the data,
    and one for the learning rate. Of what is not trained on, the lowest value is marked and named.

    :param lines: of a log, as :meth:`Log.lines` gives them
    :raises ValueError: there is no line
    :raises ImportError: matplotlib is not installed, with the command that installs it
    """
    if not lines:
        raise ValueError("a learning curve needs an epoch, the log has none yet: call log.epoch()")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"a learning curve needs matplotlib: pip install matplotlib ({error})"
        ) from error
    losses, parts = _losses(lines), _parts(lines)
    heights = [_PANEL_HEIGHT] * len(losses) + [_RATE_HEIGHT]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for i, (panel, (loss, curves)) in enumerate(zip(panels, losses.items())):
        for part, points in curves.items():
            _draw(
                panel, points, part, style=_STYLES[parts.index(part) % len(_STYLES)], color=f"C{i}"
            )
        panel.set_ylabel(loss)
        panel.legend()
    _draw_rate(panels[-1], [(line["epoch"], line["learning_rate"]) for line in lines])
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.align_ylabels()
    return figure


def _draw(panel: Any, points: Points, part: str, *, style: str, color: str) -> None:
    finite = [point for point in points if math.isfinite(point[1])]
    label = part
    if part != "train" and finite:
        epoch, value = min(finite, key=lambda point: point[1])
        panel.plot([epoch], [value], "o", color=color)
        label = f"{part}, lowest {value:.4g} in epoch {epoch}"
    panel.plot(*zip(*points), style, color=color, label=label)


def _draw_rate(panel: Any, points: Points) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.plot(*zip(*points), ".-", color="0.4", drawstyle="steps-mid")
    panel.set(ylabel="learning rate", xlabel="epoch", ylim=(0, None))
    panel.set_xlim(points[0][0] - 0.5, points[-1][0] + 0.5)
    panel.ticklabel_format(axis="y", scilimits=(-2, 3))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _losses(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Points]]:
    """``{loss: {part: [(epoch, value)]}}``"""
    losses: dict[str, dict[str, Points]] = {}
    for line in lines:
        for part in _parts([line]):
            for loss, value in line[part].items():
                losses.setdefault(loss, {}).setdefault(part, []).append((line["epoch"], value))
    return losses


def _parts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """of the data: train, dev, ..."""
    return list(dict.fromkeys(k for line in lines for k, v in line.items() if isinstance(v, dict)))


__all__ = ["learning_curve"]
