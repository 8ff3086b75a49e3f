"""The value of a coalition: a metric of its run, computed from the scores of all clients, or a user's function.

One program gives every metric. A function that is made anew in every call, such as a lambda, makes a new program. The
cost of the runs of all coalitions is told before anything runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from fljax.core import users
from fljax.core.names import duration, name_of, unknown
from fljax.engine import Plan, State
from fljax.engine.loop.checkpointing import function_name
from fljax.engine.whole_runs.running import client_steps
from fljax.games.tables import Cost
from fljax.metrics.registry import COMPARED_WITH_STANDALONE, OVER_CLIENTS, is_lower_better
from fljax.protocol import Algorithm, Federation, Labelled
from fljax.results import Reference, metrics_of_runs

# ``(algorithm, state, scores) -> number``: the state after the last round, and the scores of all clients by name.
ValueFunction = Callable[[Algorithm, State, Mapping[str, Labelled]], Any]
Value = str | ValueFunction


class Measured(NamedTuple):  # checkpoints of earlier versions have this name
    """The kept results of a run; equal for equal functions of one's own, so that runs share a program."""

    function: ValueFunction | None = None
    code: str = ""  # of the function, by which saved runs of an older body are told from those of this one

    def __call__(self, algorithm: Algorithm, state: State, scores: Mapping[str, Labelled]) -> dict[str, Labelled]:
        """``{name: array}`` for the engine's runs."""
        if self.function is None:
            return dict(scores)
        found = users.call("value", "(algorithm, state, scores)", self.function, algorithm, state, scores)
        number = users.numbers("value", self.function, "one number for a run", found, ())
        number = number if jnp.issubdtype(number.dtype, jnp.floating) else number.astype(jnp.result_type(float))
        return {**scores, f"value of {name_of_value(self.function)}": Labelled(number, ())}


def name_of_value(value: Value) -> str:
    """A metric, or where a function is defined; saved runs and tables of another function have another name."""
    # The name of a function that holds numbers, in a partial or a closure, ends in a checksum of these.
    return value if isinstance(value, str) else function_name(value).replace("/", "|")


def algorithm_of(plan: Plan) -> Algorithm:
    """The algorithm of a plan with its first seed."""
    first = {name: jax.tree.map(lambda leaf: leaf[0], rows) for name, rows in plan.by_seed.items()}
    return plan.build(**plan.arguments, **first)


def metrics_of(algorithm: Algorithm, federation: Federation, reference: Reference | None) -> tuple[str, ...]:
    """The metrics of one number for a run; those that compare with standalone models need a ``reference``."""
    scored = algorithm.task.score is not None
    kinds = ("loss", "accuracy") if scored else ("loss",)
    shared = algorithm.personal is None or algorithm.common is not None
    of_models = {f"{model}test_{kind}" for kind in kinds for model in (("", "global_") if shared else ("",))}
    metrics: list[str] = []
    for prefix in ("", "unseen_"):
        if prefix and federation.unseen is None:
            continue
        names = set(of_models)
        alone = None if reference is None else getattr(reference, f"{prefix}test_loss")
        if alone is not None:
            names |= {"standalone_test_loss", "threshold", "required_loss"}
            names |= {"standalone_test_accuracy"} if scored else set()
        if algorithm.personal is not None and any(scenario.tunes for scenario in algorithm.scenarios):
            names.add("train_loss")
        names |= {probe.name for probe in algorithm.probes}
        metrics += [f"{prefix}{name}" for name, metric in OVER_CLIENTS.items() if set(metric.variables) <= names]
    if np.any(np.asarray(federation.clients.valid.size) > 0):
        metrics += [f"average_valid_{kind}" for kind in kinds]
    if algorithm.models is not None and "test" in federation.held:
        metrics += [f"server_test_{kind}" for kind in kinds]
    return tuple(metrics)


def check_value(value: Value, algorithm: Algorithm, federation: Federation, reference: Reference | None) -> None:
    """Raises a ValueError if there is no such metric; warns of a function that is made anew in every call."""
    if isinstance(value, str):
        valid = metrics_of(algorithm, federation, reference)
        if value not in valid:
            raise ValueError(f"{unknown('value', value, valid)}{_need(value, federation, reference)}")
        return
    if not callable(value):
        raise ValueError(f"expected value to be the name of a metric or a function, got {value!r}")
    place = getattr(value, "__qualname__", "")
    if "<lambda>" in place or "<locals>" in place:
        warnings.warn(
            f"the value {name_of(value)} is made inside a function or an expression: a new one in every call compiles "
            "a new program in every call; define it at the top of a module",
            UserWarning,
            stacklevel=3,
        )


def _need(value: str, federation: Federation, reference: Reference | None) -> str:
    """What a metric lacks, that other runs have, as the end of a sentence; "" if it is no such metric."""
    plain = value.removeprefix("unseen_")
    if plain in COMPARED_WITH_STANDALONE and reference is None:
        return "; metrics that compare with standalone models need reference="
    if plain != value and federation.unseen is None and plain in OVER_CLIENTS:
        return "; it needs unseen clients, and there are none"
    if plain in ("average_valid_loss", "average_valid_accuracy"):
        return "; it needs validation rows of clients (valid_fraction above 0), and there are none"
    if plain.startswith("server_test_"):
        return "; it needs a model of the server, and its rows 'test'"
    return ""


class Measures(NamedTuple):
    """The numbers of finished runs, with P coalitions and R seeds."""

    values: Float[np.ndarray, "seeds P"]  # more is better
    metric: str  # with a minus sign if less of it is better
    scores: Float[np.ndarray, "seeds P N"]  # of each client
    payoff: str  # the name of ``scores``
    diverged: Bool[np.ndarray, "seeds P"]


def measures_of(measured: xr.Dataset, value: Value, reference: Reference | None) -> Measures:
    """The values of runs, and the payoffs of each client, of ``Measured`` over ``run``, ``seed`` and others."""
    runs, seeds = measured.sizes["run"], measured.sizes["seed"]

    def of_runs(name: str) -> np.ndarray:
        """``[runs * seeds, ...]``, all seeds of the first run first."""
        array = measured[name].transpose("run", "seed", ...).values
        return array.reshape(runs * seeds, *array.shape[2:])

    def by_seed(rows: np.ndarray) -> np.ndarray:
        """``[seeds, runs, ...]``, in double precision."""
        return np.swapaxes(rows.astype(float).reshape(runs, seeds, *rows.shape[1:]), 0, 1)

    diverged = measured["diverged"].transpose("seed", "run").values.astype(bool)
    own_name = "" if isinstance(value, str) else f"value of {name_of_value(value)}"
    names = [str(name) for name in measured.data_vars if name not in ("diverged", own_name)]
    arrays = {name: of_runs(name) for name in names}
    if isinstance(value, str):
        axes = {name: tuple(map(str, measured[name].transpose("run", "seed", ...).dims[2:])) for name in names}
        labelled = {name: Labelled(rows, axes[name]) for name, rows in arrays.items()}
        computed = metrics_of_runs(measured["seed"].values.tolist(), labelled, [reference] * runs)
        if value not in computed:  # what an algorithm's own server model is judged on is known after the runs only
            raise ValueError(unknown("value", value, [name for name, rows in computed.items() if rows.ndim == 1]))
        numbers, lower = computed[value], is_lower_better(value)
        values, metric = by_seed(-numbers if lower else numbers), f"-{value}" if lower else value
    else:
        lower, metric = False, name_of_value(value)
        values = by_seed(of_runs(own_name))
    by_loss = lower or "test_accuracy" not in arrays
    scores = by_seed(-arrays["test_loss"] if by_loss else arrays["test_accuracy"])
    values, scores = np.where(diverged, np.nan, values), np.where(diverged[..., None], np.nan, scores)
    return Measures(values, metric, scores, "-test_loss" if by_loss else "test_accuracy", diverged)


_NUMBER = 8  # bytes in the table


def estimate(plan: Plan, federation: Federation, members: Bool[np.ndarray, "M N"], rounds: int, seeds: int) -> Cost:
    """``runs = M R`` and ``client_steps = R rounds sum_S min(m, |S|) mean_{i in S} tau_i``, with the cohort's size m.

    Args:
      plan: of the algorithm. Its ``local`` says the steps ``tau_i`` of each client, and ``clients_per_round`` the m.
      federation: its clients.
      members: ``[M, N]``.
      rounds: of each run.
      seeds: R.

    Returns:
      ``Cost`` without seconds. Client-steps are NaN if the plan has no ``local``, and an algorithm that trains in a way
      of its own makes others.
    """
    runs = len(members) * seeds
    size = runs * (members.shape[1] + 1) * _NUMBER
    inner = plan.arguments.get("arguments")  # of the plans of configs
    arguments: Mapping[str, Any] = inner if isinstance(inner, Mapping) else plan.arguments
    cohort = arguments.get("clients_per_round") or members.shape[1]
    per_round = client_steps(plan, federation, members, cohort)
    return Cost(runs, np.nan if per_round is None else per_round * rounds * seeds, size, np.nan)


def in_words(cost: Cost) -> str:
    """``1,024 runs, 2.05 million client-steps, 90 kB``, and the time if it is known."""
    parts = [f"{cost.runs:,} runs"]
    if np.isfinite(cost.client_steps):
        parts.append(f"{_number(cost.client_steps)} client-steps")
    parts.append(f"{_number(cost.bytes)} bytes")
    if np.isfinite(cost.seconds):
        parts.append(duration(cost.seconds))
    return ", ".join(parts)


def _number(value: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}"
