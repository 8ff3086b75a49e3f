"""A picture of what clients have: labels as stacked bars or a heat map, numbers to predict as boxes."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fljax.data import ClientCounts
from fljax.data.clients import name_text
from fljax.report.style import COLOURS, INK, dress, legend_layout, printable

# Up to so many clients are drawn one by one, with their names; more become a map or a band.
MOST_CLIENTS = 60
# Up to so many labels are told apart by colour.
MOST_LABELS = 10
NAME_WIDTH = 24  # characters of a name on an axis


def data_picture(counts: ClientCounts, heading: str = "") -> Figure:
    """Training rows of each client by label; or, if labels are not classes, the range of each client's numbers."""
    few = len(counts.clients) <= MOST_CLIENTS
    width = min(max(6.0, 2.0 + 0.28 * len(counts.clients)), 14.0) if few else 10.0
    figure = Figure(figsize=(width, 4.6), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    if counts.labels is None:
        _boxes(axes, counts) if few else _bands(axes, counts)
    elif few and counts.labels.shape[1] <= MOST_LABELS:
        _bars(axes, counts)
        handles, labels = axes.get_legend_handles_labels()
        labels, columns = legend_layout(labels, width)
        height = 4.6 + 0.22 * max(0, -(-len(labels) // columns) - 1)
        figure.set_size_inches(width, height)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    else:
        _map(figure, axes, counts)
    if heading:
        axes.set_title(printable(heading, int(width * 9)), fontsize=11, color=INK, fontweight="bold")
    axes.xaxis.label.set(fontsize=9.5, color=INK)
    axes.yaxis.label.set(fontsize=9.5, color=INK)
    return figure


def _bars(axes: Axes, counts: ClientCounts) -> None:
    assert counts.labels is not None
    place, below = np.arange(len(counts.clients)), np.zeros(len(counts.clients))
    count = counts.labels.shape[1]
    more = [colormaps["tab10"](number) for number in range(count)]
    colours = COLOURS if count <= len(COLOURS) else more
    for label, rows, colour in zip(counts.classes, counts.labels.T, colours, strict=False):
        axes.bar(place, rows, bottom=below, width=0.82, color=colour, label=printable(name_text(label)))
        below = below + rows
    axes.set_ylabel("training rows")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _clients_below(axes, counts)


def _map(figure: Figure, axes: Axes, counts: ClientCounts) -> None:
    assert counts.labels is not None
    labels = counts.labels.T
    image = axes.imshow(
        np.ma.masked_equal(labels, 0), aspect="auto", interpolation="nearest", cmap="viridis_r", origin="lower"
    )
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("training rows (white: none)", fontsize=9.5, color=INK)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    names = [_short(label) for label in counts.classes]
    if len(names) <= 30:
        axes.set_yticks(range(len(names)), names)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < len(names) else ""))
    axes.set_ylabel("label")
    _clients_below(axes, counts)


def _boxes(axes: Axes, counts: ClientCounts) -> None:
    assert counts.targets is not None
    axes.boxplot(
        [np.asarray(targets, float) for targets in counts.targets],
        positions=np.arange(len(counts.clients)),
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": COLOURS[4], "edgecolor": INK},
        medianprops={"color": COLOURS[1], "linewidth": 1.6},
        flierprops={"markersize": 2.5, "markeredgecolor": INK},
        manage_ticks=False,
    )
    axes.set_ylabel("number to predict (training rows)")
    _clients_below(axes, counts)


def _bands(axes: Axes, counts: ClientCounts) -> None:
    """Median and range of each client's numbers, with clients in the order of their medians."""
    assert counts.targets is not None
    shown = [np.asarray(targets, float) for targets in counts.targets if len(targets)]
    quartiles = np.array([np.quantile(targets, [0, 0.25, 0.5, 0.75, 1]) for targets in shown])
    quartiles = quartiles[np.argsort(quartiles[:, 2], kind="stable")]
    place = np.arange(len(quartiles))
    for low, high, colour, name in ((0, 4, COLOURS[4], "all rows"), (1, 3, COLOURS[0], "middle half")):
        look = {"color": colour, "alpha": 0.4, "linewidth": 0, "label": name}
        axes.fill_between(place, quartiles[:, low], quartiles[:, high], step="mid", **look)
    axes.step(place, quartiles[:, 2], where="mid", color=COLOURS[1], label="median")
    axes.legend(frameon=False, fontsize=9)
    axes.set_ylabel("number to predict (training rows)")
    axes.set_xlabel("clients, in the order of their medians")


def _clients_below(axes: Axes, counts: ClientCounts) -> None:
    """Names of clients on the horizontal axis, if there is room for them; a line where the unseen clients begin."""
    count = len(counts.clients)
    names = [_short(client) for client in counts.clients]
    if count <= MOST_CLIENTS:
        long = max(map(len, names)) > 3
        size = 9 if count <= 30 else 7
        axes.set_xticks(range(count), names, rotation=90 if long else 0, fontsize=size)
    seen = int(np.sum(~counts.unseen))
    if seen < count:
        axes.axvline(seen - 0.5, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set_xlim(-0.6, count - 0.4)
    axes.set_xlabel("client" if seen == count else f"client (right of the line: {count - seen} unseen ones)")


def _short(name: object) -> str:
    text = name_text(name)
    return printable(text if len(text) <= NAME_WIDTH else f"{text[: NAME_WIDTH - 3]}...", NAME_WIDTH + 1)
