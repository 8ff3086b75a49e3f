"""Tables of results as text: mean and standard deviation over seeds at the last evaluation, best cells of a sweep."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.core.names import unknown
from fljax.metrics.formulas import rounds_to_target
from fljax.metrics.registry import is_lower_better
from fljax.metrics.scores import score_name
from fljax.metrics.uncertainty import main_columns, over_seeds
from fljax.results.events import array_of, at_end, end_of, weights_in_words
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import directions, is_lower
from fljax.results.sweeps import VALIDATION, Best, axes_of, best, label_of, number, places_of, problem_axes

# Titles of scalar metrics in tables and on axes, in the order of tables. Values are shares of 1, except for
# correlations and COUNTS.
TITLES = {
    "incentivised_participation_rate": "Clients that prefer the deployed model (IPR)",
    "preferred_model_accuracy": "Accuracy of the preferred model",
    "average_accuracy": "Average accuracy",
    "global_average_accuracy": "Average accuracy of the global model",
    "average_valid_accuracy": "Average accuracy on validation rows",
    "average_valid_loss": "Average loss on validation rows",
    "server_test_accuracy": "Accuracy of the server's own model",
    "maximum_accuracy": "Best client's accuracy",
    "global_incentivised_participation_rate": "Clients that prefer the global model",
    "global_model_appeal": "Clients whose requirement the global model meets",
    "deployed_model_appeal": "Clients whose requirement the tuned model meets",
    "valid_incentivised_participation_rate": "Clients that prefer the deployed model on validation rows",
    "valid_global_model_appeal": "Clients whose requirement the global model meets on validation rows",
    "incentive_margin": "Loss saved by clients that prefer the deployed model",
    "appeal_margin": "Loss below what clients require of the global model",
    "objective": "Objective of INCFL and MaxFL",
    "objective_gradient_norm": "Norm of the objective's gradient",
    "preferred_model_accuracy_by_accuracy": "Accuracy of the more accurate model",
    "preferred_model_accuracy_by_threshold": "Accuracy of the model that meets the requirement",
    "accuracy_increase": "Accuracy gained over standalone",
    "accuracy_spread": "Spread of accuracy over clients",
    "worst_decile_accuracy": "Accuracy of the worst tenth of clients",
    "jain_index": "Jain's index of accuracy",
    "worse_off_by_noise": "Clients worse off by accuracy, within noise",
    "average_gain": "Accuracy gained over the baseline",
    "opt_outs": "Number of clients that opt out",
    "opt_outs_by_noise": "Number of opt-outs within noise",
    "participation_rate": "Clients that do not opt out",
    "pearson_correlation": "Correlation of accuracy with standalone",
    "contribution_correlation": "Correlation of accuracy with contribution",
    "ipr_loss": "Clients not worse off by loss",
    "ipr_accuracy": "Clients not worse off by accuracy",
    "average_backdoor_success": "Rows with a trigger that an attacker's class is assigned to",
    "gradient_steps": "Gradients computed by clients",
    "forward_passes": "Inference passes of clients in training",
    "dropped_messages": "Messages dropped, not finite",
}

# Metrics that count clients or messages.
COUNTS = frozenset({"opt_outs", "opt_outs_by_noise", "gradient_steps", "forward_passes", "dropped_messages"})
# Metrics that are no shares of 1.
NOT_SHARES = COUNTS | {
    "average_loss",
    "average_valid_loss",
    "incentive_margin",
    "appeal_margin",
    "jain_index",
    "objective",
    "objective_gradient_norm",
    "pearson_correlation",
    "contribution_correlation",
}


def is_share(metric: str) -> bool:
    """Whether a scalar metric is a share of 1, or a difference of shares; scores are numbers."""
    return metric.removeprefix("unseen_") not in NOT_SHARES and score_name(metric) is None


class Row(NamedTuple):
    """One metric of one algorithm at the last evaluation.

    Attributes:
      mean: mean over the seeds with a finite value; NaN if there are none.
      std: standard deviation over these seeds with n - 1 in the denominator; NaN for fewer than two seeds.
      seeds: number of seeds with a finite value.
      of: number of seeds that ran.
      round: the round of the evaluation.
    """

    algorithm: str
    metric: str
    mean: float
    std: float
    seeds: int
    of: int
    round: int


def summary(metrics: Any) -> list[Row]:
    """Every metric that has one number per algorithm, seed and evaluation, at each algorithm's own last evaluation.

    Args:
      metrics: variables over algorithm, seed and evaluated_round, or what has them as ``metrics``: a comparison, a
        loaded run. Rows about seen clients come first.
    """
    metrics = getattr(metrics, "metrics", metrics)
    names = [f"{prefix}{name}" for prefix in ("", "unseen_") for name in TITLES]
    others = [str(name) for name in metrics.data_vars if str(name) not in names]
    rows = []
    for algorithm in metrics["algorithm"].values if "algorithm" in metrics.coords else ():
        for name in [*names, *others]:
            values = last_values(metrics, str(algorithm), name)
            if values is not None:
                last = int(metrics["evaluated_round"].values[end_of(metrics, str(algorithm))])
                rows.append(Row(str(algorithm), name, *over_seeds(values), len(values), last))
    return rows


def when(rows: Sequence[Row]) -> str:
    """``after round 100``; of algorithms that ended at different rounds, where each of them did."""
    last = {row.algorithm: row.round for row in rows}
    if len(set(last.values())) == 1:
        return f"after round {rows[0].round}"
    return "after " + ", ".join(f"round {round} of {label}" for label, round in last.items())


def pivot(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row | None]]:
    """The rows of the given metrics by algorithm; None for a missing number."""
    by_place = {(row.algorithm, row.metric): row for row in rows}
    algorithms = dict.fromkeys(row.algorithm for row in rows)
    table = {label: [by_place.get((label, name)) for name in names] for label in algorithms}
    return {key: [row if row is not None and row.seeds else None for row in line] for key, line in table.items()}


def with_spread(mean: float, std: float, digits: int = 3, sign: str = "") -> str:
    """``mean ± std``; without a spread that is NaN, and a dash for a mean that is NaN."""
    if math.isnan(mean):
        return "–"
    return f"{mean:{sign}.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def cell(row: Row | None) -> str:
    """``mean ± std`` with three decimals (counts: one) and ``(seeds of all seeds)`` if some lack it; or a dash."""
    if row is None or not row.seeds:
        return "–"
    missing = "" if row.seeds == row.of else f" ({row.seeds} of {row.of})"
    return f"{with_spread(row.mean, row.std, digits_of(row.metric))}{missing}"


class Overview(NamedTuple):
    """The main metrics of all algorithms as text.

    Attributes:
      title: of the table.
      caption: what the numbers are.
      columns: the heads of all columns after the label.
      lines: the cells of each algorithm, by label.
    """

    title: str
    caption: str
    columns: tuple[str, ...]
    lines: dict[str, tuple[str, ...]]


def overview(rows: Sequence[Row], seeds: int, diverged: Mapping[str, str] | None = None, scores: str = "") -> Overview:
    """The table that ``fljax run`` prints: the main metrics, those of losses for a task without accuracies.

    Args:
      rows: from ``summary``.
      seeds: number of seeds.
      diverged: words about seeds that diverged, by label.
      scores: words about the directions of scores (``fljax.results.records.directions``).
    """
    diverged = diverged or {}
    accuracies = any(row.metric == "average_accuracy" for row in rows)
    columns = main_columns({row.metric for row in rows if row.seeds})
    lines = pivot(rows, list(columns))
    heads = [*columns.values(), *["diverged"] * bool(diverged)]
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    last = f"{when(rows)}, " if rows else ""
    about = "IPR: share of clients that prefer the deployed model" + (
        "; accuracies are shares of 1" if accuracies else ""
    )
    about += f"; {scores}" if scores else ""
    cells = {label: (*map(cell, line), *[diverged.get(label, "")] * bool(diverged)) for label, line in lines.items()}
    return Overview(f"Test results {last}{spread}", about, tuple(heads), cells)


def main_table(metrics: xr.Dataset) -> tuple[list[Sequence[str]], str, str]:
    """Lines (headings first), title and caption of the table of a run or, with its best cells, of a sweep."""
    marks = diverged_seeds(metrics)
    if axes_of(metrics):
        metric = str(metrics.attrs["metric"])
        caption = "; ".join(filter(None, ["(edge): edge of the grid", weights_in_words(metrics)]))
        return [*best_rows(best(metrics, metric), metric, marks)], "Best cells at the last evaluation", caption
    shown = overview(summary(metrics), metrics.sizes["seed"], marks, directions(metrics))
    lines = [(label, *cells) for label, cells in shown.lines.items()]
    return [("algorithm", *shown.columns), *lines], shown.title, shown.caption


def digits_of(metric: str) -> int:
    """The number of decimals with which a metric is shown."""
    return 1 if metric.removeprefix("unseen_") in COUNTS else 3


def title(name: str) -> str:
    """The title of a metric in plain words."""
    plain = name.removeprefix("unseen_")
    words = TITLES.get(plain, plain.replace("_", " ").capitalize())
    if (score := score_name(plain)) is not None:
        words = f"Score {score}, {'all rows together' if plain.startswith('pooled') else 'mean over clients'}"
    return f"{words} (unseen)" if plain != name else words


def last_values(metrics: xr.Dataset, algorithm: str, name: str) -> np.ndarray | None:
    """``[seed]`` at the algorithm's own last evaluation; None if the metric is not one number per evaluation."""
    values = array_of(metrics, name, "seed", "evaluated_round", algorithm=algorithm)
    return None if values is None else values[:, end_of(metrics, algorithm)]


# --- Rounds to a target --------------------------------------------------------------------------------------


def to_target(metrics: Any, name: str, target: float) -> list[Row]:
    """After how many rounds the evaluations of each algorithm first reach a target, as ``rounds_to_target`` says.

    Args:
      metrics: as for ``summary``. A sweep has a line for the best cells of each algorithm.
      name: a metric with one number for each evaluation.
      target: the value to reach: from above, if lower is better.

    Returns:
      For each algorithm, ``mean`` and ``std`` are rounds, over the ``seeds`` of ``of`` that reach the target; NaN if
      none does. ``round`` is that of the last evaluation.

    Raises:
      ValueError: if there is no such metric, or if the target is no number.
    """
    metrics = getattr(metrics, "metrics", metrics)
    by_seed = cost_to_target(metrics, name, target)["rounds"]
    if axes_of(metrics):
        return [
            row._replace(algorithm=label_of(row.algorithm, choice.cell))
            for choice, cells in _best_cells(metrics)
            for row in to_target(cells, name, target)
            if row.algorithm == choice.algorithm
        ]
    rounds, rows = metrics["evaluated_round"].values, []
    for label in metrics["algorithm"].values.tolist():
        found = by_seed.sel(algorithm=label).values
        rows.append(Row(label, name, *over_seeds(found), len(found), int(rounds[end_of(metrics, label)])))
    return rows


def cost_to_target(run: Any, name: str, target: float) -> xr.Dataset:
    """What reaching a target costs, by algorithm and seed, and by the axes of a sweep; NaN where it is not reached.

    Args:
      run: a comparison, a loaded run, or its ``metrics`` alone, which have no bytes.
      name: a metric with one number for each evaluation.
      target: the value to reach: from above, if lower is better.

    Returns:
      ``rounds``; ``bytes``, sent and received by all clients until then, which mean nothing for a pooled baseline;
      ``seconds``, their share of the seconds of all rounds of all seeds, without compiling and evaluations.

    Raises:
      ValueError: if there is no such metric, or if the target is no number.
    """
    metrics, records = getattr(run, "metrics", run), getattr(run, "records", {})
    dims = ("algorithm", *axes_of(metrics), "seed", "evaluated_round")
    if name not in metrics or set(metrics[name].dims) != set(dims):
        there = [str(each) for each, values in metrics.data_vars.items() if set(values.dims) == set(dims)]
        raise ValueError(unknown("metric", name, there))
    if not math.isfinite(target):
        raise ValueError(f"expected a finite target of {name}, got {target}")
    values = np.asarray(metrics[name].transpose(*dims).values, float)
    rounds = rounds_to_target(values, metrics["evaluated_round"].values, target, lower=is_lower(metrics[name]))
    found = xr.Dataset(
        {"rounds": (dims[:-1], rounds)}, {dim: metrics[dim] for dim in dims[:-1] if dim in metrics.coords}
    )
    if {"seconds_train", "rounds_done"} <= set(metrics.data_vars):
        found["seconds"] = (found["rounds"] / metrics["rounds_done"] * metrics["seconds_train"]).transpose(*dims[:-1])
    if {"bytes_up", "bytes_down"} <= set(records):
        total = (records["bytes_up"] + records["bytes_down"]).transpose(..., "round").astype(float).cumsum("round")
        before = total.pad(round=(1, 0), constant_values=0.0).isel(round=found["rounds"].fillna(0).astype(int))
        found["bytes"] = before.where(np.isfinite(found["rounds"])).transpose(*dims[:-1])
    return found.drop_vars("round", errors="ignore")


def target_lines(rows: Sequence[Row], target: float, *, lower: bool | None = None) -> list[list[str]]:
    """The rows of ``to_target`` as text, with headings; who did not reach the target is said so in words.

    Args:
      rows: of one metric.
      target: the value to reach.
      lower: whether lower is better; None: as the name of the metric says, which a score of one's own does not.
    """
    name = rows[0].metric if rows else ""
    below = is_lower_better(name) if lower is None else lower
    lines = [["algorithm", f"rounds to {title(name)} {'<=' if below else '>='} {target:g}"]]
    for row in rows:
        some = "" if row.seeds == row.of else f" ({row.seeds} of {row.of} seeds)"
        words = f"{with_spread(row.mean, row.std, 1)}{some}" if row.seeds else f"not reached by round {row.round}"
        lines.append([row.algorithm, words])
    return lines


# --- Best cells of a sweep -----------------------------------------------------------------------------------


def best_rows(found: Sequence[Best], metric: str, diverged: Mapping[str, str] | None = None) -> list[list[str]]:
    """The best cells as text: a row of headings, then one row for each algorithm and criterion.

    ``diverged`` has words about diverged runs by the label of their algorithm; a column shows them if there are any.
    """
    diverged = diverged or {}
    axes = list(found[0].cell) if found else []
    several = len({choice.criterion for choice in found}) > 1
    chosen = ["value chosen by"] if several else []
    rows = [["algorithm", "chosen by", *axes, *chosen, title(metric), *["diverged"] * bool(diverged)]]
    for choice in found:
        cell_of_choice = [number(choice.cell[name]) + (" (edge)" if name in choice.edges else "") for name in axes]
        by = "validation rows" if choice.criterion in VALIDATION else "test rows"
        level = [f"{choice.chosen_by:.3f}"] if several else []
        marks = [diverged.get(choice.algorithm, "")] * bool(diverged)
        rows.append([choice.algorithm, by, *cell_of_choice, *level, with_spread(choice.mean, choice.std), *marks])
    return rows


def best_cell_rows(metrics: xr.Dataset, shown: Collection[str] = ()) -> tuple[list[Row], dict[str, str]]:
    """``summary`` of each algorithm in its best cell, as ``fedavg (learning_rate = 0.1)``; seeds that diverged."""
    last, rows, diverged = at_end(metrics), list[Row](), dict[str, str]()
    # Along an axis without a difference it is the first cell; labels name it if a shown metric differs.
    for choice, cell_of_label in _best_cells(metrics):
        label = choice.algorithm
        of_label = [row for row in summary(cell_of_label) if row.algorithm == label]
        read = [last[row.metric].sel(algorithm=label) for row in of_label if not shown or row.metric in shown]
        differing = [name for name in choice.cell if any(_differs(values, name) for values in read)]
        cell = choice.cell | {name: cell_of_label[name].item() for name in differing}
        name = label_of(label, cell)
        rows += [row._replace(algorithm=name) for row in of_label]
        if (words := diverged_seeds(cell_of_label).get(label)) is not None:
            diverged[name] = words
    return rows, diverged


def _best_cells(metrics: xr.Dataset) -> list[tuple[Best, xr.Dataset]]:
    """The best cell of each algorithm, by validation rows if clients have some; first values where none matters."""
    problems, found = problem_axes(metrics), best(metrics, str(metrics.attrs["metric"]))
    chosen = {(choice.algorithm, *(choice.cell[name] for name in problems)): choice for choice in found}
    one = metrics.assign_attrs(grid="{}")
    return [(choice, one.isel(places_of(metrics, choice.cell))) for choice in chosen.values()]


def _differs(values: xr.DataArray, axis: str) -> bool:
    """Whether values differ along an axis."""
    if axis not in values.dims:
        return False
    numbers = np.asarray(values.transpose(axis, ...).values, float)
    return not np.array_equal(numbers, np.broadcast_to(numbers[:1], numbers.shape), equal_nan=True)
