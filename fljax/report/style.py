"""How pictures look: colours, the frame, texts that fit, and fonts; and reading the values of a panel from Datasets."""

from __future__ import annotations

import contextlib
import functools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fljax.results.events import end_of

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
_SHOWN = 20  # letters in the sentence
_BOXES = "Last Resort"  # the name of a font that has a box for every letter
WINDOWS = 40  # largest number of groups of rounds in bands of records


class Style(NamedTuple):
    """The colour and dash of one algorithm in every panel."""

    colour: str
    dash: Any

    @property
    def line(self) -> dict[str, Any]:
        """The look of its lines."""
        return {"color": self.colour, "linestyle": self.dash, "lw": 2}


class Shown(NamedTuple):
    """What panels of a run are drawn from."""

    metrics: xr.Dataset
    records: xr.Dataset
    looks: Mapping[str, Style]  # of the algorithms that are drawn, by label

    def of(self, labels: Iterable[str]) -> Shown:
        """The same with some of the algorithms."""
        return self._replace(looks={label: self.looks[label] for label in labels})


Panel = Callable[[Axes], None]


def styles(algorithms: list[str]) -> dict[str, Style]:
    """A style for each algorithm, of which 36 differ: different colours first, then different dashes."""
    count = len(COLOURS)
    return {
        name: Style(COLOURS[place % count], DASHES[(place // count) % len(DASHES)])
        for place, name in enumerate(algorithms)
    }


def styles_of(metrics: xr.Dataset) -> dict[str, Style]:
    """The styles of all algorithms of results."""
    return styles(list(map(str, metrics["algorithm"].values)) if "algorithm" in metrics.coords else [])


def panel(figure: Figure, rows: int = 1, columns: int = 1, place: int = 0, **shared: Any) -> Axes:
    """A new panel, with the frame, ticks, grid and labels of all pictures."""
    axes = figure.add_subplot(rows, columns, place + 1, **shared)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=9.5, color=INK)
    return axes


def bare(axes: Axes) -> None:
    """Leaves out the frame, the grid and the ticks of a panel that is a map of cells."""
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)


def upright_grid(axes: Axes) -> None:
    """Draws the lines of the grid at the values of the horizontal axis, not of the vertical one."""
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)


def write_percents(*axes: Axis) -> None:
    """Writes the numbers of axes of shares in percent."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(percent))


def write_wholes(*axes: Axis) -> None:
    """Writes whole numbers, six of them at most, beside axes that count."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def finish(axes: Axes) -> None:
    """Sets the font of a panel's title, and wraps a title that is wider than the panel."""
    columns = axes.get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    width = 0.84 * axes.figure.bbox.width / axes.figure.dpi / columns  # beside a title are the numbers of the axis
    axes.title.set_text(fitted(axes.title.get_text(), width, 11, bold=True))
    axes.title.set(fontsize=11, color=INK, fontweight="bold")


def head(figure: Figure, *headings: str, size: float) -> None:
    """Writes headings, in lines of their own, above all panels; none where they are empty."""
    width = 0.95 * figure.get_figwidth()
    text = "\n".join(fitted(printable(words, 200), width, size, bold=True) for words in headings if words)
    if text:
        figure.suptitle(text, fontsize=size, fontweight="bold", color=INK)


def labelled(panels: Iterable[Axes]) -> dict[str, Any]:
    """The artists with a label in panels, by label; of artists with the same label the first one."""
    artists: dict[str, Any] = {}
    for axes in panels:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            artists.setdefault(label, artist)
    return artists


def legend_below(figure: Figure, handles: Mapping[str, Any], heading: str = "") -> None:
    """One legend under all panels, of artists by their words; the figure grows, so that panels keep their height."""
    width, height = figure.get_size_inches()
    texts, columns = legend_layout(list(handles), width)
    lines = sum(1 + text.count("\n") for text in texts) / columns + bool(heading)
    figure.set_size_inches(width, height + 0.2 * max(0.0, lines - 1))
    figure.legend(
        list(handles.values()),
        texts,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10,
        title=heading or None,
    )


def has(dataset: xr.Dataset, name: str) -> bool:
    """Whether the dataset has the variable, with a finite value."""
    return name in dataset and dataset[name].size > 0 and bool(np.isfinite(dataset[name].values).any())


def values_of(dataset: xr.Dataset, name: str, algorithm: str, *dimensions: str) -> np.ndarray:
    """``[*dimensions]`` of one algorithm; values that do not depend on the algorithm or a dimension are repeated."""
    values = dataset[name].sel(algorithm=algorithm) if "algorithm" in dataset[name].dims else dataset[name]
    for dimension in dimensions:
        if dimension not in values.dims:
            values = values.expand_dims({dimension: dataset.sizes[dimension]})
    return np.asarray(values.transpose(*dimensions).values, float)


def at_last(metrics: xr.Dataset, name: str, label: str) -> np.ndarray:
    """``[seed, client]`` at the algorithm's own last evaluation; over ``unseen`` where the name begins so."""
    dimension = "unseen" if name.startswith("unseen_") else "client"
    return values_of(metrics, name, label, "seed", "evaluated_round", dimension)[:, end_of(metrics, label)]


def recorded(values: np.ndarray) -> np.ndarray:
    """``[seed, round, ...]`` up to the last round with a value: after the end of a run, joined records have NaN."""
    known = np.isfinite(values).any(axis=(0, *range(2, values.ndim)))
    return values[:, : int(np.flatnonzero(known)[-1]) + 1] if known.any() else values


def steps(axes: Axes, values: np.ndarray, **look: Any) -> None:
    """Draws the share of values at or below x; values that are not finite are ignored."""
    values = values[np.isfinite(values)]
    if values.size:
        axes.ecdf(values, **look)


def spread_of_clients(axes: Axes, shown: Shown, name: str) -> None:
    """Draws the share of clients, pooled over seeds, whose value at the last evaluation is at most x, by algorithm."""
    for algorithm, look in shown.looks.items():
        steps(axes, at_last(shown.metrics, name, algorithm), label=printable(algorithm), **look.line)
    axes.set(ylabel="share of clients at or below", ylim=(0, 1.02))
    write_percents(axes.yaxis)


def kind_of_clients(name: str) -> str:
    """The clients that a metric is about, by its name."""
    return "unseen clients" if name.startswith("unseen_") else "seen clients"


def percent(value: float, place: int | None = None) -> str:
    """A tick of an axis of shares: 0.7756 is 77.56%, and 0.5 is 50%."""
    return f"{round(100 * value, 6) + 0.0:.6g}%"


def printable(label: str, width: int = LABEL_WIDTH) -> str:
    """A label in lines of ``width`` characters, whose ``$`` and leading ``_`` mean nothing to matplotlib."""
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
        wrapped, letters = line, len(line)
        while letters > 1 and (wide := width_of(wrapped, fontsize, bold=bold)) > width:
            letters = min(letters - 1, max(1, int(letters * width / wide)))
            wrapped = "\n".join(textwrap.wrap(line, letters))
        return wrapped

    return "\n".join(map(narrow, text.split("\n")))


def legend_layout(labels: Sequence[str], width: float, fontsize: float = 10) -> tuple[list[str], int]:
    """The labels of a legend, wrapped where ``width`` inches are too narrow for them, and the number of its columns."""
    beside = 5 * fontsize / 72  # the line, and the gaps around it
    texts = [fitted(label, width - beside - 0.2, fontsize) for label in labels]
    longest = max(width_of(text, fontsize) for text in texts)
    return texts, max(1, min(len(labels), int((width - 0.2) / (longest + beside))))


# --- Fonts ---------------------------------------------------------------------------------------------------


def texts_of(metrics: xr.Dataset, *more: str) -> list[str]:
    """Texts that pictures of these metrics may show: names in coordinates, and others that are given."""
    names = [str(name) for axis in metrics.coords.values() if axis.dtype.kind in "UO" for name in axis.values.flat]
    return [*names, *more]


@contextlib.contextmanager
def fonts_for(texts: Iterable[str]) -> Iterator[None]:
    """Within it, figures that are made and drawn take installed fonts for letters that the usual font lacks.

    Letters that no font has are boxes, without a warning for each of them; ``font_note`` says so.
    """
    families, _ = _families_with(_letters(texts))
    usual = matplotlib.rcParams["font.family"]
    with matplotlib.rc_context({"font.family": [*usual, *families]}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def font_note(texts: Iterable[str]) -> str | None:
    """A sentence on letters that no installed font has; None: there are none."""
    _, lacking = _families_with(_letters(texts))
    if not lacking:
        return None
    letters = "".join(lacking[:_SHOWN]) + ("..." if len(lacking) > _SHOWN else "")
    return f"No installed font has the letters {letters}, which are boxes in pictures; another font may have them."


def _letters(texts: Iterable[str]) -> str:
    """The letters of some texts that the usual font lacks, in ascending order."""
    usual = _charmap(findfont(FontProperties()))
    return "".join(sorted({letter for text in texts for letter in text if letter.isprintable()} - usual))


@functools.lru_cache(maxsize=64)
def _families_with(letters: str) -> tuple[tuple[str, ...], str]:
    """The families that have these letters, those with most of them first, and the letters that none has."""
    families: list[str] = []
    lacking = set(letters)
    fonts = [font for font in fontManager.ttflist if letters and not font.name.startswith(_BOXES)]
    having = {font.name: lacking & _charmap(font.fname) for font in fonts}
    while lacking:
        name = max(sorted(having), key=lambda name: len(having[name] & lacking), default=None)
        if name is None or not having[name] & lacking:
            break
        families.append(name)
        lacking -= having[name]
    return tuple(families), "".join(sorted(lacking))


@functools.lru_cache(maxsize=1024)
def _charmap(path: str) -> frozenset[str]:
    """The letters of a font; none if its file cannot be read."""
    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()
