"""How clients and seeds map to the device: a strategy, never part of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

if TYPE_CHECKING:
    from jaxtyping import PyTree

Strategy = Literal["auto", "vmap", "scan"] | int

# Budgets of ``auto`` in bytes: on a CPU, models that are trained side by side should stay in the cache; on an
# accelerator they should fill it. Evaluation is bounded by the gathered examples.
CACHE = 4 * 2**20
ACCELERATOR = 2 * 2**30
EVALUATION = 128 * 2**20


class Execution(NamedTuple):
    """How many clients, and seeds, run side by side. Results do not depend on it, up to rounding.

    Attributes:
      clients: "vmap" (all of the cohort at once), "scan" (one after another), a number k (k at a time) or "auto".
      seeds: likewise for the seeds of one ``simulate`` call.
      evaluation: likewise for clients while they are polled or evaluated.
    """

    clients: Strategy = "auto"
    seeds: Strategy = "auto"
    evaluation: Strategy = "auto"


class Lanes(NamedTuple):
    """A resolved Execution: how many run side by side."""

    clients: int
    seeds: int
    evaluation: int


class Sizes(NamedTuple):
    """What ``auto`` decides from; all in bytes but the counts."""

    rows: int  # of the cohort
    population: int  # clients that are evaluated
    seeds: int
    model: int  # what one client receives
    evaluated: int  # prepared examples of one client's evaluation


def resolve(execution: Execution, sizes: Sizes, backend: str | None = None) -> Lanes:
    """Replaces names by numbers of lanes: a fixed rule of shapes and backend, so that a run can be repeated.

    "auto" runs as many clients at a time as keep their models (three copies each: parameters, gradients, update)
    within the budget of the backend; seeds are batched only if all their clients fit as well.

    Raises:
      ValueError: if a strategy is neither a known name nor a positive number.
    """
    backend = jax.default_backend() if backend is None else backend
    budget = CACHE if backend == "cpu" else ACCELERATOR
    lanes = max(1, budget // max(1, 3 * sizes.model))
    clients = _lanes("clients", execution.clients, sizes.rows, lanes)
    seeds = _lanes("seeds", execution.seeds, sizes.seeds, lanes // sizes.rows)
    evaluation = _lanes("evaluation", execution.evaluation, sizes.population, EVALUATION // max(1, sizes.evaluated))
    return Lanes(clients, seeds, evaluation)


def _lanes(name: str, strategy: Strategy, count: int, automatic: int) -> int:
    message = f"expected execution.{name} to be auto, vmap, scan or a positive number, got {strategy!r}"
    if isinstance(strategy, str):
        named = {"auto": _even(count, automatic), "vmap": count, "scan": 1}
        if strategy not in named:
            raise ValueError(message)
        return max(1, named[strategy])
    if isinstance(strategy, bool) or not isinstance(strategy, int) or strategy < 1:
        raise ValueError(message)
    return max(1, min(strategy, count))


def _even(count: int, lanes: int) -> int:
    """At most ``lanes``, dividing ``count`` if that costs less than half of them: a remainder is compiled apart."""
    lanes = max(1, min(lanes, count))
    divisor = next(k for k in range(lanes, 0, -1) if count % k == 0)
    return divisor if 2 * divisor >= lanes else lanes


def map_lanes(function: Callable[[Any], Any], xs: PyTree, lanes: int) -> PyTree:
    """Maps over the leading axis of ``xs``, ``lanes`` at a time: 1 is a scan, all of them one ``vmap``."""
    count = jax.tree.leaves(xs)[0].shape[0]
    if lanes >= count and count > 1:
        return jax.vmap(function)(xs)
    return jax.lax.map(function, xs, batch_size=None if lanes == 1 else lanes)
