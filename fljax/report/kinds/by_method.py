"""Figures of methods: metric against metric, losses on test rows and training rows, and weights on the surrogate.

The derivatives of the surrogates are those of ``fljax.aggregators.incfl_weights``, written in NumPy: who draws a figure
beside a run that goes on must not start JAX, which would take the memory of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fljax.core.names import shown, unknown
from fljax.metrics import over_seeds
from fljax.report.kinds import sources
from fljax.report.style import COLOURS, INK, WINDOWS, kind_of_clients, legend_below, styles_of, values_of, write_wholes
from fljax.report.tables import last_values, title

# The pairs of metrics that are drawn where none is chosen: what clients want, and how accurate models are.
PAIRS = (
    ("global_model_appeal", "global_average_accuracy"),
    ("incentivised_participation_rate", "average_accuracy"),
    ("incentivised_participation_rate", "average_loss"),
)
MOST_POINTS = 6000  # drawn of one algorithm's gaps
LEAST_REACH = 5.0  # of the axis of gaps, on both sides
AGREES = 1e-3  # largest difference of recorded weights from a surrogate's, as a share of the largest weight


def _sigmoid(gap: np.ndarray) -> np.ndarray:
    decay = np.exp(-np.abs(gap))
    return decay / np.square(1 + decay)


def _softplus(gap: np.ndarray) -> np.ndarray:
    decay = np.exp(-np.abs(gap))
    return np.where(gap >= 0, 1, decay) / (1 + decay)


DERIVATIVES = {
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "relu": lambda gap: (gap > 0).astype(float),
    "hinge": lambda gap: (gap > -1).astype(float),
    "exp": lambda gap: np.exp(np.minimum(gap, 20)),
}


# --- Metric against metric -----------------------------------------------------------------------------------


def metric_pairs(
    source: sources.Source, x: str | None = None, y: str | None = None, *, algorithms: Sequence[str] | None = None
) -> Figure:
    """One metric against another at the last evaluation: a point for each algorithm, with bars over seeds.

    Points are means over seeds, bars one standard deviation to both sides. Unseen clients have a panel of their own if
    results have the metrics for them. An algorithm without one of the two metrics is left out.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      x: a metric of one number; None: the appeal of the global model with its accuracy, else the IPR with the accuracy.
      y: as ``x``; both or neither.
      algorithms: labels; None: all of them.

    Raises:
      ValueError: if a label or a name is not valid, or no algorithm has both metrics.

    Source: the form of MaxFL's Figure 1.
    """
    material = sources.read(source, algorithms)
    x, y = _pair(material, x, y)
    drawn = [(x, y)]
    if not (x.startswith("unseen_") or y.startswith("unseen_")):
        drawn.append((f"unseen_{x}", f"unseen_{y}"))
    drawn = [pair for pair in drawn if _points(material, *pair)]
    if not drawn:
        raise sources.MissingError.of(f"an algorithm with {x} and {y}", "metric_pairs", "none with both")
    figure, panels = sources.frame(len(drawn))
    looks = styles_of(material.metrics)
    handles: dict[str, Any] = {}
    for axes, pair in zip(panels, drawn, strict=True):
        points = _points(material, *pair)
        for label, (across, up) in points.items():
            place = list(looks).index(label)
            marker, colour = sources.MARKERS[(place // len(COLOURS)) % len(sources.MARKERS)], looks[label].colour
            spread = [None if np.isnan(part.std) else part.std for part in (across, up)]
            handles[sources.label_in_words(material.metrics, label)] = axes.errorbar(
                across.mean, up.mean, xerr=spread[0], yerr=spread[1], color=colour, fmt=marker, ms=7, capsize=3
            )
        axes.set_xlabel(title(x).removesuffix(" (unseen)"))
        axes.set_title(kind_of_clients(pair[0]))
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)
        axes.margins(0.12)
        sources.in_percent(axes.xaxis, x, [across.mean for across, _ in points.values()])
        sources.in_percent(axes.yaxis, y, [up.mean for _, up in points.values()])
    panels[0].set_ylabel(title(y).removesuffix(" (unseen)"))
    legend_below(figure, handles)
    seeds = material.metrics.sizes["seed"]
    return sources.close(
        figure, "Methods at the last evaluation" + (f"; bars: ± 1 std over {seeds} seeds" * (seeds > 1))
    )


def _pair(material: sources.Material, x: str | None, y: str | None) -> tuple[str, str]:
    if (x is None) != (y is None):
        raise ValueError(f"expected two metrics for the figure metric_pairs, got {x or y!r} alone")
    if x is not None and y is not None:
        for name in (x, y):
            sources.check_metric(material, name, "seed", "evaluated_round")
        return x, y
    for first, second in PAIRS:
        if set(sources.having(material, first)) & set(sources.having(material, second)):
            return first, second
    words = "; ".join(f"{first} and {second}" for first, second in PAIRS)
    raise sources.MissingError.of("two metrics", "metric_pairs", f"results without {words}")


def _points(material: sources.Material, x: str, y: str) -> dict[str, tuple[Any, Any]]:
    """Summaries over seeds of both metrics, by label; of the algorithms that have both."""
    points = {}
    for label in material.labels:
        values = [last_values(material.metrics, label, name) for name in (x, y)]
        pair = tuple(over_seeds(of_seeds) for of_seeds in values if of_seeds is not None)
        if len(pair) == 2 and all(part.count for part in pair):
            points[label] = pair
    return points


# --- Losses --------------------------------------------------------------------------------------------------


def polled_loss(source: sources.Source, *, algorithms: Sequence[str] | None = None) -> Figure:
    """The mean test loss of all clients and the mean training loss that clients report, over rounds, by algorithm.

    The training loss is that of the clients that a round asks (record ``polled_loss``, of the scenario
    ``appeal_based``), or else of those that train (record ``loss``), at the model with which the round begins. Of many
    rounds, some are averaged. The test loss is that of the global model, or else of the deployed one. Both are means
    over seeds.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      algorithms: labels; None: all that record training losses.

    Raises:
      ValueError: if a label is unknown, or results lack a loss.

    Source: INCFL, Figure 7.
    """
    material = sources.read(source, algorithms)
    name = sources.first_of(material, ("global_test_loss", "test_loss"))
    labels = () if name is None else sources.having(material, name)
    reported = {label: losses for label in labels if (losses := _reported(material, label)) is not None}
    if name is None or not reported:
        what = "test_loss by client and a record polled_loss or loss"
        raise sources.MissingError.of(what, "polled_loss", "results without them")
    figure, panels = sources.frame(len(reported))
    handles: dict[str, Any] = {}
    for axes, (label, (whose, rounds, training)) in zip(panels, reported.items(), strict=True):
        values = values_of(material.metrics, name, label, "seed", "evaluated_round", "client")
        tested = over_seeds(over_seeds(values, axis=2).mean).mean
        known = np.isfinite(tested)
        marker = "o" if known.sum() < 3 else None
        (test,) = axes.plot(
            material.metrics["evaluated_round"].values[known], tested[known], color=COLOURS[0], lw=2, marker=marker
        )
        marker = "o" if len(rounds) < 3 else None
        (train,) = axes.plot(rounds, training, color=COLOURS[1], lw=2, linestyle=(0, (5, 1.5)), marker=marker)
        handles |= {"test rows, all clients": test, f"training rows, {whose}": train}
        axes.set(title=sources.label_in_words(material.metrics, label), xlabel="rounds done")
        write_wholes(axes.xaxis)
    kind = "global model" if name.startswith("global_") else "deployed model"
    panels[0].set_ylabel(f"mean loss of the {kind}")
    legend_below(figure, handles)
    return sources.close(figure, "Loss on test rows and on training rows")


def _reported(material: sources.Material, label: str) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Whose losses they are, rounds, and the mean of reported losses at these rounds; None if there are none."""
    records = material.records(label)
    polled = sources.of_clients(records, "polled_loss", material.metrics.sizes["client"])
    losses, whose = (polled, "clients that are asked") if polled is not None else (sources.of_rows(records, "loss"), "")
    if losses is None or not np.isfinite(losses).any():
        return None
    means = over_seeds(over_seeds(losses, axis=2).mean).mean  # [round]
    rounds = records["round"].values
    known = np.isfinite(means)
    rounds, means = rounds[known], means[known]
    groups = np.array_split(np.arange(len(rounds)), min(WINDOWS, len(rounds)))
    grouped = np.array([(rounds[group].mean(), means[group].mean()) for group in groups])
    return whose or "clients that train", grouped[:, 0], grouped[:, 1]


# --- Weights on the surrogate --------------------------------------------------------------------------------


def surrogate_weights(
    source: sources.Source,
    *,
    surrogate: str | None = None,
    gap_scale: float = 1.0,
    algorithms: Sequence[str] | None = None,
) -> Figure:
    """A run's own (gap, weight) points on ``q = gap_scale * surrogate'(gap_scale * gap)``, coloured by round.

    The gap is a client's loss minus what it requires. Of very many points some are drawn, evenly over rounds.

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.
      surrogate: whose curve is drawn, as for ``fljax.aggregators.incfl_weights``; None: the one on which the recorded
        points lie, or else "sigmoid".
      gap_scale: of the curve.
      algorithms: labels; None: all that record gaps and weights.

    Raises:
      ValueError: if a label or a name is not valid, or results lack gaps and weights.

    Source: INCFL, Figure 1; MaxFL, Figure 3.
    """
    material = sources.read(source, algorithms)
    if surrogate is not None and surrogate not in DERIVATIVES:
        raise ValueError(unknown("surrogate", surrogate, DERIVATIVES))
    if not 0 < gap_scale < math.inf:
        raise ValueError(f"expected gap_scale to be a finite number above 0, got {shown(gap_scale)}")
    recorded = {label: values for label in material.labels if (values := _gaps(material, label)) is not None}
    if not recorded:
        what = "records gap and weight by row"
        raise sources.MissingError.of(what, "surrogate_weights", "results without them")
    figure, panels = sources.frame(len(recorded))
    pooled = np.concatenate([gap for gap, _, _ in recorded.values()])
    low, high = np.quantile(pooled, [0.002, 0.998])
    low, high = min(low - 0.3, -LEAST_REACH), max(high + 0.3, LEAST_REACH)
    gaps = np.linspace(low, high, 400)
    latest = max(rounds.max() for _, _, rounds in recorded.values())
    earliest = min(rounds.min() for _, _, rounds in recorded.values())
    handles: dict[str, Any] = {}
    points: Any = None
    for axes, (label, (gap, weight, rounds)) in zip(panels, recorded.items(), strict=True):
        name = surrogate or _surrogate_of(gap, weight, gap_scale)
        curve = _weights(gaps, name, gap_scale)
        (line,) = axes.plot(gaps, curve, color=INK, lw=1.2, zorder=1)
        handles[f"derivative of the surrogate {name}"] = line
        few = np.unique(np.linspace(0, len(gap) - 1, min(MOST_POINTS, len(gap))).round().astype(int))
        shade: dict[str, Any] = {"cmap": "viridis", "vmin": earliest, "vmax": max(latest, earliest + 1)}
        points = axes.scatter(
            gap[few], weight[few], c=rounds[few], s=14, alpha=0.6, linewidths=0, zorder=2, rasterized=True, **shade
        )
        _name(axes, sources.label_in_words(material.metrics, label), int(((gap < low) | (gap > high)).sum()), len(gap))
        axes.set_xlim(low, high)
    panels[0].set_ylabel("weight q of the client")
    bar = figure.colorbar(points, ax=panels, shrink=0.9, pad=0.02)
    bar.solids.set_alpha(1.0)  # type: ignore[union-attr]
    bar.set_label("round", fontsize=9.5, color=INK)
    write_wholes(bar.ax.yaxis)
    legend_below(figure, handles)
    return sources.close(figure, "Weights of the clients that train, by their gap")


def _name(axes: Axes, heading: str, beyond: int, count: int) -> None:
    axes.axvline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
    outside = f"\n{beyond} of {count} points are outside" if beyond else ""
    axes.set(title=heading, xlabel=f"training loss minus required loss{outside}")


def _gaps(material: sources.Material, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Gaps, weights and rounds of all clients that trained, in the order of rounds; None if there are none."""
    records = material.records(label)
    gap, weight = sources.of_rows(records, "gap"), sources.of_rows(records, "weight")
    if gap is None or weight is None:
        return None
    rounds = np.broadcast_to(records["round"].values[None, :, None], gap.shape)
    gap, weight, rounds = (np.moveaxis(values, 1, 0).ravel() for values in (gap, weight, rounds))
    known = np.isfinite(gap) & np.isfinite(weight)
    return (gap[known], weight[known], rounds[known]) if known.any() else None


def _weights(gap: np.ndarray, surrogate: str, gap_scale: float) -> np.ndarray:
    return gap_scale * DERIVATIVES[surrogate](gap_scale * gap)


def _surrogate_of(gap: np.ndarray, weight: np.ndarray, gap_scale: float) -> str:
    """The first surrogate whose weights are those that were recorded; "sigmoid" if none has them."""
    few = np.unique(np.linspace(0, len(gap) - 1, min(100, len(gap))).astype(int))
    for name in DERIVATIVES:
        expected = _weights(gap[few], name, gap_scale)
        if np.abs(expected - weight[few]).max() <= AGREES * max(np.abs(expected).max(), 1e-12):
            return name
    return next(iter(DERIVATIVES))
