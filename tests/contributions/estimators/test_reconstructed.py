"""Estimators from models that are put together of one run's updates: printed numbers, and the definitions in NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import RoundMeasure, RunRecord, agreement, banzhaf, shapley
from fljax.contributions.estimators import (
    Observation,
    begin_contributions,
    completed_shapley,
    estimator_of,
    fed_shapley,
    in_run_leave_one_out,
    multi_round,
    observe_contributions,
    one_round,
)
from fljax.contributions.estimators.reconstructed import complete
from tests.contributions.estimators import runs
from tests.contributions.estimators.runs import found

pytestmark = pytest.mark.usefixtures("quick_compilation", "x64")


def test_printed_truth():
    np.testing.assert_allclose(runs.run(runs.THREE)[0], (0, 1 / 6, 1 / 4), rtol=1e-12)
    np.testing.assert_allclose(runs.truth(runs.THREE), (0.348307, 0.181315, -0.310872), atol=6e-7)
    values = runs.retrained(runs.THREE)
    np.testing.assert_allclose(banzhaf(values), (0.350586, 0.183594, -0.308594), atol=6e-7)
    np.testing.assert_allclose(values[-1] - values[0], 0.21875)
    np.testing.assert_allclose(runs.truth(runs.FOUR), (0.116162, -0.189132, 0.265228, 0.215270), atol=6e-7)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("estimator", "expected", "evaluations"),
    [
        (one_round(utility=runs.utility), (0.437500, 0.234375, -0.453125), 8),
        (one_round(utility=runs.utility, kept="updates"), (0.437500, 0.234375, -0.453125), 8),
        (multi_round(utility=runs.utility), (0.463542, 0.205729, -0.450521), 16),
        (multi_round(utility=runs.utility, decay=0.5), (0.360098, 0.162833, -0.337167), 16),
        (in_run_leave_one_out(utility=runs.utility), (0.291667, 0.067708, -0.286458), 8),
    ],
)
def test_printed_numbers_of_three_clients(estimator, expected, evaluations):
    result = found(estimator, runs.record(runs.THREE))
    np.testing.assert_allclose(result.worth, expected, atol=6e-7)
    assert [int(each) for each in result.cost] == [0, evaluations, 0]
    assert agreement(result.worth, runs.truth(runs.THREE)).kendall == pytest.approx(1)


def test_printed_numbers_of_cohorts():
    present = np.array([[True, True, False], [False, True, True]])
    result = found(fed_shapley(utility=runs.utility), runs.record(runs.THREE, present))
    np.testing.assert_allclose(result.worth, (0.230469, 0.209961, -0.270508), atol=6e-7)
    assert (result.by_round[0, 2], result.by_round[1, 0], result.cost.evaluations) == (0, 0, 8)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("estimator", "tau"),
    [
        (one_round(utility=runs.utility), 1),
        (multi_round(utility=runs.utility), 0.666667),
        (in_run_leave_one_out(utility=runs.utility), -1),
    ],
)
def test_printed_agreement_with_the_truth(estimator, tau):
    result = found(estimator, runs.record(runs.FOUR))
    np.testing.assert_allclose(agreement(result.worth, runs.truth(runs.FOUR)).kendall, tau, atol=6e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_the_definitions_with_absent_rows_and_a_tree(seed):
    """Cohorts of four of five clients, of which some do not answer; their updates are NaN."""
    record = runs.drawn(seed)
    game = [functools.partial(runs.value_in_round, record, t) for t in range(3)]
    seen = np.zeros(5, bool)
    for t in range(3):
        seen[np.asarray(record.ids)[t][np.asarray(record.present)[t]]] = True
    rounds = np.stack([runs.by_orders(value, 5) for value in game])
    result = found(multi_round(utility=runs.tree_utility, decay=0.5), record, clients=5)
    np.testing.assert_allclose(result.by_round, rounds * 0.5 ** np.arange(3)[:, None], atol=1e-10)
    expected = np.where(seen, np.sum(result.by_round, axis=0), np.nan)
    np.testing.assert_allclose(result.worth, expected, atol=1e-10)
    assert result.cost.evaluations == (2 ** np.sum(np.asarray(record.present), axis=1)).sum()
    plain = found(fed_shapley(utility=runs.tree_utility, batch_size=3), record, clients=5)
    np.testing.assert_allclose(plain.worth, np.where(seen, rounds.sum(axis=0), np.nan), atol=1e-10)
    first, last = (jax.tree.map(lambda leaf, t=t: leaf[t], record.models) for t in (0, -1))
    gain = runs.tree_utility(last) - runs.tree_utility(first)
    np.testing.assert_allclose(np.nansum(plain.worth), gain, atol=1e-10)  # telescopes
    everyone = range(5)
    alone = np.array([[value(everyone) - value([j for j in everyone if j != i]) for i in everyone] for value in game])
    loo = found(in_run_leave_one_out(utility=runs.tree_utility), record, clients=5)
    np.testing.assert_allclose(loo.by_round, alone, atol=1e-10)

    def after_all(members):
        model = {name: np.asarray(leaf)[0] for name, leaf in record.models.items()}
        for t in range(3):
            ids, here = np.asarray(record.ids)[t], np.asarray(record.present)[t]
            rows = [s for s in range(4) if here[s] and ids[s] in members]
            a = np.asarray(record.weights)[t][rows]
            for name in model:
                step = np.tensordot(a / a.sum(), np.asarray(record.updates[name])[t][rows], 1) if rows else 0.0
                model[name] = model[name] + np.asarray(record.server_rate)[t] * step
        return float(runs.tree_utility(model))

    whole = found(one_round(utility=runs.tree_utility, batch_size=5), record, clients=5)
    np.testing.assert_allclose(whole.worth, np.where(seen, runs.by_orders(after_all, 5), np.nan), atol=1e-10)


@pytest.mark.thorough
def test_sums_of_updates_are_enough_for_full_participation_alone():
    record = runs.drawn(0, rows=3, clients=3, everyone=True)._replace(weights=jnp.asarray([[1.0, 2.0, 3.0]] * 3))
    record = record._replace(ids=jnp.broadcast_to(jnp.arange(3), (3, 3)))
    one, other = (
        found(one_round(utility=runs.tree_utility, kept=kept), record).worth for kept in ("updates", "coalitions")
    )
    np.testing.assert_allclose(one, other, atol=1e-12)
    moved = record._replace(ids=jnp.asarray([[0, 1, 2], [2, 1, 0], [0, 1, 2]]))  # weights differ by round
    absent = record._replace(present=jnp.ones((3, 3), bool).at[1, 1].set(False))
    for each in (moved, absent):
        result = found(one_round(utility=runs.tree_utility, kept="updates"), each)
        assert np.isnan(result.worth).all()


@pytest.mark.thorough
def test_rounds_may_fade_out_or_be_of_equal_weight():
    record = runs.record(runs.FOUR)
    plain = found(multi_round(utility=runs.utility, decay=0.5), record).by_round
    cut = found(multi_round(utility=runs.utility, decay=0.5, least_decay=0.25), record).by_round
    np.testing.assert_array_equal(cut[:3], plain[:3])
    assert not cut[3:].any()
    equal = found(multi_round(utility=runs.utility, normalised=True), record).by_round
    np.testing.assert_allclose(np.abs(equal.sum(axis=1)), 1, rtol=1e-12)


COHORTS = np.array([[True, True, True], [True, True, False], [False, True, True]])


def rounds_that_are_multiples():
    """A record with ``U_t = s_t h``, s = (1, .5, .25) and h the first game of three clients: U is piecewise linear."""
    models, updates = runs.run(runs.THREE)
    first = [runs.utility(np.mean(updates[0][m])) if m else runs.utility(0.0) for m in runs.subsets(3)]
    h = np.array(first) - first[0]
    # The model counts members in bits: w = (round, code), and U reads the table.
    scales = np.array([1, 0.5, 0.25])
    table = jnp.asarray(scales[:, None] * h[None])
    basis = np.eye(3)
    models = np.concatenate([np.arange(4.0)[:, None], np.zeros((4, 3))], axis=1)
    updates = np.broadcast_to(np.concatenate([np.zeros((3, 1)), basis], axis=1), (3, 3, 4))

    def utility(w):
        code = jnp.sum(jnp.where(w[1:] > 1e-9, jnp.asarray([1, 2, 4]), 0))
        return table[jnp.clip(w[0].astype(int), 0, 2), code]

    record = RunRecord(jnp.asarray(models), jnp.asarray(updates), jnp.ones((3, 3)), jnp.asarray(COHORTS))
    return record, utility, np.asarray(shapley(np.sum(scales) * h))


@pytest.mark.in_turn
def test_printed_numbers_of_completed_values():
    record, utility, expected = rounds_that_are_multiples()
    np.testing.assert_allclose(expected, (0.449146, 0.209889, -0.391674), atol=6e-7)
    exact = found(completed_shapley(utility=utility, rank=1, penalty=1e-9), record)
    np.testing.assert_allclose(exact.worth, expected, atol=1e-8)
    shrunk = found(completed_shapley(utility=utility, rank=1, penalty=0.1), record)
    np.testing.assert_allclose(shrunk.worth, (0.362212, 0.171251, -0.323136), atol=6e-7)
    plain = found(fed_shapley(utility=utility), record)
    np.testing.assert_allclose(plain.worth, (0.371889, 0.219546, -0.286314), atol=6e-7)
    assert (agreement(np.stack([each.worth for each in (exact, shrunk, plain)]), expected).kendall > 1 - 1e-9).all()
    assert exact.cost.evaluations == plain.cost.evaluations == 16


@pytest.mark.in_turn
def test_completed_values_inside_a_run_are_those_of_the_rounds_so_far():
    """Of a memory of three rounds, over four: the last of them has forgotten the first, in which all took part."""
    record, utility, _ = rounds_that_are_multiples()
    record = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), record._replace(server_rate=jnp.ones(3)))
    how = {"utility": utility, "rank": 1, "penalty": 1e-9}
    chosen = RoundMeasure("completed_shapley", options={"rounds": 3, "rank": 1, "penalty": 1e-9})
    estimator = estimator_of(chosen, {"utility": utility})

    def play(members):
        known, scores = begin_contributions(estimator, jnp.zeros(4), len(members)), []
        for t in range(4):
            rows = (record.updates[t], record.weights[t], record.present[t])
            rows = (jnp.resize(leaf, (len(members), *leaf.shape[1:])) for leaf in rows)
            rows = [leaf.at[3:].set(jnp.zeros((), leaf.dtype)) for leaf in rows]  # who left is absent
            seen = Observation(record.models[t], rows[0], rows[1], rows[2], jnp.arange(len(members)))
            known, score = observe_contributions(chosen, estimator, known, seen, jnp.asarray(members))
            scores.append(np.asarray(score)[:3])
        return np.stack(scores)

    scores = play([True] * 3)
    for t in range(3):
        first = jax.tree.map(lambda leaf, t=t: leaf[: t + 1], record)._replace(models=record.models[: t + 2])
        expected = found(completed_shapley(**how), first).worth
        np.testing.assert_allclose(scores[t], np.where(record.present[t], expected, np.nan), atol=1e-6)
    assert np.isnan(scores[3]).all()
    np.testing.assert_allclose(play([True] * 3 + [False]), scores, atol=1e-6)  # who left is in no coalition


@pytest.mark.parametrize("members", [None, [True] * 4])
def test_cohorts_that_never_hold_everybody_are_refused(members):
    chosen = RoundMeasure("completed_shapley", options={"rounds": 3})
    estimator = estimator_of(chosen, {"utility": jnp.sum})
    seen = Observation(jnp.zeros(4), jnp.eye(3, 4), jnp.ones(3), jnp.ones(3, bool), jnp.arange(3))
    known = begin_contributions(estimator, jnp.zeros(4), 4)
    with pytest.raises(ValueError, match=r"expected cohorts of all 4 clients for completed_shapley, got cohorts of 3"):
        observe_contributions(chosen, estimator, known, seen, members if members is None else jnp.asarray(members))


@pytest.mark.thorough
def test_the_objective_is_nearly_the_least_of_many_long_descents():
    """Of random problems; a single descent of 100 sweeps ends up to 30 times above it."""
    random = np.random.default_rng(0)
    rule = functools.partial(complete, rank=3, penalty=1e-3)
    short = jax.jit(functools.partial(rule, sweeps=100, starts=8))
    long = jax.jit(functools.partial(rule, sweeps=1000, starts=16))
    for _ in range(4):
        table = random.normal(size=(6, 3)) @ random.normal(size=(16, 3)).T
        absent = 1 << random.integers(4, size=(6, 1))
        known = (np.arange(16) & absent == 0) | (np.arange(6) == 0)[:, None]
        result, least = (one(jnp.asarray(table), jnp.asarray(known)) for one in (short, long))
        assert result.objective.min() < 1.2 * least.objective.min()
        assert least.converged
    assert not rule(jnp.asarray(table), jnp.asarray(known), sweeps=4).converged


@pytest.mark.thorough
def test_with_full_participation_and_full_rank_completed_values_are_those_of_rounds():
    record = runs.record(runs.FOUR)
    result = found(completed_shapley(utility=runs.utility, rank=3, penalty=1e-9, sweeps=300), record)
    np.testing.assert_allclose(result.worth, found(multi_round(utility=runs.utility), record).worth, atol=1e-5)


@pytest.mark.in_turn
def test_a_coalition_that_no_round_knows_is_named():
    record, utility, _ = rounds_that_are_multiples()
    part = jax.tree.map(lambda leaf: leaf[1:], record._replace(server_rate=jnp.ones(3)))
    result = found(completed_shapley(utility=utility, rank=1), part)
    assert np.isnan(result.worth).all()
    assert np.flatnonzero(result.details["unobserved"]).tolist() == [0b101, 0b111]
