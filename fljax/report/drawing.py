"""Panels, each drawn on one Axes, and figures made of panels.

Figures are made without pyplot, so drawing does not change the caller's plots and backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fljax.metrics import over_seeds
from fljax.report import style
from fljax.report.clusters import cluster_panels
from fljax.report.kinds.by_client import MATRIX, heat_map, matrices
from fljax.report.kinds.sources import of_rows
from fljax.report.tables import TITLES, is_share, title
from fljax.results.events import end_of
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import better, names_of

MAIN = ("incentivised_participation_rate", "preferred_model_accuracy", "average_accuracy")

MOST_LINES = 14  # of labels beside an axis
LABELS_HEIGHT = 165.0  # points of all labels beside an axis


def panels(metrics: xr.Dataset, records: xr.Dataset) -> dict[str, style.Panel]:
    """The panels, by name, for which the results have numbers."""
    looks, found = style.styles_of(metrics), dict[str, style.Panel]()
    shown = style.Shown(metrics, records, looks)
    for prefix in ("", "unseen_"):
        # Of a task without a score, the losses.
        for name in MAIN if style.has(metrics, f"{prefix}average_accuracy") else (*MAIN, "average_loss"):
            if style.has(metrics, prefix + name):
                found[prefix + name] = partial(_over_rounds, shown=shown, name=prefix + name)
    for prefix in ("", "unseen_"):
        if style.has(metrics, f"{prefix}test_accuracy"):
            found[f"{prefix}test_accuracy"] = partial(_distribution, shown=shown, prefix=prefix)
    for prefix in ("", "unseen_"):
        for name in names_of(metrics):
            pooled = f"{prefix}pooled_score_{name}"
            if style.has(metrics, pooled):
                if metrics[pooled].notnull().any(["algorithm", "seed"]).sum() > 1:
                    found[pooled] = partial(_over_rounds, shown=shown, name=pooled)
                found[f"{prefix}score_{name}"] = partial(_scores, shown=shown, prefix=prefix, name=name)
    for label in looks if style.has(metrics, MATRIX) else ():
        words = f"Confusion matrix, all clients\n{style.printable(label, 38)}"
        found[f"confusion_{label}"] = partial(heat_map, counts=matrices(metrics, label).sum(axis=0), heading=words)
    found |= {name: partial(draw, shown=shown) for name, draw in OF_RECORDS.items() if style.has(records, name)}
    found |= cluster_panels(shown)
    if style.has(metrics, "seconds_train"):
        found["seconds"] = partial(_seconds, shown=shown)
    return found


def figures(metrics: xr.Dataset, records: xr.Dataset) -> dict[str, Figure]:
    """One figure for each panel.

    Args:
      metrics: variables over algorithm, seed, evaluated_round, client and unseen; absent variables are not drawn.
      records: variables over algorithm, seed, round and row.
    """
    return {name: _figure(draw, metrics) for name, draw in panels(metrics, records).items()}


def curves(metrics: xr.Dataset) -> dict[str, Figure]:
    """One figure over rounds for each metric of the table that has numbers; of unseen clients, the main ones."""
    shown = style.Shown(metrics, xr.Dataset(), style.styles_of(metrics))
    names = [*TITLES, "average_loss", *(f"unseen_{name}" for name in MAIN)]
    drawn = {name: partial(_over_rounds, shown=shown, name=name) for name in names if style.has(metrics, name)}
    return {name: _figure(draw, metrics) for name, draw in drawn.items()}


def picture(metrics: xr.Dataset, records: xr.Dataset, heading: str = "") -> Figure:
    """All panels in one figure, three to a row, under one legend."""
    found = list(panels(metrics, records).values())
    rows = max(1, -(-len(found) // 3))
    figure = Figure(figsize=(14, 3.9 * rows + 1.0), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.04)  # type: ignore[union-attr]
    style.head(figure, heading, size=15)
    for place, draw in enumerate(found):
        _draw(draw, style.panel(figure, rows, 3, place))
    _legend(figure, metrics)
    return figure


def _figure(draw: style.Panel, metrics: xr.Dataset) -> Figure:
    """A figure of one panel."""
    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    _draw(draw, style.panel(figure))
    _legend(figure, metrics)
    return figure


def _draw(draw: style.Panel, axes: Axes) -> None:
    draw(axes)
    style.finish(axes)


def _legend(figure: Figure, metrics: xr.Dataset) -> None:
    """One legend for all panels: each algorithm once, in the order of the results."""
    if handles := style.labelled(figure.axes):
        order = [name for name in map(style.printable, map(str, metrics["algorithm"].values)) if name in handles]
        order += [name for name in handles if name not in order]
        gone = {style.printable(label) for label in diverged_seeds(metrics)}
        style.legend_below(figure, {f"{name} (diverged)" if name in gone else name: handles[name] for name in order})


# --- Panels -------------------------------------------------------------------------------------------------


def _over_rounds(axes: Axes, shown: style.Shown, name: str) -> None:
    """Draws the mean over seeds with a band of one standard deviation."""
    seeds, rounds = 0, shown.metrics["evaluated_round"].values
    for algorithm, look in shown.looks.items():
        values = style.values_of(shown.metrics, name, algorithm, "seed", "evaluated_round")
        known = np.isfinite(values).any(axis=0)
        if not known.any():
            continue
        mean, std, _ = over_seeds(values[:, known])
        spread = np.nan_to_num(std, posinf=np.inf)
        axes.plot(
            rounds[known], mean, label=style.printable(algorithm), marker="o" if known.sum() < 3 else None, **look.line
        )
        if values.shape[0] > 1:
            seeds = values.shape[0]
            axes.fill_between(rounds[known], mean - spread, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
    band = f"; band: ± 1 std over {seeds} seeds" if seeds else ""
    axes.set(
        title=f"{title(name).removesuffix(' (unseen)')}\n{style.kind_of_clients(name)}", xlabel=f"rounds done{band}"
    )
    style.write_wholes(axes.xaxis)
    if not is_share(name):
        return
    style.write_percents(axes.yaxis)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.01) if low > -0.1 else low, min(high, 1.02))


def _distribution(axes: Axes, shown: style.Shown, prefix: str) -> None:
    """Draws the share of clients whose accuracy at the last evaluation is at most x."""
    style.spread_of_clients(axes, shown, f"{prefix}test_accuracy")
    if style.has(shown.metrics, f"{prefix}standalone_test_accuracy"):
        alone = np.asarray(shown.metrics[f"{prefix}standalone_test_accuracy"].values, float)
        style.steps(axes, alone, color=style.STANDALONE, linestyle=(0, (1.2, 1.2)), lw=2, label="standalone model")
    heading = f"Accuracy of the single clients\n{style.kind_of_clients(prefix)}"
    axes.set(title=heading, xlabel="test accuracy at the last evaluation", xlim=(-0.02, 1.02))
    style.write_percents(axes.xaxis)


def _scores(axes: Axes, shown: style.Shown, prefix: str, name: str) -> None:
    """Draws the share of clients whose score is at most x, and a line at the score of all rows."""
    style.spread_of_clients(axes, shown, f"{prefix}score_{name}")
    for algorithm, look in shown.looks.items():
        pooled = style.values_of(shown.metrics, f"{prefix}pooled_score_{name}", algorithm, "seed", "evaluated_round")
        mean = over_seeds(pooled).mean[end_of(shown.metrics, algorithm)]
        if np.isfinite(mean):
            axes.axvline(mean, color=look.colour, linestyle=look.dash, linewidth=1)
    heading = f"{style.fitted(f'Score {name} by client', 4.2, 12, bold=True)}\n{style.kind_of_clients(prefix)}"
    words = f"{better(shown.metrics, f'{prefix}pooled_score_{name}')} is better"
    axes.set(title=heading, xlabel=f"{words}\nthin line: all rows together, mean over seeds")


def _gaps(axes: Axes, shown: style.Shown) -> None:
    """Draws the gaps of the clients that trained: in the first fifth of the rounds (outline) and the last (filled)."""
    found = _of_trained(shown, "gap")
    pooled = np.concatenate([*(values[np.isfinite(values)] for values in found.values()), np.zeros(0)])
    if not pooled.size:
        return
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(min(low, 0.0), max(high, 0.0) + 1e-6, 26)
    for name, every in found.items():
        own, look = style.recorded(every), shown.looks[name]
        fifth = max(1, own.shape[1] // 5)
        for part, filled in ((own[:, :fifth], False), (own[:, -fifth:], True)):
            values = part[np.isfinite(part)]
            if not values.size:
                continue
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            drawn: dict[str, Any] = {"alpha": 0.35, "fill": True, "label": style.printable(name)} if filled else {}
            # Shares, as in the other panels; clipped values are in the outermost bins.
            axes.stairs(counts / values.size, edges, **look.line | {"lw": 1.6}, **drawn)
    axes.axvline(0, color=style.INK, linewidth=1)
    axes.set(title="Gap of the clients that train", xlabel="training loss minus required loss (left of 0: satisfied)")
    axes.set_ylabel("share (line: first fifth of rounds, filled: last)")
    style.write_percents(axes.yaxis)


def _weights(axes: Axes, shown: style.Shown) -> None:
    """Draws each client's share of its round's weight: the median and a band from the 10th to the 90th percentile."""
    rounds = shown.records["round"].values
    for name, values in _of_trained(shown, "weight").items():
        # Shares, since some methods record weights that sum to 1, and others do not.
        total = np.nansum(values, axis=-1, keepdims=True)
        values = np.where(total > 0, values / np.where(total > 0, total, 1), np.nan)
        groups = np.array_split(np.arange(len(rounds)), min(style.WINDOWS, len(rounds)))
        drawn = []
        for group in groups:
            pooled = values[:, group][np.isfinite(values[:, group])]
            if pooled.size:
                drawn.append((rounds[group].mean(), *np.quantile(pooled, [0.1, 0.5, 0.9])))
        if drawn:
            x, low, middle, high = np.array(drawn).T
            axes.fill_between(x, low, high, color=shown.looks[name].colour, alpha=0.15, linewidth=0)
            axes.plot(x, middle, label=style.printable(name), **shown.looks[name].line)
    axes.set(title="Weight of the clients that train", xlabel="round; line: median, band: 10th to 90th percentile")
    axes.set_ylabel("share of the weight of a round")
    style.write_percents(axes.yaxis)
    axes.set_ylim(bottom=0)
    style.write_wholes(axes.xaxis)


def _pool(axes: Axes, shown: style.Shown) -> None:
    """Draws the number of clients that a round could choose from, for each seed and as a mean."""
    rounds = shown.records["round"].values
    for name in _recorded_by(shown):
        values, look = style.values_of(shown.records, "pool_size", name, "seed", "round"), shown.looks[name]
        axes.plot(rounds, values.T, color=look.colour, linewidth=0.7, alpha=0.4)
        axes.plot(rounds, values.mean(axis=0), label=style.printable(name), **look.line)
    axes.set(title="Clients in the pool", xlabel="round; thick: mean over seeds, thin: each seed")
    axes.set_ylabel("clients that a round chooses from")
    axes.set_ylim(bottom=0)
    style.write_wholes(axes.xaxis)


def _seconds(axes: Axes, shown: style.Shown) -> None:
    """Draws the time spent on compiling, training and evaluating."""
    metrics, names = shown.metrics, list(shown.looks)
    start, places = np.zeros(len(names)), np.arange(len(names))
    size = 9.0 if all(style.width_of(style.printable(name), 9) < 1.4 for name in names) else 7.5
    size = min(size, LABELS_HEIGHT / max(1, len(names)))
    labels = [style.fitted(style.printable(name, 400), 1.4, size) for name in names]
    if sum(1 + label.count("\n") for label in labels) > MOST_LINES:  # the common legend has the whole labels
        labels = [f"{label.splitlines()[0]}…" if "\n" in label else label for label in labels]
    axes.set_yticks(places, labels, fontsize=size)
    colours = [look.colour for look in shown.looks.values()]
    for part, alpha in (("compile", 0.3), ("train", 1.0), ("evaluate", 0.6)):
        if style.has(metrics, f"seconds_{part}"):
            seconds = np.nan_to_num(np.asarray(metrics[f"seconds_{part}"].sel(algorithm=names).values, float))
            axes.barh(places, seconds, left=start, color=colours, alpha=alpha, height=0.55)
            start += seconds
    axes.invert_yaxis()
    style.upright_grid(axes)
    axes.set(title="Time for all seeds", xlabel="seconds\npale: compiling, full: training, medium: evaluating")


# The panels of records, by the name of the record.
OF_RECORDS: dict[str, Callable[..., None]] = {"gap": _gaps, "weight": _weights, "pool_size": _pool}


# --- Arrays -------------------------------------------------------------------------------------------------


def _recorded_by(shown: style.Shown) -> list[str]:
    """The algorithms that have records."""
    return [name for name in shown.looks if name in shown.records["algorithm"].values]


def _of_trained(shown: style.Shown, name: str) -> dict[str, np.ndarray]:
    """``[seed, round, row]`` by algorithm, with NaN for rows without a client that trained."""
    found = {label: of_rows(shown.records.sel(algorithm=label), name) for label in _recorded_by(shown)}
    return {label: values for label, values in found.items() if values is not None}
