"""Small runs in NumPy: a model of one number, and what coalitions of the run's updates are worth."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fljax.contributions import RunRecord, shapley, validation_gradients
from fljax.contributions.estimators import estimate_run

# Clients' targets, their shares of the way, and the rounds.
THREE = ((1.0, 0.5, -0.5), (1.0, 1.0, 1.0), 2)
FOUR = ((-0.5, 2.5, 1.5, 2.0), (0.25, 1.0, 0.25, 0.5), 5)


def utility(w):
    return -((w - 1) ** 2) / 2


def loss(w):
    return (w - 1) ** 2 / 2


def run(
    game: tuple[Sequence[float], Sequence[float], int],
    members: Sequence[int] | None = None,
    present: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Models ``[T + 1]`` and updates ``[T, N]`` of ``w <- w + mean over members of h_i (c_i - w) / 2``."""
    targets, shares, rounds = np.array(game[0]), np.array(game[1]), game[2]
    models, updates = [0.0], []
    for t in range(rounds):
        updates.append(shares * (targets - models[-1]) / 2)
        here = np.ones(len(targets), bool) if present is None else present[t]
        chosen = [i for i in np.flatnonzero(here) if members is None or i in members]
        models.append(models[-1] + (updates[-1][chosen].mean() if chosen else 0.0))
    return np.array(models), np.array(updates)


def record(game: tuple[Sequence[float], Sequence[float], int], present: np.ndarray | None = None) -> RunRecord:
    models, updates = run(game, present=present)
    here = None if present is None else jnp.asarray(present)
    found = RunRecord(jnp.asarray(models), jnp.asarray(updates), jnp.ones(updates.shape), here)
    return validation_gradients(found, loss)


def subsets(clients: int) -> list[list[int]]:
    """The members of all coalitions, by code."""
    return [[i for i in range(clients) if code >> i & 1] for code in range(2**clients)]


def retrained(game: tuple[Sequence[float], Sequence[float], int]) -> np.ndarray:
    """The values ``[2^N]`` of runs of the members alone."""
    return np.array([utility(run(game, members)[0][-1]) for members in subsets(len(game[0]))])


def truth(game: tuple[Sequence[float], Sequence[float], int]) -> np.ndarray:
    return np.asarray(shapley(retrained(game)))


def drawn(seed: int, rounds: int = 3, rows: int = 4, clients: int = 5, everyone: bool = False) -> RunRecord:
    """A run with a tree of weights, cohorts of some clients, absent rows that are NaN, and a server's rate."""
    random = np.random.default_rng(seed)
    shape = (rounds, rows)
    ids = np.stack([random.permutation(clients)[:rows] for _ in range(rounds)])
    present = np.ones(shape, bool) if everyone else random.random(shape) < 0.7
    weights = random.integers(1, 5, shape) / 2
    updates = {"w": random.normal(size=(*shape, 3)), "b": random.normal(size=shape)}
    models = {"w": [random.normal(size=3)], "b": [np.array(random.normal())]}
    rate = random.uniform(0.5, 1.5, rounds)
    for t in range(rounds):
        a = weights[t] * present[t]
        for name in models:
            step = np.tensordot(a / max(a.sum(), 1e-300), updates[name][t], 1)
            models[name].append(models[name][-1] + rate[t] * step)
    for leaf in updates.values():
        leaf[~present] = np.nan
    found = RunRecord(
        {name: jnp.asarray(np.stack(leaf)) for name, leaf in models.items()},
        jax.tree.map(jnp.asarray, updates),
        jnp.asarray(weights),
        jnp.asarray(present),
        jnp.asarray(ids),
        jnp.asarray(rate),
    )
    return validation_gradients(found, lambda w: -tree_utility(w))


def tree_utility(params):
    return -jnp.sum((params["w"] - 1) ** 2) - jnp.sin(params["b"])


def value_in_round(found: RunRecord, t: int, members: Sequence[int], utility: Callable = tree_utility) -> float:
    """``U(w_S)`` of the members by id, from the definition."""
    ids, here = np.asarray(found.ids[t]), np.asarray(found.present[t])  # pyright: ignore[reportOptionalSubscript]
    rows = [s for s in range(len(ids)) if here[s] and ids[s] in members]
    a = np.asarray(found.weights[t])[rows]
    rate = float(np.asarray(found.server_rate)[t])
    model = {}
    for name in found.models:
        step = np.tensordot(a / a.sum(), np.asarray(found.updates[name][t])[rows], 1) if rows else 0.0
        model[name] = np.asarray(found.models[name][t]) + rate * step
    return float(utility(model))


def by_orders(value: Callable[[Sequence[int]], float], clients: int) -> np.ndarray:
    """Shapley values by the mean over all orders of arrival."""
    found = np.zeros(clients)
    for order in itertools.permutations(range(clients)):
        along = [value(order[:count]) for count in range(clients + 1)]
        found[list(order)] += np.diff(along)
    return found / math.factorial(clients)


def found(estimator, record, **how):
    """The estimate of a run, as one program."""
    return jax.jit(functools.partial(estimate_run, estimator, **how))(record)
