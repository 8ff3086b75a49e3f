"""Panels, each drawn on one Axes, and figures made of panels.

Figures are made without pyplot, so drawing does not change the caller's plots and backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fljax.metrics import over_seeds
from fljax.report.clusters import cluster_panels
from fljax.report.kinds.by_client import MATRIX, heat_map, matrices
from fljax.report.style import (
    INK,
    STANDALONE,
    WINDOWS,
    Panel,
    Style,
    dress,
    finish,
    fitted,
    has,
    legend_below,
    percent,
    printable,
    recorded,
    steps,
    styles,
    values_of,
    width_of,
)
from fljax.report.tables import TITLES, is_share, title
from fljax.results.events import end_of
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import better, names_of

MAIN = ("incentivised_participation_rate", "preferred_model_accuracy", "average_accuracy")

MOST_LINES = 14  # of labels beside an axis
LABELS_HEIGHT = 165.0  # points of all labels beside an axis


def panels(metrics: xr.Dataset, records: xr.Dataset) -> dict[str, Panel]:
    """The panels, by name, for which the results have numbers."""
    looks = styles([str(name) for name in metrics["algorithm"].values] if "algorithm" in metrics.coords else [])
    found: dict[str, Panel] = {}
    for prefix in ("", "unseen_"):
        # Of a task without a score, the losses.
        for name in MAIN if has(metrics, f"{prefix}average_accuracy") else (*MAIN, "average_loss"):
            if has(metrics, prefix + name):
                found[prefix + name] = partial(_over_rounds, metrics=metrics, name=prefix + name, looks=looks)
    for prefix in ("", "unseen_"):
        if has(metrics, f"{prefix}test_accuracy"):
            found[f"{prefix}test_accuracy"] = partial(_distribution, metrics=metrics, prefix=prefix, looks=looks)
    for prefix in ("", "unseen_"):
        for name in names_of(metrics):
            pooled = f"{prefix}pooled_score_{name}"
            if has(metrics, pooled):
                if metrics[pooled].notnull().any(["algorithm", "seed"]).sum() > 1:
                    found[pooled] = partial(_over_rounds, metrics=metrics, name=pooled, looks=looks)
                found[f"{prefix}score_{name}"] = partial(
                    _scores, metrics=metrics, prefix=prefix, name=name, looks=looks
                )
    for label in looks if has(metrics, MATRIX) else ():
        words = f"Confusion matrix, all clients\n{printable(label, 38)}"
        found[f"confusion_{label}"] = partial(heat_map, counts=matrices(metrics, label).sum(axis=0), heading=words)
    if has(records, "gap"):
        found["gap"] = partial(_gaps, records=records, looks=looks)
    if has(records, "weight"):
        found["weight"] = partial(_weights, records=records, looks=looks)
    if has(records, "pool_size"):
        found["pool_size"] = partial(_pool, records=records, looks=looks)
    found |= cluster_panels(metrics, records, looks)
    if has(metrics, "seconds_train"):
        found["seconds"] = partial(_seconds, metrics=metrics, looks=looks)
    return found


def figures(metrics: xr.Dataset, records: xr.Dataset) -> dict[str, Figure]:
    """One figure for each panel.

    Args:
      metrics: variables over algorithm, seed, evaluated_round, client and unseen; absent variables are not drawn.
      records: variables over algorithm, seed, round and row.
    """
    drawn = {}
    for name, panel in panels(metrics, records).items():
        figure = Figure(figsize=(5.6, 4.0), layout="constrained")
        _draw(panel, figure.add_subplot())
        _legend(figure, metrics)
        drawn[name] = figure
    return drawn


def curves(metrics: xr.Dataset) -> dict[str, Figure]:
    """One figure over rounds for each metric of the table that has numbers; of unseen clients, the main ones."""
    looks = styles([str(name) for name in metrics["algorithm"].values])
    names = [*TITLES, "average_loss", *(f"unseen_{name}" for name in MAIN)]
    drawn = {}
    for name in names:
        if has(metrics, name):
            figure = Figure(figsize=(5.6, 4.0), layout="constrained")
            _draw(partial(_over_rounds, metrics=metrics, name=name, looks=looks), figure.add_subplot())
            _legend(figure, metrics)
            drawn[name] = figure
    return drawn


def picture(metrics: xr.Dataset, records: xr.Dataset, heading: str = "") -> Figure:
    """All panels in one figure, three to a row, under one legend."""
    found = list(panels(metrics, records).values())
    rows = max(1, -(-len(found) // 3))
    figure = Figure(figsize=(14, 3.9 * rows + 1.0), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.04)  # type: ignore[union-attr]
    if heading:
        figure.suptitle(fitted(printable(heading, 200), 13, 15, bold=True), fontsize=15, fontweight="bold", color=INK)
    for place, panel in enumerate(found):
        _draw(panel, figure.add_subplot(rows, 3, place + 1))
    _legend(figure, metrics)
    return figure


def _draw(panel: Panel, axes: Axes) -> None:
    dress(axes)
    panel(axes)
    finish(axes)


def _legend(figure: Figure, metrics: xr.Dataset) -> None:
    """One legend for all panels: each algorithm once, in the order of the results."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        order = [name for name in map(printable, map(str, metrics["algorithm"].values)) if name in handles]
        order += [name for name in handles if name not in order]
        gone = {printable(label) for label in diverged_seeds(metrics)}
        legend_below(figure, {f"{name} (diverged)" if name in gone else name: handles[name] for name in order})


# --- Panels -------------------------------------------------------------------------------------------------


def _over_rounds(axes: Axes, metrics: xr.Dataset, name: str, looks: Mapping[str, Style]) -> None:
    """Draws the mean over seeds with a band of one standard deviation."""
    seeds = 0
    for algorithm, look in looks.items():
        values = values_of(metrics, name, algorithm, "seed", "evaluated_round")
        rounds = metrics["evaluated_round"].values
        known = np.isfinite(values).any(axis=0)
        if not known.any():
            continue
        mean, std, _ = over_seeds(values[:, known])
        spread = np.nan_to_num(std, posinf=np.inf)
        marker = "o" if known.sum() < 3 else None
        shown: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "lw": 2, "marker": marker}
        axes.plot(rounds[known], mean, label=printable(algorithm), **shown)
        if values.shape[0] > 1:
            seeds = values.shape[0]
            axes.fill_between(rounds[known], mean - spread, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
    band = f"; band: ± 1 std over {seeds} seeds" if seeds else ""
    plain = title(name).removesuffix(" (unseen)")
    axes.set(title=f"{plain}\n{_whose(name)}", xlabel=f"rounds done{band}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if not is_share(name):
        return
    axes.yaxis.set_major_formatter(FuncFormatter(percent))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.01) if low > -0.1 else low, min(high, 1.02))


def _distribution(axes: Axes, metrics: xr.Dataset, prefix: str, looks: Mapping[str, Style]) -> None:
    """Draws the share of clients, pooled over seeds, whose accuracy at the last evaluation is at most x."""
    dimension = "unseen" if prefix else "client"
    for algorithm, look in looks.items():
        values = values_of(metrics, f"{prefix}test_accuracy", algorithm, "seed", "evaluated_round", dimension)
        steps(
            axes,
            values[:, end_of(metrics, algorithm)],
            color=look.colour,
            linestyle=look.dash,
            lw=2,
            label=printable(algorithm),
        )
    if has(metrics, f"{prefix}standalone_test_accuracy"):
        alone = np.asarray(metrics[f"{prefix}standalone_test_accuracy"].values, float)
        steps(axes, alone, color=STANDALONE, linestyle=(0, (1.2, 1.2)), lw=2, label="standalone model")
    heading = f"Accuracy of the single clients\n{_whose(prefix)}"
    axes.set(title=heading, xlabel="test accuracy at the last evaluation", xlim=(-0.02, 1.02))
    axes.set(ylabel="share of clients at or below", ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(FuncFormatter(percent))
    axes.yaxis.set_major_formatter(FuncFormatter(percent))


def _scores(axes: Axes, metrics: xr.Dataset, prefix: str, name: str, looks: Mapping[str, Style]) -> None:
    """Draws the share of clients, pooled over seeds, whose score is at most x, and a line at the score of all rows."""
    dimension = "unseen" if prefix else "client"
    for algorithm, look in looks.items():
        last = end_of(metrics, algorithm)
        values = values_of(metrics, f"{prefix}score_{name}", algorithm, "seed", "evaluated_round", dimension)[:, last]
        steps(axes, values, color=look.colour, linestyle=look.dash, lw=2, label=printable(algorithm))
        pooled = over_seeds(values_of(metrics, f"{prefix}pooled_score_{name}", algorithm, "seed", "evaluated_round"))
        if np.isfinite(pooled.mean[last]):
            axes.axvline(pooled.mean[last], color=look.colour, linestyle=look.dash, linewidth=1)
    heading = f"{fitted(f'Score {name} by client', 4.2, 12, bold=True)}\n{_whose(prefix)}"
    words = f"{better(metrics, f'{prefix}pooled_score_{name}')} is better"
    axes.set(title=heading, xlabel=f"{words}\nthin line: all rows together, mean over seeds")
    axes.set(ylabel="share of clients at or below", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(FuncFormatter(percent))


def _gaps(axes: Axes, records: xr.Dataset, looks: Mapping[str, Style]) -> None:
    """Draws the gaps of the clients that trained: in the first fifth of the rounds (outline) and the last (filled)."""
    found = {name: _present(records, "gap", name) for name in looks}
    finite = [values[np.isfinite(values)] for values in found.values()]
    pooled = np.concatenate([*finite, np.zeros(0)])
    if not pooled.size:
        return
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(min(low, 0.0), max(high, 0.0) + 1e-6, 26)
    for name, look in looks.items():
        own = recorded(found[name])
        fifth = max(1, own.shape[1] // 5)
        for part, filled in ((own[:, :fifth], False), (own[:, -fifth:], True)):
            values = part[np.isfinite(part)]
            if not values.size:
                continue
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            # Shares, as in the other panels; clipped values are in the outermost bins.
            axes.stairs(
                counts / values.size,
                edges,
                color=look.colour,
                alpha=0.35 if filled else 1.0,
                fill=filled,
                linewidth=1.6,
                linestyle=look.dash,
                label=printable(name) if filled else None,
            )
    axes.axvline(0, color=INK, linewidth=1)
    axes.set(title="Gap of the clients that train", xlabel="training loss minus required loss (left of 0: satisfied)")
    axes.set_ylabel("share (line: first fifth of rounds, filled: last)")
    axes.yaxis.set_major_formatter(FuncFormatter(percent))


def _weights(axes: Axes, records: xr.Dataset, looks: Mapping[str, Style]) -> None:
    """Draws each client's share of its round's weight: the median and a band from the 10th to the 90th percentile."""
    rounds = records["round"].values
    for name, look in looks.items():
        values = _present(records, "weight", name)
        # Shares, since some methods record weights that sum to 1, and others do not.
        total = np.nansum(values, axis=-1, keepdims=True)
        values = np.where(total > 0, values / np.where(total > 0, total, 1), np.nan)
        groups = np.array_split(np.arange(len(rounds)), min(WINDOWS, len(rounds)))
        drawn = []
        for group in groups:
            pooled = values[:, group][np.isfinite(values[:, group])]
            if pooled.size:
                drawn.append((rounds[group].mean(), *np.quantile(pooled, [0.1, 0.5, 0.9])))
        if drawn:
            x, low, middle, high = np.array(drawn).T
            axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
            axes.plot(x, middle, color=look.colour, linestyle=look.dash, linewidth=2, label=printable(name))
    axes.set(title="Weight of the clients that train", xlabel="round; line: median, band: 10th to 90th percentile")
    axes.set_ylabel("share of the weight of a round")
    axes.yaxis.set_major_formatter(FuncFormatter(percent))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _pool(axes: Axes, records: xr.Dataset, looks: Mapping[str, Style]) -> None:
    """Draws the number of clients that a round could choose from, for each seed and as a mean."""
    for name, look in looks.items():
        if name in records["algorithm"].values:
            values = values_of(records, "pool_size", name, "seed", "round")
            rounds = records["round"].values
            axes.plot(rounds, values.T, color=look.colour, linewidth=0.7, alpha=0.4)
            axes.plot(
                rounds, values.mean(axis=0), color=look.colour, linestyle=look.dash, linewidth=2, label=printable(name)
            )
    axes.set(title="Clients in the pool", xlabel="round; thick: mean over seeds, thin: each seed")
    axes.set_ylabel("clients that a round chooses from")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _seconds(axes: Axes, metrics: xr.Dataset, looks: Mapping[str, Style]) -> None:
    """Draws the time spent on compiling, training and evaluating."""
    names = list(looks)
    start, places = np.zeros(len(names)), np.arange(len(names))
    size = 9.0 if all(width_of(printable(name), 9) < 1.4 for name in names) else 7.5
    size = min(size, LABELS_HEIGHT / max(1, len(names)))
    labels = [fitted(printable(name, 400), 1.4, size) for name in names]
    if sum(1 + label.count("\n") for label in labels) > MOST_LINES:  # the common legend has the whole labels
        labels = [f"{label.splitlines()[0]}…" if "\n" in label else label for label in labels]
    axes.set_yticks(places, labels, fontsize=size)
    for part, alpha in (("compile", 0.3), ("train", 1.0), ("evaluate", 0.6)):
        if has(metrics, f"seconds_{part}"):
            seconds = np.nan_to_num(np.asarray(metrics[f"seconds_{part}"].sel(algorithm=names).values, float))
            colours = [look.colour for look in looks.values()]
            axes.barh(places, seconds, left=start, color=colours, alpha=alpha, height=0.55)
            start += seconds
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    axes.set(title="Time for all seeds", xlabel="seconds\npale: compiling, full: training, medium: evaluating")


# --- Arrays -------------------------------------------------------------------------------------------------


def _present(records: xr.Dataset, name: str, algorithm: str) -> np.ndarray:
    """``[seed, round, row]`` with NaN for rows without a client that trained."""
    if algorithm not in records["algorithm"].values:
        return np.full((1, records.sizes["round"], 1), np.nan)
    dimensions = ("seed", "round", "row")
    values = values_of(records, name, algorithm, *dimensions)
    if "cohort_present" in records:
        present = values_of(records, "cohort_present", algorithm, *dimensions)
        values = np.where(np.nan_to_num(present) > 0, values, np.nan)
    return values


def _whose(name: str) -> str:
    return "unseen clients" if name.startswith("unseen_") else "seen clients"
