"""Pictures and tables by client: what clients have, require and get under every method, who gains and who leaves."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fljax.core import pages
from fljax.data import ClientCounts
from fljax.data.clients import name_text
from fljax.metrics import incentivised_participation_rate, opt_outs
from fljax.report import style
from fljax.report.kinds.sources import HasResults, Material, Source, having, of_clients, rates, read
from fljax.report.tables import with_spread
from fljax.results import folders
from fljax.results.clients import ClientGain, GainShare, gain_shares, gains, gains_at_best, names_of
from fljax.results.events import Results, end_of
from fljax.results.records import last_clusters
from fljax.results.sweeps import axes_of, cells_of, places_of

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
    axes = style.panel(figure)
    if counts.labels is None:
        assert counts.targets is not None
        numbers = [np.asarray(targets, float) for targets in counts.targets]
        _boxes(axes, numbers) if few else _bands(axes, numbers)
    elif few and counts.labels.shape[1] <= MOST_LABELS:
        _bars(axes, counts, counts.labels)
        style.legend_below(figure, style.labelled([axes]))
    else:
        _map(axes, counts, counts.labels.T)
    if few or counts.labels is not None:
        _clients_below(axes, counts)
    if heading:
        axes.set_title(style.printable(heading, 400))
        style.finish(axes)
    return figure


def _bars(axes: Axes, counts: ClientCounts, labels: np.ndarray) -> None:
    place, below = np.arange(len(counts.clients)), np.zeros(len(counts.clients))
    count = labels.shape[1]
    more = [colormaps["tab10"](number) for number in range(count)]
    colours = style.COLOURS if count <= len(style.COLOURS) else more
    for label, rows, colour in zip(counts.classes, labels.T, colours, strict=False):
        axes.bar(place, rows, bottom=below, width=0.82, color=colour, label=style.printable(name_text(label)))
        below = below + rows
    axes.set_ylabel("training rows")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _map(axes: Axes, counts: ClientCounts, labels: np.ndarray) -> None:
    image = axes.imshow(
        np.ma.masked_equal(labels, 0), aspect="auto", interpolation="nearest", cmap="viridis_r", origin="lower"
    )
    axes.grid(visible=False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("training rows (white: none)", fontsize=9.5, color=style.INK)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    names = [_short(label) for label in counts.classes]
    if len(names) <= 30:
        axes.set_yticks(range(len(names)), names)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < len(names) else ""))
    axes.set_ylabel("label")


def _boxes(axes: Axes, numbers: Sequence[np.ndarray]) -> None:
    axes.boxplot(
        numbers,
        positions=np.arange(len(numbers)),
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": style.COLOURS[4], "edgecolor": style.INK},
        medianprops={"color": style.COLOURS[1], "linewidth": 1.6},
        flierprops={"markersize": 2.5, "markeredgecolor": style.INK},
        manage_ticks=False,
    )
    axes.set_ylabel("number to predict (training rows)")


def _bands(axes: Axes, numbers: Sequence[np.ndarray]) -> None:
    """Median and range of each client's numbers, with clients in the order of their medians."""
    quartiles = np.array([np.quantile(each, [0, 0.25, 0.5, 0.75, 1]) for each in numbers if len(each)])
    quartiles = quartiles[np.argsort(quartiles[:, 2], kind="stable")]
    place = np.arange(len(quartiles))
    for low, high, colour, name in ((0, 4, style.COLOURS[4], "all rows"), (1, 3, style.COLOURS[0], "middle half")):
        look = {"color": colour, "alpha": 0.4, "linewidth": 0, "label": name}
        axes.fill_between(place, quartiles[:, low], quartiles[:, high], step="mid", **look)
    axes.step(place, quartiles[:, 2], where="mid", color=style.COLOURS[1], label="median")
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
        axes.axvline(seen - 0.5, color=style.INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set_xlim(-0.6, count - 0.4)
    axes.set_xlabel("client" if seen == count else f"client (right of the line: {count - seen} unseen ones)")


def _short(name: object) -> str:
    """A name that fits beside an axis; long ones lack their middle, since they often differ at their end."""
    text = name_text(name)
    if len(text) > NAME_WIDTH:
        kept = NAME_WIDTH - 3
        text = f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"
    return style.printable(text, NAME_WIDTH + 1)


# --- Which clients gain ---------------------------------------------------------------------------------------

Client = tuple[bool, str]  # whether it is unseen, and its name
# By algorithm and client: a number and its spread, which may be NaN.
Marks = dict[str, dict[Client, tuple[float, float]]]


def gains_picture(metrics: xr.Dataset) -> Figure | None:
    """The gain of every client over its standalone model, by algorithm; None without gains."""
    swept = bool(axes_of(metrics))
    found = [each for each in (gains_at_best(metrics) if swept else gains(metrics)) if math.isfinite(each.gain)]
    if not found:
        return None
    shares = [each for each in gain_shares(metrics) if math.isfinite(each.share)] if swept else []
    # Few clients have a line each; more are curves, each algorithm's clients in the order of their own gains.
    names, where = _in_order(found), " in each algorithm's best cell" if swept else ""
    few, width = len(names) <= MOST_CLIENTS, 13.0 if swept else 9.0
    figure = Figure(figsize=(width, 1.8 + 0.24 * len(names) if few else 4.6), layout="constrained")
    panels = [style.panel(figure, 1, 1 + swept, place) for place in range(1 + swept)]
    looks = style.styles(list(dict.fromkeys(each.algorithm for each in (*found, *shares))))
    drawn: Marks = {}
    for each in found:
        drawn.setdefault(each.algorithm, {})[each.unseen, each.client] = each.gain, each.std
    side = "right of" if few else "above"
    words = f"gain in {found[0].measure} over the standalone model{where} ({side} the line: better)"
    _draw(panels[0], drawn, names if few else None, looks, words)
    at_zero = panels[0].axvline if few else panels[0].axhline
    at_zero(0, color=style.STANDALONE, linewidth=1)
    if swept:
        drawn = {}
        for each in shares:
            drawn.setdefault(each.algorithm, {})[each.unseen, each.client] = each.share, math.nan
        axes = panels[1]
        _draw(axes, drawn, names if few else None, looks, "share of all cells and seeds in which the client gains")
        axis, limit = (axes.xaxis, axes.set_xlim) if few else (axes.yaxis, axes.set_ylim)
        style.write_percents(axis)
        limit(-0.04, 1.04)
    style.legend_below(figure, style.labelled(panels[:1]))
    return figure


def _draw(axes: Axes, marks: Marks, names: list[Client] | None, looks: Mapping[str, style.Style], words: str) -> None:
    """A line for each client of ``names``, or a sorted curve for each algorithm; ``words`` name the axis."""
    for place, (label, marked) in enumerate(marks.items()):
        shown, look = style.printable(label), looks[label]
        if names is None:
            values = np.sort([value for value, _ in marked.values()])
            places = np.linspace(0, 1, len(values))
            axes.step(places, values, where="mid", color=look.colour, linestyle=look.dash, label=shown)
            continue
        known = {client: mark for client, mark in marked.items() if client in names}
        height = [names.index(client) + 0.5 * ((place + 1) / (len(marks) + 1) - 0.5) for client in known]
        values, spread = (list(column) for column in zip(*known.values(), strict=True)) if known else ([], [])
        spread = np.nan_to_num(np.asarray(spread, float), posinf=0.0)
        bars = {"fmt": "o", "markersize": 4, "linewidth": 1, "color": look.colour, "label": shown}
        axes.errorbar(values, height, xerr=spread, **bars)
    if names is None:
        axes.set_xlabel(f"share of the clients, in the order of their {words.split()[0]}")
        axes.set_ylabel(style.fitted(words, 3.4, 10))
    else:
        axes.set_yticks(range(len(names)), [f"{_short(name)}{' (unseen)' * unseen}" for unseen, name in names])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(style.fitted(words, 5.6, 10))


def _in_order(found: list[ClientGain]) -> list[Client]:
    """The clients, unseen ones last, with the largest mean gain at the end of each group (the top of a picture)."""
    of_clients: dict[Client, list[float]] = {}
    for each in found:
        of_clients.setdefault((each.unseen, each.client), []).append(each.gain)
    return sorted(of_clients, key=lambda key: (key[0], float(np.mean(of_clients[key]))))


def gains_table(metrics: xr.Dataset) -> str:
    """Which clients gain as HTML: a line for each client, and for each algorithm its value and gain."""
    swept = bool(axes_of(metrics))
    found = gains_at_best(metrics) if swept else gains(metrics)
    shares = {each[:3]: each for each in gain_shares(metrics)} if swept else {}
    labels = list(dict.fromkeys(each.algorithm for each in found))
    by_client: dict[Client, dict[str, ClientGain]] = {}
    for each in found:
        by_client.setdefault((each.unseen, each.client), {})[each.algorithm] = each
    measure = found[0].measure if found else "accuracy"
    words = [f"standalone {measure}", measure, "gain", "gains in"] if swept else [measure, "gain"]
    heads = [f"{label}: {word}" for label in labels for word in words]
    # A sweep's best cells may have different standalone models.
    heads = ["Client", *heads] if swept else ["Client", f"Standalone {measure}", *heads]
    lines: list[list[str]] = []
    for (unseen, client), own in by_client.items():
        first = [client + " (unseen)" * unseen]
        if not swept:
            first.append(_number(next(iter(own.values())).standalone))
        of_labels = [_gain_cells(own.get(label), shares.get((label, client, unseen)), swept) for label in labels]
        lines.append([*first, *(cell for cells in of_labels for cell in cells)])
    return pages.long_table([heads, *lines], "All clients", MOST_CLIENTS)


def _gain_cells(gain: ClientGain | None, share: GainShare | None, swept: bool) -> list[str]:
    """What one algorithm does for one client."""
    cells = ["–", "–"] if gain is None else [_number(gain.value), with_spread(gain.gain, gain.std, sign="+")]
    alone = math.nan if gain is None else gain.standalone
    return [_number(alone), *cells, _share(share)] if swept else cells


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _share(share: GainShare | None) -> str:
    return "–" if share is None or not share.count else f"{100 * share.share:.0f}% of {share.count}"


# Columns of the table that are metrics by client, with their names in results.
_METRICS = {
    "test_accuracy": "test_accuracy",
    "standalone_accuracy": "standalone_test_accuracy",
    "test_loss": "test_loss",
    "standalone_loss": "standalone_test_loss",
    "global_loss": "global_test_loss",
    "required_loss": "required_loss",
    "gain": "personalised_model_accuracy_gain",
    "opt_out_threshold": "opt_out_threshold",
}
# Columns that are the last recorded values by client, with the names of the records, the first that exists.
_RECORDS = {"contribution": ("contribution",), "reward": ("rate", "share"), "tokens": ("tokens",)}
# Why a client would leave, by the column that says so.
REASONS = {
    "prefers_standalone": "no lower loss than alone",
    "requirement_unmet": "requirement not met",
    "opts_out": "gain below its threshold",
}


def leaving(source: Source) -> pd.DataFrame:
    """Who would leave each method at its last evaluation, and why: a line for each algorithm, seed and client.

    A client would leave for one or several ``reasons``:

    - ``prefers_standalone``: not ``test_loss < standalone_loss``, as the incentivised participation rate counts;
    - ``requirement_unmet``: not ``global_loss < required_loss``, as the appeal of the global model counts;
    - ``opts_out``: ``gain < opt_out_threshold``, as IP-FL's opt-outs count. The gain is the accuracy gained over the
      baseline of the comparison.

    Of a sweep there is a line for each cell, too, and its axes are columns behind the algorithm.

    What a method does for the client stands beside them: its ``contribution``, its ``reward`` (IAFL's rate, or CGSV's
    share of the entries of the model), its ``tokens`` in the last round, its ``cluster`` (``client_clusters``), and its
    ``participation`` (the share of rounds in which it trained). ``left``: whether it left (scenario ``opting_out``).

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.

    Returns:
      The table. Missing numbers are NaN, missing decisions ``pd.NA``: ``would_leave`` is missing where results decide
      by no reason. ``clients`` is "seen" or "unseen", ``client`` the number among these, and ``name`` the client's name
      where it has one in all seeds (and cells), or else the number.

    Raises:
      ValueError: if a folder has no results.
    """
    results = folders.load_results(pathlib.Path(source)) if isinstance(source, str | pathlib.Path) else source
    if not isinstance(results, Material) and isinstance(results, HasResults) and axes_of(results.metrics):
        return _of_cells(results.metrics, results.records)
    material = read(source)
    parts = [
        _part(material, label, kind)
        for label in material.labels
        for kind in ("client", "unseen")
        if material.metrics.sizes.get(kind, 0)
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _of_cells(metrics: xr.Dataset, records: xr.Dataset) -> pd.DataFrame:
    """The table of every cell of a sweep, one behind the other."""
    tables = list[pd.DataFrame]()
    for values, cell in cells_of(metrics, axes_of(metrics)):
        at = places_of(metrics, values)
        table = leaving(Results(cell, records.isel(at, drop=True, missing_dims="ignore")))
        for column, (name, value) in enumerate(values.items(), 1):
            table.insert(column, name, value, allow_duplicates=True)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _part(material: Material, label: str, kind: str) -> pd.DataFrame:
    """The lines of one algorithm's seen or unseen clients."""
    metrics, prefix = material.metrics, "unseen_" if kind == "unseen" else ""
    seeds, count = metrics.sizes["seed"], metrics.sizes[kind]
    nothing = np.full((seeds, count), np.nan)
    values = {
        column: style.at_last(metrics, prefix + name, label) if label in having(material, prefix + name) else nothing
        for column, name in _METRICS.items()
    }
    decisions = _decisions(material, label, prefix, values)
    records = material.records(label)
    for column, names in _RECORDS.items():
        last = (None if prefix else _last_record(records, name, count, metrics, label) for name in names)
        values[column] = next((known for known in last if known is not None), nothing)
    clusters = None if prefix else last_clusters(records, count)
    values["cluster"] = nothing if clusters is None else clusters
    participation = None if prefix else rates(material, label, "participation")
    values["participation"] = nothing if participation is None else participation
    left = None if prefix else _last_record(records, "opted_out", count, metrics, label)
    decisions["left"] = nothing if left is None else left
    seed, client = np.repeat(metrics["seed"].values, count), np.tile(np.arange(count), seeds)
    kinds, names = "unseen" if prefix else "seen", np.tile(names_of(metrics, kind), seeds)
    table = pd.DataFrame({"algorithm": label, "seed": seed, "clients": kinds, "client": client, "name": names})
    table = table.assign(**{column: numbers.ravel() for column, numbers in values.items()})
    table = table.assign(**{column: pd.array(each.ravel(), dtype="boolean") for column, each in decisions.items()})
    why = [
        "; ".join(words for column, words in REASONS.items() if decisions[column].ravel()[at] == 1)
        for at in range(seeds * count)
    ]
    return table.assign(reasons=why)


def _decisions(material: Material, label: str, prefix: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """1 (leaves), 0 or NaN (unknown) ``[seed, client]`` by column; the last one is whether any reason holds."""
    gain = values["gain"]
    if (name := f"{prefix}personalised_model_accuracy_gain") in material.metrics:
        gain = gain.astype(material.metrics[name].dtype)  # which says how far rounding may move a gain
    # Metrics over one client alone are the decisions of that client.
    alone = values["test_loss"][..., None], values["standalone_loss"][..., None]
    required = values["global_loss"][..., None], values["required_loss"][..., None]
    decided = {
        "prefers_standalone": 1 - np.asarray(incentivised_participation_rate(*alone), float),
        "requirement_unmet": 1 - np.asarray(incentivised_participation_rate(*required), float),
        "opts_out": np.asarray(
            opt_outs(gain[..., None], threshold=values["opt_out_threshold"].astype(gain.dtype)[..., None]), float
        ),
    }
    # Standalone training itself cannot be preferred to itself: its metric is NaN in results.
    if label not in having(material, f"{prefix}incentivised_participation_rate"):
        decided["prefers_standalone"] = np.full_like(values["test_loss"], np.nan)
    every = np.stack(list(decided.values()))
    decided["would_leave"] = np.where((every == 1).any(axis=0), 1.0, np.where(np.isnan(every).all(axis=0), np.nan, 0.0))
    return decided


def _last_record(records: xr.Dataset, name: str, count: int, metrics: xr.Dataset, label: str) -> np.ndarray | None:
    """``[seed, client]`` in the last round before the last evaluation that has values; None if there is no record."""
    values = of_clients(records, name, count)
    if values is None:
        return None
    done = metrics["evaluated_round"].values[end_of(metrics, label)]
    known = (records["round"].values < done) & np.isfinite(values).any(axis=(0, 2))
    return values[:, np.flatnonzero(known)[-1]] if known.any() else None
