"""Pictures and a table by client: what they have, and which of them gain.

What clients have are labels as stacked bars or a heat map, or numbers to predict as boxes.
"""

from __future__ import annotations

import html
import math

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fljax.data import ClientCounts
from fljax.data.clients import name_text
from fljax.report.style import COLOURS, INK, STANDALONE, dress, legend_layout, printable, styles
from fljax.results.clients import ClientGain, gains

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


# --- Which clients gain ---------------------------------------------------------------------------------------


def gains_picture(metrics: xr.Dataset) -> Figure | None:
    """The gain of every client over its standalone model, by algorithm; None without gains.

    Few clients have a line each, by name, in the order of their mean gain. More are drawn as curves, each algorithm's
    clients in the order of their own gains.
    """
    found = [each for each in gains(metrics) if math.isfinite(each.gain)]
    if not found:
        return None
    labels = [
        label for label in map(str, metrics["algorithm"].values) if any(each.algorithm == label for each in found)
    ]
    names = _in_order(found)
    few = len(names) <= MOST_CLIENTS
    figure = Figure(figsize=(9.0, 1.8 + 0.24 * len(names) if few else 4.6), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    looks = styles(labels)
    for place, label in enumerate(labels):
        own = {(each.unseen, each.client): each for each in found if each.algorithm == label}
        shown = printable(label)
        if few:
            height = [names.index(key) + 0.5 * ((place + 1) / (len(labels) + 1) - 0.5) for key in own]
            spread = [each.std if math.isfinite(each.std) else 0.0 for each in own.values()]
            gain = [each.gain for each in own.values()]
            axes.errorbar(
                gain, height, xerr=spread, fmt="o", markersize=4, linewidth=1, color=looks[label].colour, label=shown
            )
        else:
            values = np.sort([each.gain for each in own.values()])
            look = {"color": looks[label].colour, "linestyle": looks[label].dash, "label": shown}
            axes.step(np.linspace(0, 1, len(values)), values, where="mid", **look)
    words = f"gain in {found[0].measure} over the standalone model (right of the line, or above it: better)"
    if few:
        axes.axvline(0, color=STANDALONE, linewidth=1)
        axes.set_yticks(range(len(names)), [f"{_short(name)}{' (unseen)' * unseen}" for unseen, name in names])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(words)
    else:
        axes.axhline(0, color=STANDALONE, linewidth=1)
        axes.set_xlabel("share of the clients, in the order of their gain")
        axes.set_ylabel(f"gain in {found[0].measure}")
    handles, shown_labels = axes.get_legend_handles_labels()
    shown_labels, columns = legend_layout(shown_labels, 9.0)
    figure.legend(handles, shown_labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    return figure


def _in_order(found: list[ClientGain]) -> list[tuple[bool, str]]:
    """The clients, unseen ones last, with the largest mean gain at the end of each group (the top of a picture)."""
    of_clients: dict[tuple[bool, str], list[float]] = {}
    for each in found:
        of_clients.setdefault((each.unseen, each.client), []).append(each.gain)
    return sorted(of_clients, key=lambda key: (key[0], float(np.mean(of_clients[key]))))


def gains_table(metrics: xr.Dataset) -> str:
    """Which clients gain as HTML: a line for each client, and for each algorithm its value and gain."""
    found = gains(metrics)
    labels = [str(label) for label in metrics["algorithm"].values]
    by_client: dict[tuple[bool, str], dict[str, ClientGain]] = {}
    for each in found:
        by_client.setdefault((each.unseen, each.client), {})[each.algorithm] = each
    measure = found[0].measure if found else "accuracy"
    heads = [
        "Client",
        f"Standalone {measure}",
        *(f"{label}: {words}" for label in labels for words in (measure, "gain")),
    ]
    lines = []
    for (unseen, client), own in by_client.items():
        cells = [client + " (unseen)" * unseen, _number(next(iter(own.values())).standalone)]
        for label in labels:
            each = own.get(label)
            spread = "" if each is None or math.isnan(each.std) else f" ± {each.std:.3f}"
            gain = "–" if each is None or math.isnan(each.gain) else f"{each.gain:+.3f}{spread}"
            cells += ["–" if each is None else _number(each.value), gain]
        lines.append(cells)
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    framed = f'<div class="wide">{table}</div>'
    return framed if len(lines) <= MOST_CLIENTS else f"<details><summary>All clients</summary>{framed}</details>"


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"
