"""What clients are worth: tables as text, a picture, and a page.

By label, ``tables`` has the values and payoffs of coalitions (``to_dataset``), ``worths`` what they say of each client.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fljax.core import pages
from fljax.core.files import write
from fljax.core.plain import as_csv
from fljax.report import style
from fljax.report.estimators import estimator_rows, estimator_sentences
from fljax.report.page import attached_to, png
from fljax.report.tables import NOT_SHARES, title

MEASURES = {
    "shapley": "Shapley",
    "banzhaf": "Banzhaf",
    "beta_shapley": "Beta Shapley (4, 1)",
    "leave_one_out": "leave one out",
    "least_core": "least core",
}
LAWS = {
    "superadditivity": "two groups are together worth the sum of both, or more",
    "monotonicity": "no client makes a coalition worse",
    "convexity": "a client adds more to larger coalitions",
}
PICTURE, PAGE, TABLE = "worth.png", "worth.html", "worth.csv"
_MANY = 400  # points of coalitions are fainter from here
_NAMED = 20  # clients whose names are on an axis
_SHOWN = 14  # letters of a name
_ROUNDING = 1e-9


def worth_rows(worth: xr.Dataset) -> list[list[str]]:
    """The table of one algorithm as text: a row of headings, a row for each client, and one of sums."""
    names = [str(name) for name in worth["measure"].values]
    rows = [["client", *(MEASURES.get(name, name) for name in names)]]
    for place, client in enumerate(worth["name"].values):
        rows.append([str(client), *(_cell(worth.isel(client=place).sel(measure=name)) for name in names)])
    sums = worth["mean"].sum("client", skipna=False)
    rows.append(["sum", *(_number(float(sums.sel(measure=name))) for name in names)])
    return rows


def _cell(entry: xr.Dataset) -> str:
    mean, half = float(entry["mean"]), (float(entry["high"]) - float(entry["low"])) / 2
    return _number(mean) + (f" ± {half:.4f}" if np.isfinite(half) else "")


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"


def worth_sentences(worth: xr.Dataset) -> list[str]:
    """What the table of one algorithm says beside the clients: its ends, intervals, least core and violated laws."""
    seeds, metric = worth.sizes["seed"], str(worth.attrs["metric"])
    ends = {"all clients": float(worth["everybody"]), "nobody": float(worth["nobody"])}
    known = [f"{_number(value)} with {who}" for who, value in ends.items() if np.isfinite(value)]
    sentences = [f"v(S) is {metric}{': ' if known else ''}{', '.join(known)}."]
    if seeds > 1:
        sentences.append(f"±: half of a {100 * worth.attrs['level']:.0f} % t-interval over {seeds} seeds.")
    else:
        sentences.append("One seed has no error bars.")
    if np.isfinite(worth["excess"]):
        excess, stable = float(worth["excess"]), float(worth["stable"])
        alike = stable == (0 if excess > _ROUNDING else 1)
        of_seeds = (
            " So it is with every seed." if alike else f" With {100 * stable:.0f} % of the seeds it is not empty."
        )
        of_seeds = of_seeds if seeds > 1 else ""
        if excess > _ROUNDING:
            words = f"The core is empty: whatever the payoffs, some coalition gets {excess:.4f} less than its value."
        else:
            words = f"The core is not empty: some payoffs give each coalition {abs(excess):.4f} more than its value."
        sentences.append(words + of_seeds)
    for place, law in enumerate(worth["law"].values if "law" in worth.coords else ()):
        entry = worth.isel(law=place)
        count, unknown = int(entry["violations"]), int(entry["unknown"])
        words = f"{str(law).capitalize()} ({LAWS[str(law)]}): "
        if count:
            share, largest = 100 * float(entry["share"]), float(entry["largest"])
            words += f"{count:,} violation{'s' * (count > 1)} ({share:.1f} %), the largest of {largest:.4f}"
        else:
            words += "no violation"
        sentences.append(words + (f"; {unknown:,} are not known." if unknown else "."))
    return sentences


def worth_table(worths: Mapping[str, xr.Dataset]) -> bytes:
    """All tables as CSV: a line for each algorithm, measure and client, with the value of each seed."""
    frames = list[pd.DataFrame]()
    for dataset in [dataset.expand_dims(algorithm=[label]) for label, dataset in worths.items()]:
        frame = dataset[["mean", "low", "high"]].to_dataframe().reset_index()
        seeds = dataset["worth"].to_dataframe()["worth"].unstack("seed").add_prefix("seed_").reset_index()
        columns = ["algorithm", "measure", "client"]
        frames.append(frame[[*columns, "name", "mean", "low", "high"]].merge(seeds, on=columns))
    return as_csv(pd.concat(frames)).encode()


# --- The picture ------------------------------------------------------------------------------------------------


def worth_picture(tables: Mapping[str, xr.Dataset], worths: Mapping[str, xr.Dataset], heading: str = "") -> Figure:
    """Three panels: what clients are worth, values by the size of the coalition, and payoffs together and alone."""
    looks = style.styles(list(tables))
    figure = Figure(figsize=(14, 4.9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr]
    style.head(figure, heading, size=15)
    panels = [style.panel(figure, 1, 3, place) for place in range(3)]
    _worth_by_client(panels[0], worths, looks)
    _value_by_size(panels[1], tables, looks)
    _payoffs(panels[2], tables, looks)
    for axes in panels:
        style.finish(axes)
    if len(handles := style.labelled(panels)) > 1:
        style.legend_below(figure, handles)
    return figure


def _worth_by_client(axes: Axes, worths: Mapping[str, xr.Dataset], looks: Mapping[str, style.Style]) -> None:
    """Points with intervals over seeds; of several algorithms beside each other."""
    drawn: set[str] = set()
    bars = False
    for place, (label, worth) in enumerate(worths.items()):
        measures = [name for name in ("shapley", "leave_one_out") if name in worth["measure"].values]
        if not measures:
            continue
        entry = worth.sel(measure=measures[0])
        drawn.add(MEASURES[measures[0]])
        at = np.arange(worth.sizes["client"]) + _beside(place, len(worths))
        mean, low, high = (np.asarray(entry[name].values, float) for name in ("mean", "low", "high"))
        ends = None
        if np.isfinite(low).any():
            ends, bars = np.nan_to_num(np.stack([mean - low, high - mean])), True
        axes.errorbar(at, mean, ends, fmt="o", color=looks[label].colour, capsize=3, elinewidth=1.2, markersize=5)
    axes.axhline(0, color=style.INK, linewidth=0.8)
    what = " and ".join(sorted(drawn)) or "No"
    level = next(iter(worths.values())).attrs["level"] if worths else 0.95
    note = f"\n{100 * level:.0f} % intervals over seeds" if bars else ""
    axes.set_title(f"{what} values of clients{note}")
    _clients_below(axes, worths)
    _as_shares(axes, worths)


def _value_by_size(axes: Axes, tables: Mapping[str, xr.Dataset], looks: Mapping[str, style.Style]) -> None:
    """A point for each coalition, the mean over seeds, and a line through the means of each size."""
    for place, (label, table) in enumerate(tables.items()):
        with np.errstate(invalid="ignore"):
            value = np.asarray(table["value"].mean("seed").values, float)
        size, known = np.asarray(table["member"].sum("client").values), np.isfinite(value)
        sizes = np.unique(size[known])
        means = np.array([value[known & (size == count)].mean() for count in sizes])
        shift = 0.6 * _beside(place, len(tables))
        faint = 0.5 if len(value) < _MANY else 0.15
        axes.scatter(size[known] + shift, value[known], s=14, alpha=faint, color=looks[label].colour, linewidth=0)
        axes.plot(sizes, means, label=style.printable(label), **looks[label].line)
    axes.set_title("Value of coalitions by size\nline: mean of a size")
    axes.set_xlabel("number of clients in the coalition")
    metric = next((str(table.attrs["metric"]) for table in tables.values()), "")
    axes.set_ylabel(_title(metric))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _as_shares(axes, tables)


def _payoffs(axes: Axes, tables: Mapping[str, xr.Dataset], looks: Mapping[str, style.Style]) -> None:
    """What each client reaches with all others, filled, and alone, hollow; means over seeds."""
    payoff, several = "", False
    for place, (label, table) in enumerate(tables.items()):
        payoff = str(table.attrs["payoff"])
        size = np.asarray(table["member"].sum("client").values)
        mean = np.asarray(table["payoff"].mean("seed").values, float)
        clients = table.sizes["client"]
        at = np.arange(clients) + _beside(place, len(tables))
        together = mean[size == clients][0] if (size == clients).any() else np.full(clients, np.nan)
        alone = np.full(clients, np.nan)
        single = np.flatnonzero(size == 1)
        client = table["member"].values[single].argmax(axis=1)
        alone[client] = mean[single, client]
        look = looks[label].colour
        axes.vlines(at, np.fmin(alone, together), np.fmax(alone, together), color=look, linewidth=1, alpha=0.5)
        axes.plot(at, together, marker="o", linestyle="none", markersize=6, color=look)
        axes.plot(at, alone, marker="o", linestyle="none", markersize=6, markerfacecolor="white", color=look)
        several = several or bool(np.isfinite(alone).any())
    hollow = "\nfilled: all together; hollow: alone" if several else "\nall together"
    axes.set_title(f"{_title(payoff)} of clients{hollow}")
    _clients_below(axes, tables)
    if payoff.endswith("accuracy"):
        style.write_percents(axes.yaxis)


def _beside(place: int, count: int) -> float:
    """A shift from a client's place, so that algorithms do not hide each other."""
    return 0.0 if count == 1 else 0.5 * (place / (count - 1) - 0.5)


def _title(metric: str) -> str:
    """``-average_loss`` becomes ``Minus average loss``."""
    plain = metric.removeprefix("-")
    words = title(plain) if plain != "test_accuracy" else "Test accuracy"
    words = words.replace("_", " ")
    return words if plain == metric else f"Minus {words[:1].lower()}{words[1:]}"


def _clients_below(axes: Axes, datasets: Mapping[str, xr.Dataset]) -> None:
    names = next(([str(name) for name in dataset["name"].values] for dataset in datasets.values()), [])
    if len(names) <= _NAMED:
        short = [
            style.printable(name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}...", _SHOWN + 1) for name in names
        ]
        long = max(map(len, short), default=0) > 3
        axes.set_xticks(range(len(names)), short, rotation=90 if long else 0)
    axes.set_xlabel("client")


def _as_shares(axes: Axes, datasets: Mapping[str, xr.Dataset]) -> None:
    """Percent on the vertical axis where the values are accuracies or rates."""
    metrics = {str(dataset.attrs["metric"]).removeprefix("unseen_") for dataset in datasets.values()}
    if metrics and all("accuracy" in name or "rate" in name for name in metrics) and not metrics & NOT_SHARES:
        style.write_percents(axes.yaxis)


# --- The files of a folder --------------------------------------------------------------------------------------


def write_worth(
    folder: pathlib.Path,
    tables: Mapping[str, xr.Dataset],
    worths: Mapping[str, xr.Dataset],
    heading: str,
    notes: Mapping[str, Sequence[str]],  # further sentences: what it cost, what diverged
    comparisons: Mapping[str, xr.Dataset],  # of estimators with retraining
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes ``worth.png`` and ``worth.html`` into a folder; returns their paths."""
    names = [str(name) for table in tables.values() for name in table["name"].values]
    with style.fonts_for([*names, *tables, *style.texts_of(xr.Dataset(), heading)]):
        content = png(worth_picture(tables, worths, heading))
    path, page = folder / PICTURE, folder / PAGE
    write(path, content)
    parts = [pages.wide(pages.image(content, "What clients are worth, and the values of coalitions"))]
    for label, worth in worths.items():
        said = [*worth_sentences(worth), *notes.get(label, ())]
        parts.append(pages.section(label, pages.wide(pages.table(worth_rows(worth))), pages.note(*said)))
        if label in comparisons:
            compared = comparisons[label]
            parts += [pages.wide(pages.table(estimator_rows(compared))), pages.note(*estimator_sentences(compared))]
    write(page, pages.page(heading, parts, attached_to(folder)).encode())
    return path, page
