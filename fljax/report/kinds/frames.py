"""Figures of several panels of one kind: their frame, and how metrics are written on axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fljax.report.style import INK, dress, finish, fitted, percent, printable
from fljax.report.tables import is_share as is_share_of_tables
from fljax.results.non_finite import diverged_seeds

ACROSS = 3  # panels in a row
MARKERS = ("o", "s", "D", "^", "v", "P")


def frame(count: int, *, share: bool = True, across: int = ACROSS) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels, ``across`` in a row; with ``share``, all have the same axes."""
    across = min(across, max(1, count))
    down = -(-count // across)
    width, height = (5.6, 4.0) if count == 1 else (4.4 * across, 3.6 * down)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels: list[Axes] = []
    for place in range(count):
        first = panels[0] if panels and share else None
        panels.append(figure.add_subplot(down, across, place + 1, sharex=first, sharey=first))
        dress(panels[-1])
    return figure, panels


def close(figure: Figure, heading: str) -> Figure:
    """Sets fonts and the heading of a figure whose panels are drawn."""
    panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    for axes in panels:
        finish(axes)
    width = 0.95 * figure.get_figwidth()
    figure.suptitle(fitted(heading, width, 12, bold=True), fontsize=12, fontweight="bold", color=INK)
    return figure


def label_in_words(metrics: xr.Dataset, label: str) -> str:
    """A label as figures show it, with a word where a seed diverged."""
    return printable(label) + (" (diverged)" if label in diverged_seeds(metrics) else "")


def is_share(name: str) -> bool:
    """Whether a metric, or an array over clients, is a share of 1 or a difference of shares."""
    plain = name.removeprefix("unseen_")
    others = plain.endswith("loss") or plain.startswith("score_") or plain == "threshold"
    return is_share_of_tables(plain) and not others


def _share(value: float, place: int | None = None) -> str:
    """A tick in percent; none where margins reach beyond 100%."""
    return percent(value) if value < 1.0001 else ""


def in_percent(axis: Axis, name: str, values: Sequence[float] | np.ndarray) -> None:
    """Writes the numbers of an axis in percent, if the metric is a share and its values are no larger than shares."""
    finite = np.abs(np.asarray(values, float))
    finite = finite[np.isfinite(finite)]
    if is_share(name) and not (finite > 1).any():
        axis.set_major_formatter(FuncFormatter(_share))
