"""Estimators of what a client is worth, judged by retraining: the same seeds, the same rounds, the same clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PyTree

from fljax import contributions, training
from fljax.contributions import ESTIMATORS, CachedGame, Estimate, RunRecord
from fljax.core.names import unknown
from fljax.engine import Plan, plan_of
from fljax.games.recording import of_seed, record_runs
from fljax.games.solutions import shapley
from fljax.games.tables import CoalitionTable, by_code
from fljax.games.values import algorithm_of
from fljax.protocol import Algorithm, Federation, Subset

_JUDGED = ("kendall", "spearman", "share_error", "best_found", "worst_found", "compared")
_SPENT = ("trainings", "evaluations", "gradients")
# Estimators that need a function of the user's model, which only ``options`` can give.
_OWN = {"shapfed": "head", "fedce": "client_metric"}


def compare_estimators(
    plan: Algorithm | Plan,
    federation: Federation,
    table: CoalitionTable,
    *,
    rounds: int,
    rows: str = "validation",
    estimators: Sequence[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    budget: int | None = None,
    server_rate: float = 1.0,
) -> xr.Dataset:
    """Every estimator of ``contributions.ESTIMATORS`` beside the Shapley values of the retrained table, seed by seed.

    Estimators that look at rounds see one run of all clients, with the seeds of the table. Those that ask for values of
    coalitions get them from the table, and may ask for ``budget`` of them.

    Args:
      plan: what the table is of; its server has one model, and its clients send updates.
      federation: what the table is of, with rows of the server (``held``).
      table: of all coalitions.
      rounds: of the runs of the table.
      rows: the name of the server's rows that judge models for estimators that look at rounds.
      estimators: names; None: all, but those without what they need: "shapfed" needs the option ``head``, "fedce"
        ``client_metric``, and "cffl_reputation" an accuracy.
      options: of estimators, by name.
      budget: the largest number of trainings; None: a quarter of all coalitions, and at least 2 N.
      server_rate: the server's learning rate, for estimators that repeat its step.

    Returns:
      Over ``estimator, seed``: ``kendall`` (tau-b), ``spearman``, ``share_error``, ``best_found`` and ``worst_found``
      against the truth of the same seed (``contributions.agreement``), ``compared``, the number of clients of which the
      estimator says something, and ``worth`` by ``client``. Over ``estimator``:
      ``trainings``, ``evaluations``, ``gradients`` and ``seconds`` for each seed, compiling included, and
      ``stability``, the mean tau-b between seeds. ``truth`` has the Shapley values, and ``ceiling`` their stability.

    Raises:
      ValueError: if the table lacks a coalition, an estimator or the server's rows do not exist, an estimator lacks
        what it needs, or the algorithm is of another kind.
    """
    chosen, truth = plan_of(plan), shapley(table)
    algorithm, settings = algorithm_of(chosen), dict(options or {})
    by_accuracy = "loss" not in table.metric and algorithm.task.score is not None
    names = _names(estimators, settings, by_accuracy)
    looking = [name for name in names if not ESTIMATORS[name].on_host]
    if looking and rows not in federation.held:
        valid = f"valid names are {', '.join(federation.held)}" if federation.held else "the server has none"
        raise ValueError(
            f"expected rows of the server, got {rows!r}; {valid} (federate(held_fraction=...) gives it rows)"
        )
    clients = table.members.shape[1]
    if (here := federation.clients.id.shape[-1]) != clients:
        raise ValueError(f"expected the federation of the table, of {clients} clients, got one of {here}")
    most = max(2**clients // 4, 2 * clients) if budget is None else budget
    look = None
    if looking:
        record = record_runs(chosen, federation, rounds=rounds, seeds=table.seeds, server_rate=server_rate)
        look = _look(algorithm, federation, record, rows, by_accuracy)
    estimates: dict[str, list[Estimate]] = {}
    seconds: dict[str, float] = {}
    for name in names:
        began = time.perf_counter()
        if look is None or ESTIMATORS[name].on_host:
            estimates[name] = [
                _by_values(name, values, most, seed, settings.get(name, {}))
                for seed, values in zip(table.seeds, by_code(table), strict=True)
            ]
        else:
            estimates[name] = look(name, settings.get(name, {}), clients, table.seeds)
        seconds[name] = (time.perf_counter() - began) / len(table.seeds)
    return _dataset(estimates, seconds, truth, table)


def _names(estimators: Sequence[str] | None, options: Mapping[str, Any], by_accuracy: bool) -> list[str]:
    for name in (*(estimators or ()), *options):
        if name not in ESTIMATORS:
            raise ValueError(unknown("estimator", name, ESTIMATORS))
    lacking = {name: f"the option {need}" for name, need in _OWN.items() if need not in options.get(name, {})}
    lacking |= {} if by_accuracy else {"cffl_reputation": "a table of accuracies"}
    if estimators is None:
        return [name for name in ESTIMATORS if name not in lacking]
    for name in estimators:
        if name in lacking:
            raise ValueError(f"expected {lacking[name]} for the estimator {name!r}, got none")
    return list(dict.fromkeys(estimators))


def _by_values(name: str, values: np.ndarray, budget: int, seed: int, options: Mapping[str, Any]) -> Estimate:
    """An estimator that asks for values of coalitions, with those of one seed."""
    more = {"budget": budget} if name == "ipss" and "budget" not in options else {}
    game = CachedGame.of_table(values, budget=budget)
    return contributions.estimate(name, game, key=jax.random.key(seed), **more, **options)


def _look(
    algorithm: Algorithm, federation: Federation, record: RunRecord, rows: str, by_accuracy: bool
) -> Callable[..., list[Estimate]]:
    """``(name, options, clients, seeds) -> estimates`` of estimators that look at rounds, one program for all seeds."""

    def scores(model: PyTree, data: Federation) -> tuple[Any, Any]:
        subset = Subset(data.examples, data.held[rows], moments=data.moments)
        return training.evaluate(algorithm.task, lambda x: algorithm.predict(model, x), subset)

    def look(name: str, options: Mapping[str, Any], clients: int, seeds: Sequence[int]) -> list[Estimate]:
        needs = ESTIMATORS[name].needs

        def one(row: tuple[RunRecord, Any, Any]) -> Estimate:
            seen, number, place = row
            data = of_seed(federation, place)
            if {"gradient", "next gradient"} & set(needs):
                seen = contributions.validation_gradients(seen, lambda model: scores(model, data)[0])
            more: dict[str, Any] = {}
            if "utility" in needs:
                more["utility"] = lambda model: scores(model, data)[1] if by_accuracy else -scores(model, data)[0]
            key = jax.random.key(number)
            estimate = contributions.estimate(name, seen, clients=clients, key=key, **more, **options)
            return Estimate(estimate.worth, cost=estimate.cost)

        numbers = jnp.asarray(seeds, jnp.uint32), jnp.arange(len(seeds))
        every = jax.jit(lambda *arguments: jax.lax.map(one, arguments))(record, *numbers)
        return [jax.tree.map(lambda leaf, place=place: np.asarray(leaf[place]), every) for place in range(len(seeds))]

    return look


def _dataset(
    estimates: Mapping[str, Sequence[Estimate]], seconds: Mapping[str, float], truth: np.ndarray, table: CoalitionTable
) -> xr.Dataset:
    worth = np.array([[estimate.worth for estimate in rows] for rows in estimates.values()], float)
    judged = contributions.agreement(worth, truth)
    spent = {
        name: [float(np.mean([getattr(estimate.cost, name) for estimate in rows])) for rows in estimates.values()]
        for name in _SPENT
    }
    return xr.Dataset(
        {
            "worth": (("estimator", "seed", "client"), worth),
            **{name: (("estimator", "seed"), getattr(judged, name)) for name in _JUDGED},
            **{name: ("estimator", numbers) for name, numbers in spent.items()},
            "seconds": ("estimator", list(seconds.values())),
            "stability": ("estimator", [contributions.stability(rows) for rows in worth]),
            "truth": (("seed", "client"), truth),
            "ceiling": ((), contributions.stability(truth)),
        },
        {"estimator": list(estimates), "seed": list(table.seeds), "client": np.arange(truth.shape[1])},
        {"metric": table.metric},
    )
