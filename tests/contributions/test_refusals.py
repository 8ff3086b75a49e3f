"""Games, records and options that values of clients refuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.contributions import (
    CachedGame,
    Measure,
    RoundMeasure,
    RunRecord,
    agreement,
    beta_shapley,
    convexity,
    error_bars,
    estimate,
    exact_shapley,
    measure,
    monotonicity,
    monte_carlo_shapley,
    semivalue,
    shapley,
    simultaneous_bounds,
    stability,
    wins,
)
from fljax.contributions.estimators import (
    completed_shapley,
    digfl,
    estimate_run,
    estimator_of,
    first_order,
    gtg_shapley,
    ipss,
    msr_banzhaf,
    multi_round,
    one_round,
    owen_shapley,
    permutation_shapley,
    stratified_shapley,
    truncated_shapley,
)
from tests.contributions import games
from tests.contributions.estimators import runs
from tests.refusals import refusals, refuses

KEY = jax.random.key(0)
VALUES = np.zeros((5, 2))
FEW = RunRecord(jnp.zeros(2), jnp.zeros((1, 3)), jnp.ones((1, 3)))
MANY = RunRecord(jnp.zeros(2), jnp.zeros((1, 17)), jnp.ones((1, 17)))
CODES = "a value for each of 2^N coalitions"
AT_MOST = "at most 16 clients for all 2^N coalitions", "got 17"


def three(**how: Any) -> CachedGame:
    return CachedGame.of_table(games.THREE, **how)


def pair(members: Any) -> Any:
    return np.zeros(2)


def nothing(members: Any) -> float:
    return 0.0


def in_run(build: Any, record: RunRecord, **options: Any) -> Any:
    return estimate_run(build(utility=runs.utility, **options), record)


def without_gradients() -> RunRecord:
    return runs.record(runs.THREE)._replace(gradients=None)


def in_rounds(name: Any, **offered: Any) -> Any:
    return estimator_of(RoundMeasure(name), offered)


@refusals(
    (lambda: shapley(np.zeros(3)), CODES),
    (lambda: shapley(np.zeros(1)), CODES),
    (lambda: shapley(np.zeros((2, 3))), CODES),
    (lambda: shapley(np.zeros(())), CODES),
    (lambda: shapley(np.zeros(0)), CODES),
    (lambda: shapley(np.zeros(2**17)), CODES),
    (lambda: semivalue(games.THREE, (1, 0)), "one weight for each of 3 sizes", "got shape (2,)"),
    (lambda: beta_shapley(games.THREE, 0, 1), "positive alpha and beta", "got 0 and 1"),
    (lambda: convexity(np.zeros((2, 2, 4))), "a table [2^N] or [seeds, 2^N]", "got shape (2, 2, 4)"),
    (lambda: monotonicity(np.zeros(6)), CODES),
    (lambda: exact_shapley(nothing, 17), "from 1 to 16 clients", "got 17"),
    (lambda: exact_shapley(nothing, 0), "from 1 to 16 clients", "got 0"),
    (lambda: exact_shapley(lambda members: members * 1.0, 3), "one number for a coalition", "of shape [3]"),
    (lambda: monte_carlo_shapley(KEY, nothing, 2, 3, antithetic=True), "even number of permutations", "got 3"),
    (lambda: monte_carlo_shapley(KEY, nothing, 2, 0), "positive numbers", "got 2 clients, 0 permutations"),
    (lambda: agreement([1, 2], [1, 2, 3]), "of the same clients", "(2,) and (3,)"),
    (lambda: stability([1, 2, 3]), "one row of clients for each seed", "got shape (3,)"),
    (lambda: error_bars(np.zeros((0, 3))), "at least one seed", "got shape (0, 3)"),
    (lambda: error_bars(np.zeros((2, 3)), 95), "a level between 0 and 1", "got 95"),
    (lambda: wins(np.zeros(3)), "values by seed and client", "got shape (3,)"),
    (lambda: simultaneous_bounds(VALUES[:4]), "at least 5 seeds for bounds", "got 4"),
    (lambda: simultaneous_bounds(VALUES[:, :0]), "at least one column", "got shape (5, 0)"),
    (lambda: simultaneous_bounds(VALUES + np.array([np.nan, 0])), "finite values for bounds"),
    (lambda: simultaneous_bounds(VALUES, 95), "a confidence between 0 and 1", "got 95"),
    (lambda: simultaneous_bounds(VALUES, method="max"), "methods bonferroni, max_t, hoeffding", "got 'max'"),
    (lambda: simultaneous_bounds(VALUES, method="hoeffding"), "a span (a, b) of all values", "got span None"),
    (lambda: simultaneous_bounds(VALUES, span=(-1, 1)), "a span for the method 'hoeffding' alone"),
    (lambda: simultaneous_bounds(VALUES, method="hoeffding", span=(1, 2)), "in the span (1, 2)", "from 0 to 0"),
    (lambda: measure(Measure("cosine"), {"size": np.ones((1, 3), int), "population": 3}), "got 'cosine', which rounds"),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


@refusals(
    (lambda: permutation_shapley(three()), "a key for random coalitions", "got none"),
    (lambda: permutation_shapley(three(budget=1), KEY), "a budget for at least one order", "got 1"),
    (lambda: permutation_shapley(three(), orders=[[0, 1, 1]]), "orders of all 3 clients"),
    (lambda: permutation_shapley(three(), KEY, orders=0), "at least 1"),
    (lambda: truncated_shapley(three(budget=1), KEY, tolerance=0), "for at least one order", "got 1 trainings"),
    (lambda: stratified_shapley(three(), KEY, samples=0), "at least 1"),
    (lambda: owen_shapley(three(budget=5), samples=None), "a budget of at least 7 trainings", "got 5"),
    (lambda: owen_shapley(three(), KEY, nodes=0), "positive numbers", "got 0 nodes"),
    (lambda: ipss(three(), budget=3), "at least 4 values for 3 clients", "got 3"),
    (lambda: msr_banzhaf(three(), KEY, samples=0), "at least 1 sample", "got 0"),
    (lambda: CachedGame(float, 0), "at least 1 client and a budget of at least 0", "got 0 and None"),
    (lambda: CachedGame(pair, 2).table(), "value pair to return one number", "an array of float64 of shape [2]"),
    (lambda: CachedGame(pair, 2, together=True).table(), "each of 4 coalitions", "of float64 of shape [2]"),
    (lambda: CachedGame.of_table(np.zeros((2, 4))), "a table [2^N] of one game", "got shape (2, 4)"),
    (lambda: gtg_shapley(utility=runs.utility, orders=[[0, 0]]), "orders [K, S] with all of 0..S-1 in each row"),
    (lambda: in_run(gtg_shapley, runs.record(runs.THREE), orders=[[0, 1]]), "orders of 3 rows", "got 2"),
    (lambda: in_run(gtg_shapley, runs.record(runs.THREE)), "a key for random orders", "got none"),
    (lambda: in_run(one_round, MANY), *AT_MOST),
    (lambda: in_run(multi_round, MANY), *AT_MOST),
    (lambda: in_run(completed_shapley, MANY), *AT_MOST),
    (lambda: in_run(multi_round, MANY._replace(models=jnp.zeros(3))), "models to begin with the axes (2,)", "(3,)"),
    (lambda: in_run(multi_round, MANY._replace(ids=jnp.arange(17))), "ids to begin with the axes (1, 17)", "(17,)"),
    (lambda: estimate_run(digfl(), without_gradients()), "the gradient of the validation loss at each round's model"),
    (lambda: estimate_run(first_order(), without_gradients()), "at the model after each round", "got none"),
    (lambda: estimate("digfll", FEW), "did you mean 'digfl'"),
    (lambda: estimate("multi_round", FEW), "the option utility for the estimator 'multi_round'", "got none"),
    (lambda: estimate("multi_round", FEW, utility=runs.utility, decays=1), "decays"),
    (lambda: estimate("digfl", FEW), "a record with gradients for the estimator 'digfl'", "got none"),
    (lambda: estimate("ipss", FEW, budget=5), "a CachedGame for the estimator 'ipss'", "got a RunRecord"),
    (lambda: estimate("cosine", three()), "a RunRecord for the estimator 'cosine'", "got a CachedGame"),
    (lambda: in_rounds("completed_shapley", utility=jnp.sum), "the option rounds for the measure", "got none"),
    (lambda: in_rounds("fedce"), "got 'fedce', which needs what clients measure on their own validation rows"),
    (lambda: in_rounds("one_round"), "got 'one_round', which says nothing of single rounds"),
    (lambda: in_rounds("ipss"), "got 'ipss', which needs values of coalitions that are trained from scratch"),
    (lambda: in_rounds("cosin"), "one of the measures", "got 'cosin' (did you mean 'cosine'?); or a function"),
)
def test_what_estimators_refuse(call: Any, words: list[str]) -> None:
    refuses(call, words)
