"""Contributions in rounds: NumPy's recursion and filter, cosines that are known, and what is refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import ESTIMATORS, MEASURES, ROUND_MEASURES, RoundMeasure
from fljax.contributions.estimators import (
    Observation,
    begin_contributions,
    cosine,
    estimator_of,
    observe_contributions,
)
from fljax.contributions.estimators.in_rounds import as_round_measure, is_round_measure, needs_of, remaining
from tests.oracles.numpy_rewards import Known, contributions_round, cosines
from tests.precision import enable_x64
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_compilation")

CLIENTS, ROUNDS = 5, 3
# Client 2 is absent in round 1, client 1 in round 2, and client 4 in round 0. Client 0 points away from the others.
IDS = np.array([[3, 0, 1, 2], [1, 4, 2, 0], [0, 3, 4, 1]])
PRESENT = np.array([[True, True, True, True], [True, True, False, True], [True, True, True, False]])


def moves():
    """Updates ``[rounds, rows, 6]``, NaN in absent rows."""
    random = np.random.default_rng(0)
    found = (1 + 0.8 * random.normal(size=(*IDS.shape, 6))) * random.uniform(0.5, 2, (*IDS.shape, 1))
    found[IDS == 0] *= -0.3
    found[~PRESENT] = np.nan
    return found


@functools.partial(jax.jit, static_argnums=4)
def program(memory, below, updates, present, accumulated):
    """The contributions and scores after each round, by CGSV's cosine; a client may leave after its first round."""
    chosen = RoundMeasure("cosine", memory, below, 1, options={"normalised": True}, accumulated=accumulated)
    estimator = estimator_of(chosen, {})
    start = begin_contributions(estimator, jax.tree.map(lambda leaf: leaf[0, 0], updates), CLIENTS)

    def one(before, seen):
        update, ids, present = seen
        after, score = observe_contributions(
            chosen, estimator, before, Observation(None, update, jnp.ones(ids.shape), present, ids)
        )
        return after, (after._replace(state=()), score)

    return jax.lax.scan(one, start, (updates, jnp.asarray(IDS), present))[1]


def play(memory: float | None = 0.6, below=0.0, accumulated=False, present=PRESENT):
    whole = moves()
    tree = {"a": whole[..., :2], "b": whole[..., 2:].reshape(*IDS.shape, 2, 2)}
    numbers = None if memory is None else jnp.asarray(memory, float), jnp.asarray(below, float)
    arrays = jax.tree.map(jnp.asarray, tree), jnp.asarray(present)
    return jax.tree.map(np.asarray, program(*numbers, *arrays, accumulated))


@pytest.fixture(scope="module")
def rounds():
    with enable_x64(True):
        yield functools.cache(play)


@pytest.mark.parametrize("memory", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("below", [0.0, 1.0])
@pytest.mark.parametrize("accumulated", [False, True])
def test_rounds_are_those_of_numpy(memory, below, accumulated, rounds):
    found, score = rounds(memory, below, accumulated)
    known = Known(np.zeros(CLIENTS), np.zeros(CLIENTS, int), np.zeros(CLIENTS, bool))
    for t in range(ROUNDS):
        rows = {int(IDS[t, s]): moves()[t, s] for s in range(4) if PRESENT[t, s] and not known.filtered[IDS[t, s]]}
        expected = cosines(rows, normalised=True)
        known = contributions_round(known, expected, memory, below, 1, accumulated)
        np.testing.assert_allclose(found.contribution[t], known.contribution, atol=1e-12)
        np.testing.assert_array_equal(found.rounds[t], known.rounds)
        np.testing.assert_array_equal(found.filtered[t], known.filtered)
        np.testing.assert_allclose(score[t], [expected.get(id, np.nan) for id in range(CLIENTS)], atol=1e-12)


def test_what_the_filter_does(rounds):
    free, strict = rounds(0.6, 0.0)[0], rounds(0.6, 1.0)[0]
    assert free.filtered[-1].tolist() == [True, False, False, False, False], "only the one that points away"
    assert not free.filtered[0].any(), "nobody leaves before its second round"
    assert (strict.filtered >= free.filtered).all()
    assert not strict.filtered[-1].all()
    assert not rounds(1.0, 1.0)[0].filtered.any(), "with contributions of 0 there is no positive mean"


def test_memory_of_0_and_of_1(rounds):
    found, score = rounds(0.0, 0.0)
    last = np.where(np.isnan(score[0]), 0, score[0])
    np.testing.assert_array_equal(found.contribution[0], last)
    assert not rounds(1.0, 0.0)[0].contribution.any()
    for accumulated, same in ((False, 0.0), (True, 1.0)):  # what it is if it is not given
        usual, asked = (play(each, accumulated=accumulated)[0].contribution for each in (None, same))
        np.testing.assert_array_equal(usual, asked)


def test_a_round_of_nobody_changes_nothing():
    with enable_x64(True):
        present = PRESENT & (np.arange(ROUNDS) != 1)[:, None]
        found, score = play(present=present)
    for before, after in zip(*(jax.tree.map(lambda leaf, t=t: leaf[t], found) for t in (0, 1)), strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.isnan(score[1]).all()


def observed(updates, chosen=None, members=None, present=None):
    """One round."""
    chosen = RoundMeasure("cosine") if chosen is None else chosen
    rows = len(updates)

    @jax.jit
    def play_round(updates, present, members):
        estimator = estimator_of(chosen, {})
        before = begin_contributions(estimator, updates[0], rows)
        seen = Observation(None, updates, jnp.ones(rows), present, jnp.arange(rows))
        return observe_contributions(chosen, estimator, before, seen, members)

    present = np.ones(rows, bool) if present is None else np.asarray(present)
    return jax.tree.map(np.asarray, play_round(np.asarray(updates, np.float32), present, members))


@pytest.mark.parametrize("normalised", [False, True])
def test_cosines_of_identical_opposite_and_zero_updates(normalised):
    direction = np.array([1.0, -2.0, 0.5])
    updates = np.stack([direction, direction, -0.5 * direction, 0 * direction])
    found, score = observed(updates, RoundMeasure("cosine", options={"normalised": normalised}))
    np.testing.assert_allclose(score, [1, 1, -1, 0], atol=1e-6)
    np.testing.assert_array_equal(found.contribution, score)


def test_a_duplicated_client_has_the_contribution_of_its_twin():
    random = np.random.default_rng(3)
    updates = random.normal(size=(4, 5))
    updates[3] = updates[1]
    score = observed(updates)[1]
    assert score[3] == score[1]
    assert len(set(np.asarray(score[:3]).tolist())) == 3


def test_a_function_of_ones_own():
    def lengths(updates, weights, present, *, scale=1.0):
        return scale * jnp.linalg.norm(updates, axis=1) * weights / present.sum()

    chosen = RoundMeasure(lengths, options={"scale": 2.0})
    found, score = observed(np.diag([3.0, 4.0, np.nan]), chosen, present=[True, True, False])
    np.testing.assert_allclose(found.contribution, [3, 4, 0])
    np.testing.assert_allclose(score, [3, 4, np.nan])
    assert is_round_measure(lengths)
    assert as_round_measure(lengths) == RoundMeasure(lengths)
    wrong = RoundMeasure(lambda updates, weights, present: jnp.sum(weights))
    with pytest.raises(
        ValueError, match=r"expected the measure <lambda> to return one score for each of 2 rows, got an array"
    ):
        observed(np.eye(2), wrong)


def test_a_function_with_a_memory_of_its_own():
    """The largest entry of a client's updates so far; absent rows are read as zeros of whatever id."""

    def largest(updates, weights, present, *, ids, kept=jnp.zeros):
        kept = kept.at[ids].max(jnp.where(present, jnp.max(updates["a"], axis=1), 0))
        return kept[ids], kept

    moved = moves()[..., :2]
    chosen = RoundMeasure(largest)
    estimator = estimator_of(chosen, {})
    known = begin_contributions(estimator, {"a": jnp.zeros(2)}, CLIENTS)
    expected = np.zeros(CLIENTS)
    for t in range(ROUNDS):
        seen = Observation(
            None, {"a": jnp.asarray(moved[t])}, jnp.ones(4), jnp.asarray(PRESENT[t]), jnp.asarray(IDS[t])
        )
        known, _ = observe_contributions(chosen, estimator, known, seen)
        for s in np.flatnonzero(PRESENT[t]):
            expected[IDS[t, s]] = max(expected[IDS[t, s]], moved[t, s].max())
        np.testing.assert_allclose(known.contribution, expected, rtol=1e-6)
    alone = RoundMeasure(lambda updates, weights, present, kept=jnp.zeros: weights)
    with pytest.raises(
        ValueError, match="expected the measure <lambda> to return scores and what it keeps, got an arr"
    ):
        observed(np.eye(2), alone)


@pytest.mark.parametrize(
    ("first", "after", "got"),
    [
        (jnp.zeros, lambda kept: (kept, kept), r"\('float..\[2\]', 'float..\[2\]'\) after float..\[2\]"),
        (jnp.zeros, lambda kept: kept[:1], r"float..\[1\] after float..\[2\]"),
        (lambda clients: jnp.zeros(clients, int), lambda kept: kept + 0.5, r"float..\[2\] after int..\[2\]"),
        (lambda clients: {"a": 0}, lambda kept: {"a": 0.5}, r"{'a': 'float..\[\]'} after {'a': 'int..\[\]'}"),
        (lambda clients: jnp.zeros(clients, bool), lambda kept: kept + 1, r"int..\[2\] after bool\[2\]"),
    ],
)
def test_a_memory_of_ones_own_keeps_its_form(first, after, got):
    changing = RoundMeasure(lambda updates, weights, present, kept=first: (weights, after(kept)))
    refuses(lambda: observed(np.eye(2), changing), f"<lambda> to keep arrays of the same shapes and types, got {got}")
    same = RoundMeasure(lambda updates, weights, present, kept=first: (weights, kept))
    np.testing.assert_array_equal(observed(np.eye(2), same)[1], 1)


@pytest.mark.parametrize(
    ("measure", "got"),
    [
        (lambda updates, weights, present, *, kept: (weights, kept), "None"),
        (lambda updates, weights, present, kept=None: (weights, kept), "None"),
        (lambda updates, weights, present, kept=0.5: (weights, kept), "0.5"),
    ],
)
def test_the_default_of_kept_is_a_function(measure, got):
    message = f"expected the default of kept of the measure <lambda> to be a function of the .*zeros, got {got}$"
    refuses(lambda: estimator_of(RoundMeasure(measure), {}), message)


def test_a_score_that_is_not_finite_changes_nothing():
    chosen = RoundMeasure(lambda updates, weights, present: updates[:, 0], filter_below=0.5)
    found, score = observed(np.array([[np.nan], [np.inf], [2.0]]), chosen)
    np.testing.assert_array_equal(found.contribution, [0, 0, 2])
    np.testing.assert_array_equal(score, [np.nan, np.nan, 2])


def test_who_left_counts_in_no_mean():
    chosen = RoundMeasure(lambda updates, weights, present: updates[:, 0], filter_below=0.5)
    updates = np.array([[1.0], [1.5], [9.0]])
    everybody, two = observed(updates, chosen)[0], observed(updates, chosen, jnp.asarray([True, True, False]))[0]
    assert everybody.filtered.tolist() == [True, True, False]
    assert not two.filtered.any()
    assert remaining(everybody, None).tolist() == [False, False, True]
    assert remaining(everybody, jnp.asarray([True, True, False])).tolist() == [False, False, False]


@pytest.mark.thorough
def test_gradients_are_finite_with_updates_of_zero():
    def contribution(updates):
        seen = Observation(None, updates, jnp.ones(3), jnp.ones(3, bool), jnp.arange(3))
        return jnp.sum(cosine(normalised=True).observe((), seen, jnp.int32(0))[1] ** 2)

    assert np.isfinite(jax.grad(contribution)(jnp.asarray([[1.0, 2.0], [0.0, 0.0], [0.5, -1.0]]))).all()
    assert not jnp.any(jax.grad(contribution)(jnp.zeros((3, 2))))


def test_which_estimators_run_in_rounds():
    assert set(ROUND_MEASURES) == {
        "multi_round",
        "fed_shapley",
        "gtg_shapley",
        "in_run_leave_one_out",
        "digfl",
        "first_order",
        "cosine",
        "shapfed",
        "cffl_reputation",
        "rffl_reputation",
        "completed_shapley",
    }
    assert next(iter(MEASURES)) == "size"
    assert set(ROUND_MEASURES) < set(MEASURES)
    assert needs_of(RoundMeasure("cosine")) == ESTIMATORS["cosine"].needs
    assert as_round_measure("size") is None
    assert as_round_measure("cosine") == RoundMeasure("cosine")


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["rffl_reputation", "cffl_reputation"])
def test_reputations_count_the_members_of_the_federation_alone(name):
    """Three members of five clients are as a federation of three: one of them is below the threshold over three."""
    options = {"threshold": 1.0} | ({"warm_up": 0} if name == "rffl_reputation" else {})
    chosen = RoundMeasure(name, options=options)
    estimator = estimator_of(chosen, {"utility": jnp.sum})
    model, update = jnp.zeros(2), jnp.asarray([[1.0, 0.1], [0.9, 0.2], [0.3, 0.6]])
    seen = Observation(model, update, jnp.ones(3), jnp.ones(3, bool), jnp.arange(3))

    def after(clients, members):
        known, _ = observe_contributions(
            chosen, estimator, begin_contributions(estimator, model, clients), seen, members
        )
        return np.asarray(known.contribution[:3])

    alone = after(3, None)
    assert 0 < np.sum(alone == 0) < 3
    np.testing.assert_allclose(after(5, jnp.arange(5) < 3), alone, rtol=1e-6)
