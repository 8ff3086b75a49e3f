"""What ``estimators.py`` writes: a page with tables and verdicts, a picture, and the numbers as JSON.

The verdicts ask what a paper says: Geimer, Fiz and State ("On the volatility of Shapley-based contribution metrics in
federated learning", arXiv 2405.08044) compute Shapley values from models that are put together out of one run's
updates, and report that the reward of a client depends on the strategy of aggregation. A reward is a client's share of
the sum, so the measure is the share of all rewards that changes hands, ``||phi / sum phi - psi / sum psi||_1 / 2``,
beside tau-b of the orders. What seeds of one algorithm do is the yardstick.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from throughput import hardware

from fljax import contributions, games
from fljax.report.estimators import estimator_notes, of_all_clients, ranked
from fljax.report.style import COLOURS, INK

PAPER = "arXiv 2405.08044"
TITLES = (
    "estimator",
    "tau-b",
    "Spearman",
    "share error",
    "RMSE",
    "best",
    "worst",
    "stability",
    "clients",
    "trainings",
    "evaluations",
    "gradients",
)
RETRAINED, WITHOUT = "retrained", ", without "
ANSWERS = ("more than between seeds", "less than between seeds", "not decided")
EXACT = 0.01  # accuracy by which values of rounds may miss the gain of their run


class Found(NamedTuple):
    """What is known of a federation; the comparison of algorithms is None until they are done."""

    estimators: xr.Dataset
    truth: games.CoalitionTable
    algorithms: xr.Dataset | None = None
    of_one_run: xr.Dataset | None = None


class Spread(NamedTuple):
    """How far the values of clients depend on the algorithm, and how far on the seed.

    Attributes:
      order: ``[R]``, the mean tau-b of all pairs of algorithms with the same seed.
      order_of_seeds: the mean tau-b of all pairs of seeds of one algorithm.
      moved: ``[R]``, the mean share of all rewards that changes hands between two algorithms with the same seed.
      moved_of_seeds: the mean between two seeds of one algorithm.
      unknown: share of the pairs without shares, since values add up to 0 or less.
    """

    order: np.ndarray
    order_of_seeds: float
    moved: np.ndarray
    moved_of_seeds: float
    unknown: float


def spread(worth: np.ndarray) -> Spread:
    """``Spread`` of values ``[A, R, N]`` of A algorithms and R seeds; pairs without a number do not count."""
    algorithms = list(itertools.combinations(range(worth.shape[0]), 2))
    seeds = list(itertools.combinations(range(worth.shape[1]), 2))
    between = contributions.agreement(
        np.stack([worth[a] for a, _ in algorithms]), np.stack([worth[b] for _, b in algorithms])
    )
    within = contributions.agreement(
        np.stack([worth[:, a] for a, _ in seeds]), np.stack([worth[:, b] for _, b in seeds])
    )
    moved = np.concatenate([between.share_error.ravel(), within.share_error.ravel()])
    return Spread(
        order=np.array([mean(row) for row in between.kendall.T]),
        order_of_seeds=mean(within.kendall),
        moved=np.array([mean(row) for row in between.share_error.T]) / 2,
        moved_of_seeds=mean(within.share_error) / 2,
        unknown=float(np.isnan(moved).mean()),
    )


def mean(values: Any) -> float:
    """The mean of what is known; NaN if there is none."""
    known = np.asarray(values)[np.isfinite(np.asarray(values))]
    return float(known.mean()) if len(known) else float("nan")


def number(value: float, digits: int = 2) -> str:
    """A number for a table; "-" for NaN."""
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def lines_of_estimators(compared: xr.Dataset) -> list[str]:
    """A row for each estimator, the best order first; those that say nothing of some clients come last."""
    rows = []
    for place in ranked(compared):
        entry = compared.isel(estimator=place)
        known = np.isfinite(entry["deviation"]).all()
        error = float(np.sqrt(np.mean(np.square(entry["deviation"].values)))) if known else np.nan
        cells = [number(mean(entry[key])) for key in ("kendall", "spearman", "share_error")]
        cells += [number(error, 4)]
        cells += [number(mean(entry[key])) for key in ("best_found", "worst_found", "stability")]
        cells += [f"{mean(entry['compared']):.3g} of {compared.sizes['client']}"]
        cells += [f"{float(entry[key]):,.0f}" for key in ("trainings", "evaluations", "gradients")]
        rows.append(_row([f"`{entry['estimator'].item()}`", *cells]))
    return [_row(list(TITLES)), "|---" * len(TITLES) + "|", *rows]


def lines_of_algorithms(compared: xr.Dataset) -> list[str]:
    """The mean tau-b of all pairs of algorithms; on the diagonal that between seeds of one algorithm."""
    names = compared["algorithm"].values.tolist()
    rows = [_row(["", *names]), "|---" * (len(names) + 1) + "|"]
    for name in names:
        cells = [
            f"*{number(float(compared['stability'].sel(algorithm=name)))}*"
            if name == other
            else number(mean(compared["kendall"].sel(algorithm=name, other=other)))
            for other in names
        ]
        rows.append(_row([name, *cells]))
    return rows


def worths_of(found: Found) -> dict[str, np.ndarray]:
    """``[A, R, N]`` by how values were computed: retrained, and by estimators of one run.

    Then the same without the algorithms whose step is no mean of updates, if there are some: of these, models that are
    put together out of updates are not those of the run.
    """
    if found.algorithms is None or found.of_one_run is None:
        return {}
    single, axes = found.of_one_run, ("algorithm", "seed", "client")
    values = {RETRAINED: found.algorithms["worth"].transpose(*axes).values}
    for name in single["estimator"].values.tolist():
        values[f"`{name}`"] = single["worth"].sel(estimator=name).transpose(*axes).values
    exact = single["gap"].values <= EXACT
    others = ", ".join(single["algorithm"].values[~exact])
    restricted = {f"{name}{WITHOUT}{others}": worth[exact] for name, worth in values.items()}
    return values | (restricted if others and exact.sum() > 1 else {})


class Question(NamedTuple):
    """Whether values of one kind depend more on the algorithm than on the seed.

    Attributes:
      numbers: of the values.
      difference: of the part that moves between algorithms and that between seeds of one algorithm, with a t-interval
        over seeds that takes the latter as known.
    """

    numbers: Spread
    difference: contributions.ErrorBars

    @property
    def answer(self) -> str:
        """In words."""
        more, less, undecided = ANSWERS
        return more if self.difference.low > 0 else less if self.difference.high < 0 else undecided


def asked(values: np.ndarray) -> Question:
    """``Question`` of values ``[A, R, N]``."""
    numbers = spread(values)
    return Question(numbers, contributions.error_bars(numbers.moved - numbers.moved_of_seeds))


def lines_of_spread(worths: Mapping[str, np.ndarray]) -> list[str]:
    """How far values depend on the algorithm, and on the seed: a row for each way to compute them."""
    head = ("values", "tau-b, algorithms", "tau-b, seeds", "moved, algorithms", "moved, seeds", "difference, 95 %")
    rows = [_row([*head, "algorithms move rewards", "pairs with shares"]), "|---" * (len(head) + 2) + "|"]
    for name, values in worths.items():
        numbers, bars = (question := asked(values))
        cells = [number(mean(numbers.order)), number(numbers.order_of_seeds)]
        cells += [percent(mean(numbers.moved)), percent(numbers.moved_of_seeds)]
        cells += [f"{100 * bars.mean:+.1f} ({100 * bars.low:+.1f} to {100 * bars.high:+.1f})", question.answer]
        rows.append(_row([name, *cells, percent(1 - numbers.unknown, 0)]))
    return rows


def percent(value: float, digits: int = 1) -> str:
    """A share as percent; "-" for NaN."""
    return f"{100 * value:.{digits}f} %" if np.isfinite(value) else "-"


def lines_of_gains(compared: xr.Dataset, single: xr.Dataset) -> list[str]:
    """What all clients together gain by each algorithm, and how far values by round miss it."""
    names = compared["algorithm"].values.tolist()
    gains = compared["worth"].sum("client").mean("seed")
    rows = [["gain by retraining", *(number(float(gains.sel(algorithm=name))) for name in names)]]
    rows.append(
        ["most that `multi_round` misses", *(number(float(single["gap"].sel(algorithm=name))) for name in names)]
    )
    return [_row(["", *names]), "|---" * (len(names) + 1) + "|", *map(_row, rows)]


def verdict(known: Mapping[str, Found]) -> str:
    """What the numbers say about the published finding, of the federations whose algorithms are done."""
    done = {kind: worths_of(found) for kind, found in known.items() if worths_of(found)}
    if not done:
        return ""
    sentences = ["**Does the published finding hold?**"]
    for name in dict.fromkeys(name for values in done.values() for name in values):
        questions = {kind: asked(values[name]) for kind, values in done.items() if name in values}
        moved = [mean(question.numbers.moved) for question in questions.values()]
        seeds = [question.numbers.moved_of_seeds for question in questions.values()]
        kinds = {
            answer: [kind for kind, question in questions.items() if question.answer == answer] for answer in ANSWERS
        }
        words = "; ".join(f"{answer} in {', '.join(kinds[answer])}" for answer in ANSWERS if kinds[answer])
        sentences.append(
            f"{name[:1].upper()}{name[1:]}: {_range(moved)} of the rewards move between algorithms, {_range(seeds)} "
            f"between seeds of one algorithm; {words}."
        )
    return " ".join(sentences)


def _range(values: list[float]) -> str:
    low, high = (percent(bound) for bound in (min(values), max(values)))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def worths(truth: games.CoalitionTable) -> list[str]:
    """Shapley values by client, mean and standard deviation over seeds."""
    phi = games.shapley(truth)
    deviation = phi.std(axis=0, ddof=1) if len(phi) > 1 else np.full(phi.shape[1], np.nan)
    cells = [f"{a:.3f} ± {number(b, 3)}" for a, b in zip(phi.mean(axis=0), deviation, strict=True)]
    return [_row([str(client) for client in range(phi.shape[1])]), "|---" * phi.shape[1] + "|", _row(cells)]


def section(kind: str, found: Found) -> list[str]:
    """The lines of a federation."""
    ceiling = number(float(found.estimators["ceiling"]))
    text = [f"## {kind}", "", "Shapley values of the clients by FedAvg, mean ± standard deviation over seeds:", ""]
    text += [*worths(found.truth), "", f"tau-b of the truths of two seeds, the ceiling of stability: {ceiling}.", ""]
    text += [*lines_of_estimators(found.estimators), ""]
    text += [*estimator_notes(found.estimators), ""]
    if found.algorithms is None or found.of_one_run is None:
        return text
    text += ["tau-b between algorithms with the same seed; on the diagonal between seeds of one algorithm:", ""]
    text += [*lines_of_algorithms(found.algorithms), ""]
    text += ["How far values depend on the algorithm (same seed), and on the seed (same algorithm):", ""]
    text += [*lines_of_spread(worths_of(found)), ""]
    text += ["What all clients together gain over the untrained model, on test rows:", ""]
    return [*text, *lines_of_gains(found.algorithms, found.of_one_run), ""]


# --- The picture and the numbers -------------------------------------------------------------------------------------


def picture(known: Mapping[str, Found]) -> Figure:
    """tau-b of all estimators, and beside it the rewards that move between algorithms, and between seeds."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    _draw_estimators(left, known)
    _draw_spread(right, {kind: worths_of(found) for kind, found in known.items()})
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set(fontsize=11, color=INK, fontweight="bold")
    return figure


def _draw_estimators(axes: Axes, known: Mapping[str, Found]) -> None:
    first = next(iter(known.values())).estimators
    order = first["estimator"].values[np.argsort(np.nan_to_num(first["kendall"].mean("seed").values, nan=-1))]
    for colour, (kind, found) in zip(COLOURS, known.items(), strict=False):
        taus = found.estimators["kendall"].reindex(estimator=order).mean("seed").values
        places, every = np.arange(len(order)), of_all_clients(found.estimators.reindex(estimator=order))
        axes.plot(taus[every], places[every], "o", color=colour, label=kind)
        axes.plot(taus[~every], places[~every], "o", color=colour, markerfacecolor="white")
        axes.axvline(float(found.estimators["ceiling"]), color=colour, linewidth=1, linestyle=":")
    trainings = first["trainings"].reindex(estimator=order).values
    names = [f"{name} ({count:.0f})" if count else str(name) for name, count in zip(order, trainings, strict=True)]
    axes.set_yticks(range(len(order)), names)
    axes.set_xlabel("tau-b with the Shapley values by retraining, mean over seeds")
    axes.set_title(
        "Which estimators order clients rightly\n(trainings); hollow: of some clients; dotted: two seeds of the truth"
    )
    axes.legend(frameon=False, loc="lower right")


def _draw_spread(axes: Axes, known: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Filled: between algorithms, a point for each seed; hollow: between seeds."""
    labels: list[str] = []
    for colour, (kind, values) in zip(COLOURS, known.items(), strict=False):
        for name, worth in ((name, worth) for name, worth in values.items() if WITHOUT not in name):
            numbers, place = spread(worth), len(labels)
            labels.append(f"{kind}, {name.strip('`')}")
            axes.plot(numbers.moved, [place] * len(numbers.moved), "o", color=colour, alpha=0.6)
            axes.plot([numbers.moved_of_seeds], [place], "D", color=colour, markerfacecolor="white", markersize=8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("share of all rewards that changes hands")
    axes.set_title("Rewards that move: points between algorithms,\nhollow between seeds of one algorithm")


def plain(value: Any) -> Any:
    """Lists and mappings for JSON: NaN is None, and numbers have six digits."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def write(stem: Path, head: list[str], settings: Mapping[str, Any], known: Mapping[str, Found], cpu: float) -> None:
    """The report of what is known so far: ``stem`` with ``.md``, ``.png`` and ``.json``.

    Args:
      stem: path without a suffix.
      head: the first lines of the page.
      settings: of the command, for JSON.
      known: by federation.
      cpu: CPU-seconds of the process.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    shown = [f"![estimators and algorithms]({stem.name}.png)", ""]
    text = [
        *head,
        *([words, ""] if (words := verdict(known)) else []),
        *shown,
        *(line for kind, found in known.items() for line in section(kind, found)),
    ]
    stem.with_suffix(".md").write_text("\n".join(text))
    picture(known).savefig(stem.with_suffix(".png"), dpi=80)
    report = {"settings": dict(settings), "hardware": hardware(), "jax": jax.__version__, "cpu_seconds": cpu}
    parts = {
        kind: {name: part.to_dict() for name, part in found._asdict().items() if isinstance(part, xr.Dataset)}
        for kind, found in known.items()
    }
    stem.with_suffix(".json").write_text(json.dumps(plain(report | {"federations": parts})) + "\n")
