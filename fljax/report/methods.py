"""Tables of several runs: methods beside partitions, or every metric with its difference from the first run.

A block is what all methods are compared on: a run, or of a sweep each combination of values of the axes that belong to
the data or the model. Over other axes, such as learning rates, every method has its best cell of the block, chosen by
validation rows where there are some. The table has means over seeds, average ranks, critical difference and total time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.core.names import unknown
from fljax.metrics.arrays import Ranking, alike, ranking
from fljax.metrics.uncertainty import over_seeds
from fljax.report.exporting import escape, latex_cell, latex_lines
from fljax.report.tables import Row, digits_of, last_values, summary, title
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import is_lower
from fljax.results.sweeps import axes_of, best, by_problem, number

if TYPE_CHECKING:
    import pandas as pd


class MethodTable(NamedTuple):
    """k methods on n blocks."""

    metric: str
    lower: bool
    methods: tuple[str, ...]  # labels of the algorithms, in the order of their first run
    blocks: tuple[str, ...]  # names of runs, of cells of sweeps with their values
    mean: np.ndarray  # [n, k] over the seeds with a value; NaN where a method has none
    std: np.ndarray  # [n, k] over these seeds (n - 1); NaN for fewer than two
    seconds: np.ndarray  # [k] of all seeds and blocks: compiling, rounds and evaluations
    ranked: tuple[int, ...]  # places of the methods that have a value in every block, the only ones that are ranked
    ranking: Ranking | None  # of these methods; None if there are none

    def frame(self) -> pd.DataFrame:
        """The table as text, a line for each method; ``*`` marks the best of a block."""
        import pandas as pd

        heads, lines = lines_of(self)
        return pd.DataFrame(lines, columns=pd.Index(heads)).set_index("method")

    def latex(self) -> str:
        """The table with the rules of booktabs; the best of a block is bold. The first line says what it is."""
        heads, lines = lines_of(self, latex_cell)
        heads = ["Method", *heads[1:-2], "Average rank", "Seconds"]
        escaped = [[escape(label), *(text.replace("–", "--") for text in texts)] for label, *texts in lines]
        told = note(self).replace("*: best", "bold: best")
        return latex_lines([[escape(head) for head in heads], *escaped], escape(told))


def method_table(runs: Mapping[str, Any] | Any, metric: str, alpha: float = 0.05) -> MethodTable:
    """The table of several runs and sweeps, as papers have it: ``.frame()`` is text, ``.latex()`` is LaTeX.

    Args:
      runs: each run or sweep by a name for the table: what ``fljax.load``, ``compare`` or ``sweep`` returned, or its
        ``metrics``. A single one needs no name.
      metric: a scalar metric.
      alpha: the level of the critical difference.
    """
    named = runs if isinstance(runs, Mapping) and not isinstance(runs, xr.Dataset) else {"": runs}
    runs = {name: getattr(run, "metrics", run) for name, run in named.items()}
    methods = list(dict.fromkeys(str(label) for of_run in runs.values() for label in of_run["algorithm"].values))
    if not any(metric in of_run and _is_scalar(of_run, metric) for of_run in runs.values()):
        known = {str(name) for of_run in runs.values() for name in of_run.data_vars if _is_scalar(of_run, str(name))}
        raise ValueError(unknown("metric", metric, sorted(known)))
    blocks = [block for name, of_run in runs.items() for block in _blocks(name, of_run)]
    values = [_values(of_block, metric, methods) for _, of_block in blocks]
    mean, std = (np.array([[entry[place] for entry in line] for line in values], float) for place in (0, 1))
    lower = next(is_lower(of_run[metric]) for of_run in runs.values() if metric in of_run)
    ranked = tuple(np.flatnonzero(np.isfinite(mean).all(axis=0)).tolist())
    table_ranking = ranking(mean[:, list(ranked)], lower=lower, alpha=alpha) if ranked else None
    seconds = np.array([sum(_seconds(of_run, label) for of_run in runs.values()) for label in methods])
    names = tuple(name or title(metric) for name, _ in blocks)
    return MethodTable(metric, lower, tuple(methods), names, mean, std, seconds, ranked, table_ranking)


def _is_scalar(metrics: xr.Dataset, name: str) -> bool:
    return {"algorithm", "seed", "evaluated_round", *axes_of(metrics)} == set(metrics[name].dims)


def _blocks(name: str, metrics: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """The blocks of a run or a sweep, with their names."""
    return [
        (", ".join(filter(None, [name, *(f"{axis} = {number(value)}" for axis, value in values.items())])), cells)
        for values, cells in by_problem(metrics)
    ]


def _values(metrics: xr.Dataset, metric: str, methods: Sequence[str]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each method; NaN for those that the block has not."""
    nothing = (math.nan, math.nan)
    if metric not in metrics:
        return [nothing for _ in methods]
    if axes_of(metrics):  # the last choice of a method is by validation rows, if there are any
        chosen = {choice.algorithm: (choice.mean, choice.std) for choice in best(metrics, metric)}
        return [chosen.get(label, nothing) for label in methods]
    there = [str(label) for label in metrics["algorithm"].values]
    numbers: list[tuple[float, float]] = []
    for label in methods:
        values = last_values(metrics, label, metric) if label in there else None
        numbers.append(nothing if values is None else over_seeds(values)[:2])
    return numbers


def _seconds(metrics: xr.Dataset, label: str) -> float:
    if label not in [str(entry) for entry in metrics["algorithm"].values]:
        return 0.0
    names = [str(name) for name in metrics.data_vars if str(name).startswith("seconds_")]
    return sum(float(np.nansum(metrics[name].sel(algorithm=label).values)) for name in names)


def _text_cell(mean: str, spread: str, best: bool) -> str:
    return f"{mean}{spread and f' ± {spread}'}{'*' * best}"


def lines_of(
    table: MethodTable, cell: Callable[[str, str, bool], str] = _text_cell
) -> tuple[list[str], list[list[str]]]:
    """The headings and a line for each method: values by block, average rank, seconds; ``cell`` marks the best."""
    digits = digits_of(table.metric)
    # As they are printed: equal ones are the best alike.
    printed = [[f"{mean:.{digits}f}" if math.isfinite(mean) else None for mean in line] for line in table.mean]
    best = [(min if table.lower else max)((text for text in line if text), key=float, default=None) for line in printed]
    lines = []
    for place, label in enumerate(table.methods):
        cells = [label]
        for texts, stds, top in zip(printed, table.std, best, strict=True):
            mean, spread = texts[place], f"{stds[place]:.{digits}f}" if math.isfinite(stds[place]) else ""
            cells.append("–" if mean is None else cell(mean, spread, mean == top))
        rank = table.ranking.average[table.ranked.index(place)] if table.ranking and place in table.ranked else None
        lines.append([*cells, "–" if rank is None else f"{rank:.2f}", f"{table.seconds[place]:.1f}"])
    return ["method", *table.blocks, "average rank", "seconds"], lines


def note(table: MethodTable) -> str:
    """What the numbers are, and whether the methods differ by more than chance."""
    better = "lower" if table.lower else "higher"
    about = f"{better} is better; *: best of its block"
    words = f"{title(table.metric)} at the last evaluation, mean ± std over seeds ({about})."
    table_ranking = table.ranking
    if table_ranking is None or len(table.ranked) < 2:
        return f"{words} Nothing is ranked: fewer than two methods have a value in every block."
    if len(table.ranked) < len(table.methods):
        words += " Methods without a value in some block are not ranked."
    if not math.isfinite(table_ranking.critical_difference):
        return f"{words} One block has no critical difference."
    difference = table_ranking.critical_difference
    words += f" Critical difference of average ranks (Nemenyi, alpha = {table_ranking.alpha:g}): {difference:.2f}."
    if math.isfinite(table_ranking.p):
        words += f" Friedman: chi-squared {table_ranking.friedman:.2f}, p = {table_ranking.p:.3g}."
    groups = [
        " and ".join(table.methods[table.ranked[place]] for place in group)
        for group in alike(table_ranking.average, difference)
    ]
    return f"{words} Not told apart: {'; '.join(groups)}." if groups else f"{words} All ranked methods differ."


def as_json(table: MethodTable) -> dict[str, Any]:
    """The table as values of JSON."""
    table_ranking = table.ranking
    ranks = {} if table_ranking is None else dict(zip(table.ranked, table_ranking.average.tolist(), strict=True))
    lines = [
        {
            "method": label,
            "values": dict(zip(table.blocks, table.mean[:, place].tolist(), strict=True)),
            "std": dict(zip(table.blocks, table.std[:, place].tolist(), strict=True)),
            "average_rank": ranks.get(place),
            "seconds": float(table.seconds[place]),
        }
        for place, label in enumerate(table.methods)
    ]
    names = ("friedman", "p", "critical_difference", "alpha")
    tested = {} if table_ranking is None else {name: getattr(table_ranking, name) for name in names}
    return {"metric": table.metric, "better": "lower" if table.lower else "higher", "methods": lines, **tested}


class Difference(NamedTuple):
    """A difference of means over seeds."""

    mean: float
    std: float  # of differences seed by seed (n - 1); NaN for different seeds, or fewer than two
    of: tuple[str, str]  # the run and the algorithm from which it is


class Compared(NamedTuple):
    """One metric of one algorithm of one run."""

    run: str  # its name
    row: Row  # the metric
    difference: Difference | None  # None for what others are compared with
    diverged: str = ""  # which seeds of this algorithm diverged in this run, in words


def compare_runs(runs: Mapping[str, xr.Dataset]) -> list[Compared]:
    """Every metric of runs by name, at each algorithm's last evaluation, with differences from the first run."""
    for name, metrics in runs.items():
        if axes_of(metrics):
            raise ValueError(f"expected folders of fljax run, got {name!r}, which is of fljax sweep")
    (first, metrics), *_ = runs.items()
    known = [str(each) for each in metrics["algorithm"].values]
    compared: list[Compared] = []
    for name, of_run in runs.items():
        marks = diverged_seeds(of_run)
        for row in summary(of_run):
            # From its algorithm of the same label, or else from its first one.
            base = row.algorithm if row.algorithm in known else known[0]
            same = name == first and base == row.algorithm
            difference = None if same else _difference(metrics, base, of_run, row)
            difference = None if difference is None else Difference(*difference, (first, base))
            compared.append(Compared(name, row, difference, marks.get(row.algorithm, "")))
    return compared


def _difference(reference: xr.Dataset, base: str, metrics: xr.Dataset, row: Row) -> tuple[float, float] | None:
    first, second = last_values(reference, base, row.metric), last_values(metrics, row.algorithm, row.metric)
    if first is None or second is None:
        return None
    if np.array_equal(reference["seed"].values, metrics["seed"].values):
        mean, std, _ = over_seeds(second - first)
    else:
        mean, std = over_seeds(second).mean - over_seeds(first).mean, math.nan
    return (mean, std) if math.isfinite(mean) else None
