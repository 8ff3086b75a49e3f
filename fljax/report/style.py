"""What all panels share: colours, the frame, and how values are taken out of Datasets."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

# Okabe and Ito's colours but for black and yellow (too faint on white): safe for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
LABEL_WIDTH = 44  # letters of a line in a legend
STANDALONE = "#777777"
INK = "#333333"
WINDOWS = 40  # bands of records are drawn over at most so many groups of rounds


class Style(NamedTuple):
    """How one algorithm looks in every panel."""

    colour: str
    dash: Any


Panel = Callable[[Axes], None]


def styles(algorithms: list[str]) -> dict[str, Style]:
    """A look for each algorithm: colours first, then, with more algorithms than colours, dashes too."""
    count = len(COLOURS)
    return {
        name: Style(COLOURS[place % count], DASHES[(place // count) % len(DASHES)])
        for place, name in enumerate(algorithms)
    }


def dress(axes: Axes) -> None:
    """The frame, ticks and grid of every panel."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def has(dataset: xr.Dataset, name: str) -> bool:
    """Whether there is such a variable with a finite value."""
    return name in dataset and dataset[name].size > 0 and bool(np.isfinite(dataset[name].values).any())


def values_of(dataset: xr.Dataset, name: str, algorithm: str, *dimensions: str) -> np.ndarray:
    """``[*dimensions]`` of one algorithm."""
    return np.asarray(dataset[name].sel(algorithm=algorithm).transpose(*dimensions).values, float)


def steps(axes: Axes, values: np.ndarray, **look: Any) -> None:
    """Draws the share of values at or below x; NaN counts for nothing."""
    values = values[np.isfinite(values)]
    if values.size:
        axes.ecdf(values, **look)


def printable(label: str, width: int = LABEL_WIDTH) -> str:
    """A label as pictures show it, letter by letter, in lines of at most ``width`` letters.

    Otherwise matplotlib reads what stands between dollar signs as mathematics and leaves a label out of the legend that
    begins with an underscore.
    """
    text = "\n".join(textwrap.wrap(label, width)).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def legend_columns(labels: Sequence[str], width: float, fontsize: float = 10) -> int:
    """How many columns of a legend with these labels fit into ``width`` inches."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    # A letter is about 0.62 as wide as high; line and gaps take as much as six letters.
    return max(1, min(len(labels), int(width / ((longest + 6) * 0.62 * fontsize / 72))))
