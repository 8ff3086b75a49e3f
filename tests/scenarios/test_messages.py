"""Scenarios that touch what clients send: Byzantine clients, clipped and noisy updates, and free riders."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import afl, fedavg, incfl, mwfed, scaffold, standalone
from fljax.core import trees
from fljax.engine import simulate
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import appeal_based, byzantine, clipped, finetuned, free_riding
from fljax.training import Local
from tests.laws.compare import assert_close
from tests.scenarios.tools import LOCAL, POPULATION, TASK, run, sent, taking_part

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
WEIGHTS = {"clients_per_round": None, "weights": "uniform"}


# --- Byzantine clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.05, 0), (0.2, 1), (0.5, 2), (1.0, 5)])
def test_how_many_are_byzantine(fraction, count, federation):
    algorithm = byzantine(fedavg(TASK, LOCAL), fraction=fraction)
    masks = [
        np.asarray(initial_state(algorithm, by_id(federation), jnp.uint32(seed)).server.behaviour.values)
        for seed in range(4)
    ]
    assert all(mask.sum() == count for mask in masks)
    if 0 < count < POPULATION:
        assert any((mask != masks[0]).any() for mask in masks)


def test_byzantine_clients_inflate_losses_and_blur_updates(federation):
    inner = incfl(TASK, LOCAL, threshold=0.5)
    _, honest = sent(inner, federation)
    state, found = sent(byzantine(inner, fraction=0.4, loss_increase=3.0, noise=2.0), federation)
    bad = np.asarray(state.server.behaviour.values)
    np.testing.assert_allclose(found.report.loss - honest.report.loss, np.where(bad, 3.0, 0.0), atol=1e-6)
    change = jax.tree.map(lambda a, b: np.asarray(a - b), found.update, honest.update)
    for id in range(POPULATION):
        own = np.concatenate([leaf[id].ravel() for leaf in jax.tree.leaves(change)])
        size = np.concatenate([np.asarray(leaf)[id].ravel() for leaf in jax.tree.leaves(honest.update)])
        if not bad[id]:
            assert not own.any()
        else:  # 15 normal numbers of standard deviation 2 rms
            assert 0.5 < np.sqrt(np.mean(own**2)) / (2 * np.sqrt(np.mean(size**2))) < 1.6


def test_an_infinite_loss_has_no_influence_under_incfl(federation):
    inner = incfl(TASK, LOCAL, threshold=0.8, clients_per_round=None)
    states, records = run(byzantine(inner, fraction=0.2, loss_increase=jnp.inf, noise=1e6), federation, 4)
    bad = int(np.flatnonzero(states[0].server.behaviour.values)[0])

    def without(key: Any, round: Any, server: Any, ballots: Any, available: Any) -> Any:
        server, cohort, info = inner.select(key, round, server, ballots, available)
        return server, cohort._replace(present=cohort.present & (cohort.id != bad)), info

    others, _ = run(inner._replace(select=without), federation, 4)
    for with_it, alone in zip(states, others, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), with_it.server.inner.model, alone.server.model
        )
    assert all(bad in taking_part(record) for record in records)
    assert all(record["weight"][record["cohort_id"] == bad] == 0 for record in records)
    # The other derivative that Algorithm 1 prints would give it the largest weight of all.
    softplus = incfl(TASK, LOCAL, threshold=0.8, clients_per_round=None, surrogate="softplus")
    _, records = run(byzantine(softplus, fraction=0.2, loss_increase=1e6), federation, 1)
    assert records[0]["weight"][records[0]["cohort_id"] == bad] == 1


def test_an_infinite_loss_is_all_that_afl_looks_at(federation):
    inner = afl(TASK, LOCAL, mixture_learning_rate=1.0)
    states, records = run(byzantine(inner, fraction=0.4, loss_increase=jnp.inf, noise=0.0), federation, 2)
    bad = np.asarray(states[0].server.behaviour.values)
    assert int(states[-1].diverged) == -1
    np.testing.assert_allclose(records[-1]["mixture"][bad].sum(), 1, rtol=1e-6)


def test_byzantine_clients_of_mwfed_always_complain(federation):
    inner = mwfed(TASK, LOCAL, threshold=100.0, clients_per_round=None)
    states, records = run(byzantine(inner, fraction=0.2, loss_increase=1e3, noise=0.0), federation, 3)
    bad = np.asarray(states[0].server.behaviour.values)
    # One complains among five: 2^t / (2^t + 4).
    np.testing.assert_allclose(records[-1]["share"][bad], 8 / 12, rtol=1e-6)


def test_ballots_are_inflated_around_and_not_inside(federation):
    inner = fedavg(TASK, LOCAL, clients_per_round=None)
    outside = byzantine(appeal_based(inner, threshold=5.0, after=1), fraction=0.4)
    states, records = run(outside, federation, 3)
    bad = np.asarray(states[0].server.behaviour.values)
    np.testing.assert_array_equal(records[1]["appealed"], ~bad)
    assert taking_part(records[0]) == set(range(5))
    assert taking_part(records[1]) == set(np.flatnonzero(~bad))
    inside = appeal_based(byzantine(inner, fraction=0.4), threshold=5.0, after=1)
    _, records = run(inside, federation, 3)
    assert records[1]["appealed"].all()


@pytest.mark.parametrize("count_all", [False, True])
def test_metrics_are_over_honest_clients(count_all, federation):
    algorithm = byzantine(fedavg(TASK, LOCAL, clients_per_round=3), fraction=0.4, count_all=count_all)
    algorithm = finetuned(algorithm, learning_rate=0.1, batch_size=2, steps=1)
    result = simulate(algorithm, federation, rounds=2, seeds=(0, 1))
    counted = np.isfinite(result.metrics["test_loss"].values)
    honest = ~np.asarray(result.state.server.behaviour.values)
    np.testing.assert_array_equal(counted, np.broadcast_to((honest | count_all)[:, None, :], counted.shape))
    np.testing.assert_array_equal(counted, np.isfinite(result.metrics["global_test_accuracy"].values))
    assert np.isfinite(result.metrics["unseen_test_loss"]).all()
    mean = np.nanmean(result.metrics["test_accuracy"].values, axis=-1)
    np.testing.assert_allclose(result.metrics["average_accuracy"], mean, rtol=1e-6)


def test_evaluation_without_rounds_counts_as_well(federation):
    algorithm = byzantine(fedavg(TASK, LOCAL), fraction=0.2)
    data = by_id(federation)
    state = initial_state(algorithm, data, jnp.uint32(0))
    assert int(np.isnan(evaluate_state(algorithm, data, Layout(5, 1, 5), state)["test_loss"].values).sum()) == 1


# --- Clipping -----------------------------------------------------------------------------------------------


def lengths(updates: Any) -> np.ndarray:
    return np.sqrt(sum(np.square(leaf).reshape(POPULATION, -1).sum(axis=1) for leaf in jax.tree.leaves(updates)))


def test_updates_are_no_longer_than_asked(federation):
    inner = fedavg(TASK, LOCAL)
    plain = sent(inner, federation)[1].update
    middle = float(np.median(lengths(plain)))
    bounded = sent(clipped(inner, norm=middle), federation)[1].update
    np.testing.assert_allclose(lengths(bounded), np.minimum(lengths(plain), middle), rtol=1e-5)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(bounded), strict=True):
        factor = np.minimum(1, middle / lengths(plain)).reshape(-1, *[1] * (a.ndim - 1))
        np.testing.assert_allclose(b, a * factor, rtol=1e-5, atol=1e-7)


def test_noise_is_of_the_asked_size_and_differs_between_clients(federation):
    inner = fedavg(TASK, LOCAL)
    quiet = sent(clipped(inner, norm=0.5), federation)[1].update
    noisy = sent(clipped(inner, norm=0.5, noise=3.0), federation)[1].update
    drawn = trees.subtract(noisy, quiet)
    rows = np.concatenate([np.asarray(leaf).reshape(POPULATION, -1) for leaf in jax.tree.leaves(drawn)], axis=1)
    assert 1.2 < rows.std() < 1.8  # 75 numbers of standard deviation 1.5
    assert np.unique(rows).size == rows.size


def test_nothing_to_clip(federation):
    inner = standalone(TASK, LOCAL)
    states, _ = run(clipped(inner, norm=1e-3, noise=1.0), federation, 2)
    plain, _ = run(inner, federation, 2)
    jax.tree.map(np.testing.assert_array_equal, states[-1].clients, plain[-1].clients)
    still = fedavg(TASK, Local(0.0, 2, steps=1))
    update = sent(clipped(still, norm=1.0), federation)[1].update
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(update))


def test_a_huge_update_is_clipped_without_overflow(federation):
    inner = fedavg(TASK, LOCAL)

    def train(*arguments: Any) -> Any:
        up, client = inner.train(*arguments)
        return up._replace(
            update=trees.scale(trees.add(up.update, jax.tree.map(jnp.ones_like, up.update)), 1e30)
        ), client

    found = sent(clipped(inner._replace(train=train), norm=2.0), federation)[1].update
    np.testing.assert_allclose(lengths(found), 2.0, rtol=1e-5)


def test_who_clips_may_be_given(federation):
    inner = fedavg(TASK, LOCAL)
    who = jnp.array([1, 0, 0, 1, 0])
    plain, all_of_them, some = (
        sent(each, federation)[1].update
        for each in (inner, clipped(inner, norm=1e-3, noise=0.5), clipped(inner, norm=1e-3, noise=0.5, who=who))
    )
    for expected, other, found in zip(*map(jax.tree.leaves, (plain, all_of_them, some)), strict=True):
        np.testing.assert_array_equal(found, np.where(np.reshape(who, (-1, *[1] * (found.ndim - 1))), other, expected))


# --- Free riders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [incfl(TASK, LOCAL, threshold=0.5), scaffold(TASK, LOCAL)], ids=["incfl", "scaffold"])
def test_free_riders_send_nothing_and_all_else_stays(inner, federation):
    rides = np.isin(np.arange(POPULATION), (4, 0))
    _, honest = sent(inner, federation)
    _, found = sent(free_riding(inner, ids=(4, 0)), federation)
    for new, old in zip(jax.tree.leaves(found.update), jax.tree.leaves(honest.update), strict=True):
        assert not np.asarray(new)[rides].any()
        np.testing.assert_array_equal(np.asarray(new)[~rides], np.asarray(old)[~rides])
    rest = [up._replace(update=()) for up in (found, honest)]
    assert jax.tree.leaves(rest[0])
    jax.tree.map(np.testing.assert_array_equal, *rest)


def test_free_riders_dilute_the_mean_and_get_the_model(federation):
    inner = fedavg(TASK, LOCAL, **WEIGHTS)
    _, honest = sent(inner, federation)
    states, records = run(free_riding(inner, ids=[1, 3]), federation, 1)
    start = initial_state(inner, by_id(federation), jnp.uint32(0)).server.model
    kept = jnp.asarray([1, 0, 1, 0, 1]) / POPULATION
    mean = jax.tree.map(lambda leaf: jnp.tensordot(kept, leaf, 1), honest.update)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        states[-1].server.model,
        trees.add(start, mean),
    )
    assert taking_part(records[0]) == set(range(POPULATION))


ALTERNATING = jnp.array([[1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)


def test_who_rides_and_when_is_data(federation):
    """Tables are arguments: one program for all of them, and each round is that of a run with its row alone."""
    inner = fedavg(TASK, LOCAL, **WEIGHTS)
    data = by_id(federation)
    traces = []

    @jax.jit
    def after(state: Any, who: Any) -> Any:
        traces.append(who)
        return one_round(free_riding(inner, who=who), data, Layout(5, 1, 5), state)[0]

    programs = []
    for table in (ALTERNATING, ~ALTERNATING):
        state = initial_state(free_riding(inner, who=table), data, jnp.uint32(0))
        model = state.server
        for round in range(4):
            state = after(state, table)
            row = np.flatnonzero(np.asarray(table)[round % 3])
            alone = initial_state(free_riding(inner, ids=row.tolist()), data, jnp.uint32(0))
            alone = alone._replace(round=jnp.int32(round), server=model)
            alone = one_round(free_riding(inner, ids=row.tolist()), data, Layout(5, 1, 5), alone)[0]
            model = state.server
            assert_close(model, alone.server, 1e-6)
        programs.append(len(traces))
    assert programs[0] == programs[1]


def test_a_fraction_rides_and_one_inside_another_is_drawn_apart(federation):
    algorithm = free_riding(fedavg(TASK, LOCAL, **WEIGHTS), fraction=0.4)
    state, found = sent(algorithm, federation)
    rides = np.asarray(state.server.behaviour.values)
    assert rides.sum() == 2
    for leaf in jax.tree.leaves(found.update):
        np.testing.assert_array_equal(np.asarray(leaf).reshape(POPULATION, -1).any(axis=1), ~rides)
    nested = initial_state(free_riding(algorithm, fraction=0.4), by_id(federation), jnp.uint32(0)).server
    assert (np.asarray(nested.behaviour.values) != np.asarray(nested.inner.behaviour.values)).any()


def test_byzantine_clients_may_be_given(federation):
    inner = incfl(TASK, LOCAL, threshold=0.5, clients_per_round=None)
    who = jnp.array([0, 1, 0, 0, 1])
    alternating = byzantine(inner, who=jnp.stack([who, 1 - who]), loss_increase=1e6, noise=0.0)
    _, records = run(alternating, federation, 2)
    for record, bad in zip(records, (np.asarray(who), 1 - np.asarray(who)), strict=True):
        weight = np.zeros(POPULATION)
        weight[record["cohort_id"]] = record["weight"]
        assert (weight[bad == 1] == 0).all()
        assert (weight[bad == 0] > 0).all()
    # What is sent is counted as without the scenario.
    plain, with_it = (simulate(each, federation, rounds=1).records for each in (inner, byzantine(inner, who=who)))
    for name in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(plain[name], with_it[name])


def test_a_run_that_goes_on_follows_its_own_plan(federation):
    """Who is given is no part of the state: free riders may begin, or stop, where a run is taken up."""
    inner = fedavg(TASK, LOCAL, **WEIGHTS)
    honest = simulate(inner, federation, rounds=1)
    start = honest.metrics["average_loss"].values[:, -1]
    riding = simulate(free_riding(inner, who=jnp.ones(5)), federation, rounds=2, initial=honest.state)
    np.testing.assert_allclose(riding.metrics["average_loss"].values[:, -1], start)
    freed = simulate(free_riding(inner, ids=()), federation, rounds=2, initial=riding.state)
    assert (freed.metrics["average_loss"].values[:, -1] < start).all()
