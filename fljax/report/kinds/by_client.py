"""Figures of single clients: curves, contribution against accuracy, the spread over clients, confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fljax.core.names import unknown
from fljax.metrics import over_seeds, pearson_correlation
from fljax.report import style
from fljax.report.kinds import sources
from fljax.results.clients import names_of
from fljax.results.events import end_of

OF_CLIENTS = ("test_accuracy", "test_loss")  # what is drawn of clients, of a task without a score the loss
MOST_CURVES = 6  # clients that are drawn where none is chosen
MOST_POINTS = 60  # clients of all seeds up to which a box also shows every one
ALONE = "standalone_test_accuracy"
CONTRIBUTIONS = (*sources.RATES, ALONE)
AXES = {
    "contribution": "contribution reported in the last round",
    "rate": "reward rate, mean over rounds",
    "participation": "participation rate",
    ALONE: "test accuracy of the standalone model",
}
MATRIX = "score_confusion"
MOST_CLASSES = 10  # up to which a matrix has its numbers
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


# --- Curves -------------------------------------------------------------------------------------------------


def client_curves(
    source: sources.Source,
    clients: Sequence[int] | None = None,
    *,
    metric: str | None = None,
    by: str | None = None,
    algorithms: Sequence[str] | None = None,
) -> Figure:
    """Curves of chosen clients over rounds, coloured and named by what they contribute: a panel for each algorithm.

    Lines are means over seeds, with bands of one standard deviation. What a client contributes is the mean over rounds
    and seeds of a record. All panels have the clients, and numbers, of the first algorithm that records it.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      clients: ids of seen clients; None: six, from the one that contributes least to the one that contributes most.
      metric: an array over clients, such as "valid_accuracy"; None: "test_accuracy", else "test_loss".
      by: "contribution" (as reported), "rate" (the reward rate) or "participation" (the share of rounds in which the
        client trains); None: the first of these that is recorded.
      algorithms: labels; None: all of them.

    Raises:
      ValueError: if an id, a label or a name is not valid, or results lack what is drawn.

    Source: the form of IAFL's Figures 1, 2, 4 and 5.
    """
    material = sources.read(source, algorithms)
    metric = _metric_of(material, metric, "client_curves")
    by, recorder, rate = _rates_of(material, by)
    mean = over_seeds(rate).mean
    labels = sources.having(material, metric)
    curves = [style.values_of(material.metrics, metric, label, "seed", "evaluated_round", "client") for label in labels]
    known = np.asarray(np.isfinite(np.stack(curves)).any(axis=(0, 1, 2)))  # [client]
    chosen = sources.check_clients(
        _spread_out(np.where(known, mean, np.nan)) if clients is None else clients, len(mean)
    )
    chosen = sorted(chosen, key=lambda client: (-np.nan_to_num(mean[client], nan=-np.inf), client))
    shades = colormaps["viridis"](np.linspace(0.0, 0.88, len(chosen)))
    figure, panels = sources.frame(len(labels))
    handles: dict[str, Any] = {}
    words = metric.replace("_", " ")
    rounds, seeds = material.metrics["evaluated_round"].values, material.metrics.sizes["seed"]
    for axes, label, values in zip(panels, labels, curves, strict=True):
        for client, colour in zip(chosen, shades, strict=True):
            middle, spread, count = over_seeds(values[:, :, client])
            there = count > 0
            marker = "o" if 0 < there.sum() < 3 else None
            (line,) = axes.plot(rounds[there], middle[there], color=colour, lw=1.8, marker=marker)
            if seeds > 1:
                low, high = middle - np.nan_to_num(spread), middle + np.nan_to_num(spread)
                axes.fill_between(rounds[there], low[there], high[there], color=colour, alpha=0.12, linewidth=0)
            absent = "" if known[client] else f" (no {words})"
            handles[f"client {client}: {mean[client]:.3g}{absent}"] = line
        axes.set(title=sources.label_in_words(material.metrics, label), xlabel="rounds done")
        style.write_wholes(axes.xaxis)
        sources.in_percent(axes.yaxis, metric, values)
    panels[0].set_ylabel(words)
    over = "mean over rounds and seeds" if seeds > 1 else "mean over rounds"
    style.legend_below(
        figure, handles, style.fitted(f"{sources.RATES[by]}, {over}, of {style.printable(recorder)}", 5.2, 10)
    )
    band = f"; band: ± 1 std over {seeds} seeds" if seeds > 1 else ""
    return sources.close(figure, f"Chosen clients by {sources.RATES[by]}{band}")


def _metric_of(material: sources.Material, metric: str | None, figure: str) -> str:
    if metric is not None:
        sources.check_metric(material, metric, "seed", "evaluated_round", "client")
        return metric
    name = sources.first_of(material, OF_CLIENTS)
    if name is None:
        raise sources.MissingError.of(f"the metric {' or '.join(OF_CLIENTS)} by client", figure)
    return name


def _rates_of(material: sources.Material, by: str | None) -> tuple[str, str, np.ndarray]:
    """The name of the rate, the algorithm that records it, and its values ``[seed, client]``."""
    if by is not None and by not in sources.RATES:
        raise ValueError(unknown("rate", by, sources.RATES))
    names = tuple(sources.RATES) if by is None else (by,)
    for name in names:
        for label in material.labels:
            values = sources.rates(material, label, name)
            if values is not None:
                return name, label, values
    raise sources.MissingError.of(f"a record {' or '.join(names)} by client", "client_curves")


def _spread_out(values: np.ndarray) -> list[int]:
    """Ids from the least to the largest value, evenly by rank; clients without a value only if no others are there."""
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])] if np.isfinite(values).any() else order
    places = np.linspace(0, len(order) - 1, min(MOST_CURVES, len(order))).round().astype(int)
    return order[places].tolist()


# --- Contribution against accuracy ---------------------------------------------------------------------------


def contribution_accuracy(
    source: sources.Source, *, contribution: str | None = None, algorithms: Sequence[str] | None = None
) -> Figure:
    """Every client's test accuracy at the last evaluation against its contribution, with Pearson's rho, by algorithm.

    rho is computed for every seed; its mean and standard deviation over seeds stand above a panel. They are the metrics
    ``contribution_correlation``, and ``pearson_correlation`` for standalone accuracies.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      contribution: "contribution": as reported in the last round before the evaluation; "rate" and "participation": the
        mean over rounds of the reward rate, and the share of rounds in which the client trains;
        "standalone_test_accuracy", which all algorithms have. None: the first of "contribution" and
        "standalone_test_accuracy" that results have.
      algorithms: labels; None: all that have this contribution.

    Raises:
      ValueError: if a label or a name is not valid, or results lack contributions or accuracies.

    Source: IAFL, section 6.1, Tables 2 and 8, and the form of Figure 3.
    """
    material = sources.read(source, algorithms)
    if contribution is not None and contribution not in CONTRIBUTIONS:
        raise ValueError(unknown("contribution", contribution, CONTRIBUTIONS))
    names = ("contribution", ALONE) if contribution is None else (contribution,)
    name, of_label = names[0], dict[str, np.ndarray]()
    for name in names:
        by_label = {label: _contribution(material, label, name) for label in sources.having(material, "test_accuracy")}
        of_label = {label: values for label, values in by_label.items() if values is not None}
        if of_label:
            break
    if not of_label:
        what = f"test_accuracy and {' or '.join(names)} by client"
        raise sources.MissingError.of(what, "contribution_accuracy", "results without them")
    figure, panels = sources.frame(len(of_label))
    looks = style.styles_of(material.metrics)
    for axes, (label, values) in zip(panels, of_label.items(), strict=True):
        accuracy = style.at_last(material.metrics, "test_accuracy", label)
        axes.scatter(values, accuracy, s=22, color=looks[label].colour, alpha=0.6, linewidths=0)
        title = f"{sources.label_in_words(material.metrics, label)}\n{_rho(accuracy, values)}"
        axes.set(title=title, xlabel=AXES[name])
        sources.in_percent(axes.yaxis, "test_accuracy", accuracy)
        if name != "contribution":
            sources.in_percent(axes.xaxis, name, values)
    panels[0].set_ylabel("test accuracy at the last evaluation")
    return sources.close(figure, "Accuracy of clients by contribution")


def _contribution(material: sources.Material, label: str, name: str) -> np.ndarray | None:
    """``[seed, client]``; None if the algorithm has none."""
    metrics = material.metrics
    if name == ALONE:
        return style.at_last(metrics, name, label) if label in sources.having(material, name) else None
    if name != "contribution":
        return sources.rates(material, label, name)
    records = material.records(label)
    values = sources.of_clients(records, name, metrics.sizes["client"])
    if values is None:
        return None
    last = metrics["evaluated_round"].values[end_of(metrics, label)] - 1  # after t rounds, the last one is t - 1
    at = np.flatnonzero(records["round"].values == last)
    known = at.size and np.isfinite(values[:, at]).any()
    return values[:, at[0]] if known else None


def _rho(accuracy: np.ndarray, contribution: np.ndarray) -> str:
    mean, std, count = over_seeds(np.asarray(pearson_correlation(accuracy, contribution), float))
    if not count:
        return "rho undefined"
    return f"rho = {mean:.3f}" + (f" ± {std:.3f} over {count} seeds" if count > 1 else "")


# --- Spread over clients -------------------------------------------------------------------------------------


def client_spread(
    source: sources.Source, *, metric: str | None = None, algorithms: Sequence[str] | None = None
) -> Figure:
    """The spread of a metric over clients at the last evaluation, one box for each algorithm; seen and unseen clients.

    Clients of all seeds are pooled. A box has the quartiles and the median, its whiskers reach from the 5th to the 95th
    percentile, and a diamond is the mean. Few clients are points as well. Standalone models have a box, too.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      metric: an array over clients; None: "test_accuracy", else "test_loss".
      algorithms: labels; None: all of them.

    Raises:
      ValueError: if a label or a name is not valid, or results lack the metric.

    Source: the form of IP-FL's Figure 8.
    """
    material = sources.read(source, algorithms)
    metric = _metric_of(material, metric, "client_spread")
    metrics, twins = material.metrics, [metric, f"unseen_{metric}"]
    drawn = [name for name in twins if sources.having(material, name)]
    figure, panels = sources.frame(len(drawn), share=False)
    looks = style.styles_of(metrics)
    tallest = 0.0  # inches of all boxes
    for axes, name in zip(panels, drawn, strict=True):
        pooled = {
            label: (style.at_last(metrics, name, label), looks[label].colour)
            for label in sources.having(material, name)
        }
        texts = [sources.label_in_words(metrics, label) for label in pooled]
        alone = name.replace(metric, f"standalone_{metric}")
        if alone in metrics and (label := next(iter(sources.having(material, alone)), None)) is not None:
            pooled[""] = style.at_last(metrics, alone, label), style.STANDALONE
            texts.append("standalone model")
        axes.use_sticky_edges = False  # else a box of equal values lies on the frame
        for place, (values, colour) in enumerate(pooled.values()):
            _box(axes, place, values[np.isfinite(values)], colour)
        texts = [style.fitted(text, 1.5, 9) for text in texts]
        axes.set_yticks(range(len(texts)), texts)
        axes.set(ylim=(len(texts) - 0.4, -0.6), xlabel=f"{metric.replace('_', ' ')} at the last evaluation")
        axes.set_title(style.kind_of_clients(name))
        style.upright_grid(axes)
        sources.in_percent(axes.xaxis, metric, np.concatenate([values.ravel() for values, _ in pooled.values()]))
        if metric.endswith("gain"):
            axes.axvline(0, color=style.INK, linewidth=1)
        tallest = max(tallest, len(texts) * max(0.5, *(0.16 * (1 + text.count("\n")) for text in texts)))
    figure.set_size_inches(figure.get_figwidth() + 1.2 * len(drawn), max(2.6, tallest + 1.8))
    return sources.close(
        figure, "Spread over clients; box: quartiles, line: median, diamond: mean, whiskers: 5% to 95%"
    )


def _box(axes: Axes, place: int, values: np.ndarray, colour: str) -> None:
    if not values.size:
        return
    low, first, middle, third, high = np.quantile(values, QUANTILES)
    axes.hlines([place, place], [low, third], [first, high], color=colour, linewidth=1.4)
    axes.vlines([low, high], place - 0.14, place + 0.14, color=colour, linewidth=1.4)
    axes.barh(place, third - first, left=first, height=0.55, color=colour, alpha=0.35, edgecolor=colour)
    axes.vlines(middle, place - 0.275, place + 0.275, color=style.INK, linewidth=1.8)
    mean = float(values.mean())
    axes.plot(mean, place, "D", markersize=5, markerfacecolor="white", markeredgecolor=style.INK, zorder=4)
    if len(values) <= MOST_POINTS:
        beside = place + 0.18 * np.sin(2.4 * np.arange(len(values)))  # so that equal values stand beside each other
        axes.scatter(values, beside, s=11, color=colour, linewidths=0, zorder=3)


# --- Confusion ----------------------------------------------------------------------------------------------


def confusion_matrices(
    source: sources.Source, clients: Sequence[int] | None = None, *, algorithms: Sequence[str] | None = None
) -> Figure:
    """Confusion matrices at the last evaluation: of all clients together and of some of them, by algorithm.

    Colours are shares of a class's test rows, and numbers are rows of all seeds. Results have them with the score
    "confusion". Arguments and errors are those of ``client_curves``; ``clients`` None: the worst, the median and the
    best one of each algorithm, by accuracy.
    """
    material = sources.read(source, algorithms)
    labels, names = sources.having(material, MATRIX), names_of(material.metrics, "client")
    if not labels:
        raise sources.MissingError.of("the score confusion", "confusion_matrices")
    chosen = None if clients is None else sources.check_clients(clients, len(names))
    across = 4 if chosen is None else 1 + len(chosen)
    figure, panels = sources.frame(len(labels) * across, share=False, across=across)
    rest = iter(panels)
    for label in labels:
        counts, words = matrices(material.metrics, label), sources.label_in_words(material.metrics, label)
        rows = counts.sum(axis=(1, 2))
        right = np.trace(counts, axis1=1, axis2=2) / np.where(rows > 0, rows, np.nan)
        order = np.argsort(right, kind="stable")[: max(1, int(np.sum(rows > 0)))]  # NaN comes last
        shown = [("", each) for each in chosen or ()]
        if chosen is None:
            shown = [("worst: ", order[0]), ("median: ", order[len(order) // 2]), ("best: ", order[-1])]
        heat_map(next(rest), counts.sum(axis=0), f"{words}\nall clients")
        for word, client in shown:
            heat_map(next(rest), counts[client], f"{words}\n{style.printable(f'{word}client {names[client]}', 30)}")
    figure.set_size_inches(3.4 * across, 3.4 * len(labels) + 0.4)
    return sources.close(figure, "Confusion matrices; colours: share of the rows of a class")


def matrices(metrics: xr.Dataset, label: str) -> np.ndarray:
    """``[client, class, predicted]``: rows of all seeds at an algorithm's last evaluation."""
    every = style.values_of(metrics, MATRIX, label, "seed", "evaluated_round", "client", "label", "predicted")
    return np.nansum(every[:, end_of(metrics, label)], axis=0)


def heat_map(axes: Axes, counts: np.ndarray, heading: str) -> None:
    """Draws a matrix ``[class, predicted]``; its accuracy stands behind the heading."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    if len(counts) <= MOST_CLASSES:
        axes.set(xticks=range(len(counts)), yticks=range(len(counts)))
        for label, predicted in np.argwhere(counts):
            colour = "white" if shares[label, predicted] > 0.5 else style.INK
            axes.text(
                predicted, label, f"{counts[label, predicted]:.0f}", fontsize=8, ha="center", va="center", color=colour
            )
    accuracy = style.percent(round(np.trace(counts) / counts.sum(), 3)) if counts.any() else "no rows"
    axes.set(title=f"{heading} ({accuracy})", xlabel="predicted", ylabel="class")
