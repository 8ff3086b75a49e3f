"""Published tables beside our results.

``metric[c0]`` is about IP-FL's cluster 0; ours have the numbers of their matched distributions (``align_clusters``).
For a split "best-distribution", both numbers are on the distribution where the cluster's model is best: the split names
the paper's; ours may be another one.

The runs behind a table are shipped configs, with what they cost (``fljax/published/runs.toml``).
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax import metrics as formulas
from fljax.config.keys import Config
from fljax.config.reading import load
from fljax.metrics.uncertainty import align_clusters, over_seeds
from fljax.published.tables import Published, Sample, plain_label, plain_metric, select
from fljax.published.verdicts import DEVIATION_OVER_CLIENTS, STANDARD_DEVIATION, STANDARD_ERROR, spread
from fljax.report.tables import last_values, with_spread
from fljax.results.events import array_of, end_of
from fljax.results.non_finite import diverged_seeds

# With ``quick``: so few rounds that only errors are found.
QUICK_ROUNDS, QUICK_STEPS = 2, 10


class TableRun(NamedTuple):
    """One run of a table."""

    config: str  # name of a shipped config, or a path
    changes: tuple[str, ...] = ()  # overrides of it, as for ``--set``
    minutes: float = math.nan  # measured on 2 cores; NaN if nobody has measured it


def table_runs(table: str) -> tuple[TableRun, ...]:
    """The runs that make the numbers of a published table, one for each of its settings that a config has."""
    raw = _read()
    minutes = raw["minutes"]
    return tuple(
        TableRun(config, tuple(entry.get("changes", ())), float(minutes.get(config, math.nan)))
        for entry in raw["runs"]
        if table in entry["tables"]
        for config in entry["configs"]
    )


def load_run(run: TableRun, changes: Sequence[str] = (), quick: bool = False) -> Config:
    """The config of a run with further overrides; ``quick``: two rounds of one seed, and few standalone steps."""
    config = load(run.config, [*run.changes, *changes])
    if not quick:
        return config
    steps = f"steps={QUICK_STEPS}" if config.standalone.epochs is None else "epochs=1"
    small = [f"rounds={QUICK_ROUNDS}", f"evaluate_every={QUICK_ROUNDS}", "seeds=1", f"standalone.{steps}"]
    return load(run.config, [*run.changes, *changes, *small])


def rows_of(config: Config, table: str) -> list[Published]:
    """The rows of a table that a config is about."""
    chosen = config.published
    return select([table]) if chosen is None else select([table], chosen.dataset, chosen.partition)


@functools.cache
def _read() -> dict[str, Any]:
    file = importlib.resources.files("fljax").joinpath("published", "runs.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


class Ours(NamedTuple):
    """Our metric for a published one: ``offset + factor * name`` is in the paper's units."""

    name: str
    factor: float = 1
    offset: float = 0


# Our metric by the published metric, without the number of a cluster.
METRICS = {
    "IPR": Ours("incentivised_participation_rate"),
    "IPR_tuned5": Ours("incentivised_participation_rate"),
    # MaxFL judges the global model, before any client adapts it. Its definition compares with a training loss, but its
    # printed numbers in Tables 3 and 4 equal INCFL's, which compare test losses. Ours compare test losses.
    "GM_Appeal": Ours("global_incentivised_participation_rate"),
    "GM_Appeal_tuned5": Ours("incentivised_participation_rate"),
    "avg_test_acc_pct": Ours("global_average_accuracy", 100),
    "pref_model_test_acc_pct": Ours("preferred_model_accuracy", 100),
    "pref_model_test_acc_tuned5_pct": Ours("preferred_model_accuracy", 100),
    "IPR_accu": Ours("ipr_accuracy"),
    "IPR_loss": Ours("ipr_loss"),
    "pearson_rho": Ours("pearson_correlation"),
    "avg_client_acc_pct": Ours("average_accuracy", 100),
    "max_client_acc_pct": Ours("maximum_accuracy", 100),
    "avg_acc_increase_pct": Ours("accuracy_increase", 100),
    "pearson_rho_acc_vs_p": Ours("contribution_correlation"),
    "client_acc_pct": Ours("test_accuracy", 100),  # of the client in the split
    "personalized_acc_pct": Ours("average_accuracy", 100),
    "avg_PMA_pct": Ours("average_gain", 100),
    "optouts_count_or_pct_of_100": Ours("opt_outs"),
    "optouts_pct": Ours("participation_rate", -100, 100),
    "optout_ratio": Ours("participation_rate", -1, 1),
    "cluster_model_acc_pct": Ours("cluster_accuracy", 100),
    "cluster_model_best_acc_pct": Ours("cluster_accuracy", 100),
}

BEST = "best-distribution"  # prefix of splits that name the distribution where a cluster's model is best

# The variable over clients behind each of our means over clients; spreads over clients are of this variable.
OVER_CLIENTS = {"average_accuracy": "test_accuracy", "average_gain": "personalised_model_accuracy_gain"}


class Compared(NamedTuple):
    """A printed number and ours."""

    published: Published
    mean: float  # over seeds; NaN if there is none
    spread: float  # the paper's kind; NaN if there is none
    missing: str = ""  # what our results lack, if they have no number
    seeds: int = 0  # the number of seeds with a finite value
    rounds: int = 0  # after how many
    diverged: str = ""  # which of our seeds, in words
    deviation: float = math.nan  # over seeds; NaN with fewer than two

    @property
    def sample(self) -> Sample:
        """Our number over seeds, which verdicts are about."""
        return Sample(self.mean, self.deviation, self.seeds)


def beside(metrics: xr.Dataset, rows: Sequence[Published]) -> list[Compared]:
    """Compares our numbers at the last evaluation with published ones; labels count without case and punctuation."""
    marks = diverged_seeds(metrics)
    return [_compared(metrics, row, marks) for row in rows if plain_metric(row.metric) in METRICS]


def _compared(metrics: xr.Dataset, row: Published, marks: Mapping[str, str]) -> Compared:
    label = label_of(metrics, row)
    if label is None:
        return Compared(row, math.nan, math.nan, f"no algorithm {row.algorithm}")
    values = _ours(metrics, label, row)
    if values is None:
        return Compared(row, math.nan, math.nan, f"the results have no {METRICS[plain_metric(row.metric)].name}")
    mean, std, seeds = over_seeds(values)
    spreads = {
        STANDARD_DEVIATION: std,
        STANDARD_ERROR: std / math.sqrt(max(seeds, 1)),
        DEVIATION_OVER_CLIENTS: _over_clients(metrics, label, row),
    }
    rounds = int(metrics["evaluated_round"].values[end_of(metrics, label)])
    missing = "" if seeds else "no seed has a finite number"
    return Compared(row, mean, spreads[spread(row.paper)], missing, seeds, rounds, marks.get(label, ""), std)


def label_of(metrics: xr.Dataset, row: Published) -> str | None:
    """The label of the row's algorithm in our results; None if our results do not have it."""
    labels = {plain_label(str(label)): str(label) for label in metrics["algorithm"].values}
    return labels.get(plain_label(row.algorithm))


def caption(rows: Sequence[Published]) -> str:
    """Notes for the reader of one paper's numbers: the kind of spread and of distribution; may be empty."""
    spreads = [f"mean ± {spread(row.paper)}" for row in rows[:1] if not all(math.isnan(row.std) for row in rows)]
    best = any(row.split.startswith(BEST) for row in rows)
    return "; ".join(spreads + ["ours: on the distribution where our cluster's model is best"] * best)


def number(mean: float, spread: float, metric: str) -> str:
    """``mean ± spread`` with two decimals, percentages with one; a dash if there is no mean."""
    return with_spread(mean, spread, 1 if "pct" in metric else 2)


def _ours(metrics: xr.Dataset, label: str, row: Published) -> np.ndarray | None:
    """``[seed]``: our values of a row's metric at the last evaluation; None if our results do not have them."""
    name, factor, offset = METRICS[plain_metric(row.metric)]
    special = {"test_accuracy": _of_client, "cluster_accuracy": _of_cluster}
    if name in special:
        values = special[name](metrics, label, row)
    else:
        values = last_values(metrics, label, f"{_prefix(row)}{name}")
    return None if values is None else offset + factor * values


def _of_client(metrics: xr.Dataset, label: str, row: Published) -> np.ndarray | None:
    """``[seed]``: accuracy of the client in the row's split; papers count clients from 1."""
    accuracy = _over_rounds(metrics, label, "test_accuracy", "client")
    client = int(row.split.removeprefix("client")) - 1
    if accuracy is None or client not in metrics["client"].values:
        return None
    return accuracy[:, end_of(metrics, label), metrics["client"].values.tolist().index(client)]


def _of_cluster(metrics: xr.Dataset, label: str, row: Published) -> np.ndarray | None:
    """``[seed]``: accuracy of a cluster's model on the split's distribution, or on the one where it is best."""
    accuracy = _over_rounds(metrics, label, "cluster_accuracy", "cluster", "distribution")
    cluster = int(row.metric.partition("[c")[2].removesuffix("]"))
    if accuracy is None or cluster >= accuracy.shape[2]:
        return None
    by_distribution = align_clusters(accuracy)[:, end_of(metrics, label), cluster]
    if row.split.startswith(BEST):
        return np.asarray(formulas.maximum_accuracy(by_distribution))
    distribution = ord(row.split[-1]) - ord("A")
    return by_distribution[:, distribution] if distribution < by_distribution.shape[1] else None


def _over_clients(metrics: xr.Dataset, label: str, row: Published) -> float:
    """Standard deviation over clients (n - 1) at the last evaluation, averaged over seeds; NaN for other metrics."""
    name, factor, _ = METRICS[plain_metric(row.metric)]
    if name not in OVER_CLIENTS:
        return math.nan
    prefix = _prefix(row)
    values = _over_rounds(metrics, label, prefix + OVER_CLIENTS[name], "unseen" if prefix else "client")
    if values is None:
        return math.nan
    spreads = np.asarray(formulas.standard_deviation(values[:, end_of(metrics, label)], axis=-1))
    return abs(factor) * over_seeds(spreads).mean


def _over_rounds(metrics: xr.Dataset, label: str, name: str, *dims: str) -> np.ndarray | None:
    """``[seed, evaluated_round, *dims]`` of one algorithm; None if the variable does not exist."""
    return array_of(metrics, name, "seed", "evaluated_round", *dims, algorithm=label)


def _prefix(row: Published) -> str:
    return "unseen_" if row.split == "unseen" else ""
