"""
The figures of the demo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..data.digits import LABELS
from ..files import whole_file

_TICKS = [label.replace(" ", "space") for label in LABELS] + ["blank"]


def plot_learning_curve(path: Path, curves: dict[str, dict[int, float]]) -> None:
    """
    :param path: of the PNG
    :param curves: name -> epoch -> loss (per character)
    """
    figure, axes = _figure(7, 4)
    for name, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), marker="o", markersize=3, label=name)
    axes.set(xlabel="epoch", ylabel="CTC loss per character", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def plot_posteriors(
    path: Path, log_probs: numpy.ndarray, alignment: numpy.ndarray, *, frame: float, title: str
) -> None:
    """
    :param path: of the PNG
    :param log_probs: `[T, characters and blank]`
    :param alignment: `[T]`, the label of each frame, drawn over the posteriors
    :param frame: seconds
    """
    figure, axes = _figure(max(7.0, 0.12 * len(log_probs)), 5)
    extent = (0.0, frame * len(log_probs), len(_TICKS) - 0.5, -0.5)
    image = axes.imshow(
        numpy.exp(log_probs).T, aspect="auto", extent=extent, cmap="Blues", vmin=0, vmax=1
    )
    times = frame * numpy.arange(len(alignment) + 1)
    axes.stairs(alignment, times, baseline=None, color="tab:red", linewidth=1.5, label="alignment")
    axes.set(xlabel="seconds", title=title)
    axes.set_yticks(range(len(_TICKS)), _TICKS)
    axes.legend(loc="upper right")
    figure.colorbar(image, label="p(label | frame)")
    _save(figure, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})
