"""Helpers for all panels: colours, the frame, and reading values from Datasets."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

# Okabe and Ito's colours without black and yellow (too faint on white): safe for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
    (0, (2.5, 2.5)),
    (0, (5, 1.5, 1.2, 1.5, 1.2, 1.5)),
)
LABEL_WIDTH = 44  # characters per line in a legend
STANDALONE = "#777777"
INK = "#333333"
WINDOWS = 40  # largest number of groups of rounds in bands of records


class Style(NamedTuple):
    """The colour and dash of one algorithm in every panel."""

    colour: str
    dash: Any


Panel = Callable[[Axes], None]


def styles(algorithms: list[str]) -> dict[str, Style]:
    """A style for each algorithm, of which 36 differ: different colours first, then different dashes."""
    count = len(COLOURS)
    return {
        name: Style(COLOURS[place % count], DASHES[(place // count) % len(DASHES)])
        for place, name in enumerate(algorithms)
    }


def dress(axes: Axes) -> None:
    """Sets the frame, ticks and grid of a panel."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def has(dataset: xr.Dataset, name: str) -> bool:
    """Whether the dataset has the variable, with a finite value."""
    return name in dataset and dataset[name].size > 0 and bool(np.isfinite(dataset[name].values).any())


def values_of(dataset: xr.Dataset, name: str, algorithm: str, *dimensions: str) -> np.ndarray:
    """The values of one algorithm, ``[*dimensions]``."""
    return np.asarray(dataset[name].sel(algorithm=algorithm).transpose(*dimensions).values, float)


def recorded(values: np.ndarray) -> np.ndarray:
    """``[seed, round, ...]`` up to the last round with a value: after the end of a run, joined records have NaN."""
    known = np.isfinite(values).any(axis=(0, *range(2, values.ndim)))
    return values[:, : int(np.flatnonzero(known)[-1]) + 1] if known.any() else values


def steps(axes: Axes, values: np.ndarray, **look: Any) -> None:
    """Draws the share of values at or below x; values that are not finite are ignored."""
    values = values[np.isfinite(values)]
    if values.size:
        axes.ecdf(values, **look)


def percent(value: float, place: int | None = None) -> str:
    """A tick of an axis of shares: 0.7756 is 77.56%, and 0.5 is 50%."""
    return f"{round(100 * value, 6) + 0.0:.6g}%"


def printable(label: str, width: int = LABEL_WIDTH) -> str:
    """A label escaped for matplotlib, in lines of at most ``width`` characters.

    Without escapes, matplotlib would parse text between dollar signs as mathematics, and omit labels that begin with an
    underscore from the legend.
    """
    text = "\n".join(textwrap.wrap(label, width)).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def width_of(text: str, fontsize: float, *, bold: bool = False) -> float:
    """The width of a text's longest line in inches."""
    font = FontProperties(size=fontsize, weight="bold" if bold else "normal")
    lines = text.replace(r"\$", "$").split("\n")
    return max(TextToPath().get_text_width_height_descent(line, font, ismath=False)[0] for line in lines) / 72


def fitted(text: str, width: float, fontsize: float, *, bold: bool = False) -> str:
    """A text whose lines are at most ``width`` inches wide; longer ones are wrapped, and lines that fit stay."""

    def narrow(line: str) -> str:
        found, letters = line, len(line)
        while letters > 1 and (wide := width_of(found, fontsize, bold=bold)) > width:
            letters = min(letters - 1, max(1, int(letters * width / wide)))
            found = "\n".join(textwrap.wrap(line, letters))
        return found

    return "\n".join(map(narrow, text.split("\n")))


def legend_layout(labels: Sequence[str], width: float, fontsize: float = 10) -> tuple[list[str], int]:
    """The labels of a legend, wrapped where ``width`` inches are too narrow for them, and the number of its columns."""
    beside = 5 * fontsize / 72  # the line, and the gaps around it
    texts = [fitted(label, width - beside - 0.2, fontsize) for label in labels]
    longest = max(width_of(text, fontsize) for text in texts)
    return texts, max(1, min(len(labels), int((width - 0.2) / (longest + beside))))
