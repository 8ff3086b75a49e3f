"""Clusters and incentives: a table of clients' clusters; panels of membership, tokens, gains and cluster models.

The record ``membership`` [seed, round, client, cluster] says whether a client trained a cluster's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fljax.metrics import gini_coefficient
from fljax.metrics.uncertainty import align_clusters, over_seeds
from fljax.report import style
from fljax.report.kinds.sources import Source, read
from fljax.results.clients import names_of
from fljax.results.records import last_clusters

# Tol's muted colours: safe for colour-blind readers, and different from the algorithms' colours.
CLUSTERS = ("#332288", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99", "#AA4499", "#999933", "#CC6677")
SEVERAL = "#999999"
GROUPS = 20  # largest number of groups of rounds, one cell per group; in a single round most clients do not train
SEPARATE = 4  # up to this number, each distribution has its own panel


def client_clusters(source: Source) -> pd.DataFrame:
    """The cluster of each client at the end: a line for each client, by name, a column for each algorithm and seed.

    It is the last one that is recorded for the client, in its last round if only cohorts are asked, and missing where
    none is: ``chosen_cluster`` [row], or the first largest one of ``importance``, ``mixture`` or ``membership``,
    [row, cluster] or [client, cluster]. ``source`` is as for ``leaving``, which has the clusters of a sweep.
    """
    material, columns = read(source), dict[tuple[str, Any], np.ndarray]()
    names, seeds = names_of(material.metrics, "client"), material.metrics["seed"].values.tolist()
    for label in material.labels:
        found = last_clusters(material.records(label), len(names))
        columns |= {} if found is None else {(label, seed): found[place] for place, seed in enumerate(seeds)}
    return pd.DataFrame(columns, pd.Index(names, name="client")).astype("Int64")


def cluster_panels(shown: style.Shown) -> dict[str, style.Panel]:
    """The panels about clusters and tokens, by name, for which the results have numbers."""
    metrics, records, looks = shown
    found: dict[str, style.Panel] = {}
    for prefix in ("", "unseen_"):
        name = f"{prefix}personalised_model_accuracy_gain"
        dims = ("seed", "evaluated_round", "unseen" if prefix else "client")
        others = [each for each in _having(metrics, name, looks, dims) if each != metrics.attrs.get("baseline")]
        if others:
            found[name] = partial(_gains, shown=shown.of(others), name=name)
    clustered = _having(metrics, "cluster_accuracy", looks, ("seed", "evaluated_round", "cluster", "distribution"))
    if clustered:
        accuracy = {each: _cluster_accuracy(metrics, each) for each in clustered}
        count = metrics.sizes["distribution"]
        for each in range(count) if count <= SEPARATE else [None]:
            name = "cluster_accuracy" if each is None else f"cluster_accuracy_{each}"
            found[name] = partial(_cluster_models, shown=shown, accuracy=accuracy, distribution=each)
    for algorithm in _having(records, "membership", looks, ("seed", "round", "client", "cluster")):
        found[f"membership_{algorithm}"] = partial(_membership, records=records, algorithm=algorithm)
    spending = _having(records, "tokens", looks, ("seed", "round", "client"))
    if spending:
        found["tokens"] = partial(_lorenz, shown=shown.of(spending))
    for algorithm in spending:
        found[f"ledger_{algorithm}"] = partial(_ledger, records=records, algorithm=algorithm, look=looks[algorithm])
    return found


# --- Panels -------------------------------------------------------------------------------------------------


def _gains(axes: Axes, shown: style.Shown, name: str) -> None:
    """Draws the share of clients whose gain at the last evaluation is at most x."""
    style.spread_of_clients(axes, shown, name)
    low, high = axes.get_xlim()
    low, high = min(low, -0.01), max(high, 0.01)
    axes.axvspan(low, 0, color="#f2f2f2", zorder=0)
    axes.axvline(0, color=style.INK, linewidth=1)
    heading = style.printable(f"Accuracy gained over {shown.metrics.attrs.get('baseline', 'the baseline')}", 38)
    words = "points at the last evaluation; left of 0: opt-outs"
    axes.set(title=f"{heading}\n{style.kind_of_clients(name)}", xlabel=words, xlim=(low, high))
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))


def _cluster_models(
    axes: Axes, shown: style.Shown, accuracy: Mapping[str, np.ndarray], distribution: int | None
) -> None:
    """Draws mean accuracies of cluster models over seeds on one distribution; None: on their own and on all others."""
    rounds = shown.metrics["evaluated_round"].values
    for algorithm, values in accuracy.items():
        own, others = _own_and_others(values, distribution)
        look = shown.looks[algorithm]
        thin: dict[str, Any] = look.line | {"lw": 1.1}
        for line in others.T:
            if np.isfinite(line).any():
                axes.plot(rounds, line, alpha=0.55, **thin)
        axes.plot(rounds, own, marker="o" if len(rounds) < 3 else None, label=style.printable(algorithm), **look.line)
    if distribution is None:
        title, note = "Cluster models by distribution", "thick: on the one that a model fits, thin: on others"
    else:
        title = f"Cluster models on distribution {chr(ord('A') + distribution)}"
        note = "thick: the model that fits it, thin: others"
    axes.set(title=title, xlabel=f"rounds done\n{note}")
    style.write_wholes(axes.xaxis)
    style.write_percents(axes.yaxis)
    axes.set_ylim(max(axes.get_ylim()[0], -0.01), min(axes.get_ylim()[1], 1.02))


def _membership(axes: Axes, records: xr.Dataset, algorithm: str) -> None:
    """Draws the cluster that each client trained most often in each group of rounds, for the first seed with values."""
    values = style.values_of(records, "membership", algorithm, "seed", "round", "client", "cluster")
    seed = int(np.isfinite(values).any(axis=(1, 2, 3)).argmax())
    values = values[seed]
    rounds = records["round"].values
    groups = np.array_split(np.arange(len(rounds)), min(GROUPS, len(rounds)))
    counts = np.stack([np.nansum(values[group], axis=0) for group in groups], axis=1)  # [client, group, cluster]
    clusters = int(np.flatnonzero(np.isfinite(values).any(axis=(0, 1)))[-1]) + 1
    most = counts.max(axis=-1)
    tied = (counts == most[..., None]).sum(axis=-1) > 1
    code = np.where(tied, clusters, counts.argmax(axis=-1))
    shown = np.ma.masked_where(most == 0, code)
    colours = [*_cluster_colours(clusters), SEVERAL]
    edges = [rounds[group[0]] for group in groups] + [rounds[-1] + 1]
    scale: dict[str, Any] = {"cmap": ListedColormap(colours), "vmin": -0.5, "vmax": clusters + 0.5}
    axes.pcolormesh(edges, np.arange(len(code) + 1), shown, rasterized=True, **scale)
    axes.invert_yaxis()
    axes.grid(visible=False)
    whole = "" if len(groups) == len(rounds) else f"; groups of {len(rounds) / len(groups):.3g} rounds"
    whose = style.printable(f"{algorithm}, seed {records['seed'].values[seed]}", 38)
    axes.set(title=f"Whose model clients train\n{whose}")
    axes.set(xlabel=f"round{whole}; white: none", ylabel="client")
    style.write_wholes(axes.xaxis, axes.yaxis)
    words = [f"cluster {each}" for each in range(clusters)] + ["equally often"] * bool((tied & (most > 0)).any())
    _key(axes, [Patch(color=colour, label=word) for colour, word in zip(colours, words, strict=False)])


def _lorenz(axes: Axes, shown: style.Shown) -> None:
    """Draws the share of tokens that the poorest share x of clients holds after the last round; mean over seeds."""
    lines = []
    for algorithm, look in shown.looks.items():
        values = style.recorded(style.values_of(shown.records, "tokens", algorithm, "seed", "round", "client"))[:, -1]
        values = values[np.isfinite(values).any(axis=-1)]
        if not len(values):
            continue
        grid = np.linspace(0, 1, values.shape[-1] + 1)
        curve = np.mean([_curve(row[np.isfinite(row)], grid) for row in values], axis=0)
        gini = float(np.mean(gini_coefficient(values)))
        (line,) = axes.plot(grid, curve, label=style.printable(algorithm), **look.line)
        lines.append((line, f"{gini:.4f}"))
    axes.plot([0, 1], [0, 1], color=style.STANDALONE, linestyle=(0, (1.2, 1.2)), lw=1.2)
    axes.set(title="Tokens after the last round", xlabel="share of clients, poorest first (dotted: all equal)")
    axes.set(ylabel="share of the clients' tokens", xlim=(0, 1), ylim=(0, 1.02))
    style.write_percents(axes.xaxis, axes.yaxis)
    if lines:
        # Short words: the common legend has the labels, and curves leave this corner free.
        columns = 1 + (len(lines) - 1) // 8
        place = {"loc": "upper left", "frameon": False, "fontsize": 9, "title_fontsize": 9, "alignment": "left"}
        axes.legend(*zip(*lines, strict=True), title="Gini coefficient", ncols=columns, **place)


def _ledger(axes: Axes, records: xr.Dataset, algorithm: str, look: style.Style) -> None:
    """Draws clients' tokens relative to the first round (smallest, median, mean, largest); means over seeds."""
    tokens = style.values_of(records, "tokens", algorithm, "seed", "round", "client")
    rounds = records["round"].values
    finite = np.ma.masked_invalid(tokens - tokens[:, :1])
    mean, middle = finite.mean(axis=-1), np.ma.median(finite, axis=-1)
    parts = [finite.min(axis=-1), middle, finite.max(axis=-1), mean]
    low, middle, high, mean = (np.ma.mean(part, axis=0) for part in parts)
    drawn: list[Any] = [axes.fill_between(rounds, low, high, color=look.colour, alpha=0.15, linewidth=0)]
    drawn += axes.plot(rounds, middle, color=look.colour, lw=2)
    drawn += axes.plot(rounds, mean, color=look.colour, lw=1.6, linestyle=(0, (1.2, 1.2)))
    words = ["smallest to largest client", "median client", "mean client"]
    if _having(records, "pool", [algorithm], ("seed", "round", "cluster")):
        pools = np.nansum(style.values_of(records, "pool", algorithm, "seed", "round", "cluster"), axis=-1)
        pools = ((pools - pools[:, :1]) / np.maximum(finite.count(axis=-1), 1)).mean(axis=0)
        drawn += axes.plot(rounds, pools, color=style.INK, lw=1.6, linestyle=(0, (5, 1.5)))
        drawn += axes.plot(rounds, mean + pools, color=style.STANDALONE, lw=1)
        words += ["pools, per client", "mean client + pools"]
    means = f"; means over {len(tokens)} seeds" if len(tokens) > 1 else ""
    axes.set(title=f"Tokens won and lost\n{style.printable(algorithm, 38)}", xlabel=f"round{means}")
    axes.set_ylabel("tokens gained")
    # A fixed number of ticks: with one by the panel's height, labels get wider after the layout is made.
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    style.write_wholes(axes.xaxis)
    _key(axes, drawn, words)


# --- Arrays -------------------------------------------------------------------------------------------------


def _having(dataset: xr.Dataset, name: str, algorithms: Iterable[str], dims: Sequence[str]) -> list[str]:
    """The algorithms that have a finite value of the variable, if it has these dimensions."""
    if not style.has(dataset, name) or set(dataset[name].dims) != {"algorithm", *dims}:
        return []
    there = [str(each) for each in dataset["algorithm"].values]
    return [each for each in algorithms if each in there and np.isfinite(dataset[name].sel(algorithm=each)).any()]


def _cluster_accuracy(metrics: xr.Dataset, algorithm: str) -> np.ndarray:
    """``[evaluated_round, cluster, distribution]``, numbered by distribution and averaged over seeds."""
    values = style.values_of(
        metrics, "cluster_accuracy", algorithm, "seed", "evaluated_round", "cluster", "distribution"
    )
    # With fewer clusters than distributions, alignment would not number clusters by distribution: add NaN clusters.
    missing = max(0, values.shape[3] - values.shape[2])
    values = np.pad(values, ((0, 0), (0, 0), (0, missing), (0, 0)), constant_values=np.nan)
    return over_seeds(align_clusters(values)).mean


def _own_and_others(accuracy: np.ndarray, distribution: int | None) -> tuple[np.ndarray, np.ndarray]:
    """``[round]`` of the distribution's own model and ``[round, others]``; None: averages over all distributions."""
    clusters, distributions = accuracy.shape[1:]
    own = np.eye(clusters, distributions, dtype=bool)
    if distribution is None:
        means = [np.ma.masked_invalid(accuracy[:, part]).mean(axis=-1).filled(np.nan) for part in (own, ~own)]
        return means[0], means[1][:, None]
    values = accuracy[:, :, distribution]
    return values[:, distribution], np.delete(values, distribution, axis=1)


def _curve(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The Lorenz curve at the given shares of clients; the diagonal if all values are 0."""
    sums = np.cumsum([0.0, *np.sort(values)])
    return np.interp(grid, np.linspace(0, 1, len(sums)), sums / sums[-1]) if sums[-1] > 0 else grid


def _cluster_colours(count: int) -> list[Any]:
    if count <= len(CLUSTERS):
        return list(CLUSTERS[:count])
    return list(matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, count)))


def _key(axes: Axes, handles: Sequence[Any], words: Sequence[str] | None = None) -> None:
    """Draws a separate legend below the panel."""
    words = [str(handle.get_label()) for handle in handles] if words is None else list(words)
    columns = 2 if max(map(len, words)) > 14 else min(4, len(words))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
    axes.legend(handles, words, ncols=columns, frameon=False, fontsize=8.5, handlelength=1.6, **place)
