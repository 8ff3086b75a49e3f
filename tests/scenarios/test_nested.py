"""Scenarios inside each other: what each of them draws does not depend on what the others draw."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg
from fljax.engine.rounds.states import Purpose, by_id, initial_state, round_key
from fljax.protocol import Available
from fljax.scenarios import REGISTRY, Strategy, availability, byzantine, clipped, dropout
from tests.scenarios.tools import LOCAL, POPULATION, TASK, everybody, flat, run, sent, taking_part
from tests.toys.federation import tiny_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEYS = 400
# Options with which a scenario takes nobody out of a cohort.
HARMLESS: dict[str, dict[str, Any]] = {
    "adaptive_effort": {"cost": 0.1},
    "appeal_based": {"threshold": 1e9},
    "availability": {"trace": np.ones((1, POPULATION))},
    "backdoor": {"target": 0, "fraction": 0.4},
    "byzantine": {"fraction": 0.4},
    "client_sampling": {"by": "size"},
    "clipped": {"norm": 1.0, "noise": 0.1},
    "colluding": {"attack": "mimic"},
    "drift": {"at": 0},
    "dropout": {"rate": 0.0},
    "effort": {"share": 0.5},
    "finetuned": {"learning_rate": 0.1, "batch_size": 2, "steps": 1},
    "free_riding": {"ids": (1,)},
    "heterogeneous_training": {"rate_factor": 0.5},
    "median_clipped": {},
    "misreporting": {"report": "size", "fraction": 0.4},
    "opting_out": {"baseline": 0.0},
    "robust": {"rule": "mean"},
    "strategic": {"strategy": Strategy(own=2.0)},
}


@pytest.fixture(scope="module")
def federation():
    return by_id(tiny_federation())


def selected(algorithm: Any, federation: Any) -> Any:
    """Cohorts of round 0 of many seeds, ``[KEYS, S]``."""

    @jax.jit
    def one(seed: Any) -> Any:
        state = initial_state(algorithm, federation, seed)
        key = round_key(seed, Purpose.SELECT, 0)
        available = Available(POPULATION)
        return algorithm.select(key, jnp.int32(0), state.server, state.ballots, available)[1]

    return jax.vmap(one)(jnp.arange(KEYS, dtype=jnp.uint32))


def present(algorithm: Any, federation: Any) -> np.ndarray:
    return np.asarray(selected(algorithm, federation).present)


@pytest.mark.thorough
@pytest.mark.parametrize("between", [None, *REGISTRY])
def test_dropouts_inside_each_other_multiply(between, federation):
    """A quarter of the clients answers: 500 of 2,000 with a standard deviation of 19."""
    inner = dropout(everybody(), rate=0.5)
    if between is not None:
        inner = REGISTRY[between].build(inner, **HARMLESS[between])
    found = present(dropout(inner, rate=0.5), federation)
    assert 0.2 < found.mean() < 0.3
    # Whether a client answers to one of them says nothing about the other.
    assert not (found & ~present(inner, federation)).any()


def test_three_dropouts_multiply(federation):
    found = present(dropout(dropout(dropout(everybody(), rate=0.5), rate=0.5), rate=0.5), federation)
    assert 0.09 < found.mean() < 0.16


@pytest.mark.in_turn
def test_a_single_dropout_draws_what_it_always_drew(federation):
    """Recorded results stay: 1002 is folded into the key, whatever other scenarios are around it or inside."""
    key = round_key(jnp.uint32(7), Purpose.SELECT, 0)
    expected = np.asarray(jax.random.uniform(jax.random.fold_in(key, 1002), (POPULATION,))) >= 0.5
    assert 0 < expected.sum() < POPULATION
    for inner in (everybody(), clipped(byzantine(everybody()), norm=1.0)):
        cohort = selected(dropout(inner, rate=0.5), federation)
        np.testing.assert_array_equal(np.asarray(cohort.present)[7], expected[np.asarray(cohort.id)[7]])
        around = selected(clipped(dropout(inner, rate=0.5), norm=1.0), federation)
        np.testing.assert_array_equal(around.present, cohort.present)


@pytest.mark.thorough
def test_a_dropout_of_nobody_changes_nothing_inside_or_outside(federation):
    inner = dropout(fedavg(TASK, LOCAL, clients_per_round=3), rate=0.4)
    plain, _ = run(inner, federation, 3)
    outside, _ = run(dropout(inner, rate=0.0), federation, 3)
    jax.tree.map(np.testing.assert_array_equal, plain[-1], outside[-1])
    # Inside, its selection stays; the outer dropout draws other numbers than it did alone.
    inside = selected(dropout(dropout(fedavg(TASK, LOCAL, clients_per_round=3), rate=0.0), rate=0.4), federation)
    alone = selected(inner, federation)
    np.testing.assert_array_equal(inside.id, alone.id)


@pytest.mark.in_turn
def test_byzantine_clients_inside_each_other_are_drawn_apart(federation):
    algorithm = byzantine(byzantine(everybody(), fraction=0.4), fraction=0.4)
    servers = jax.vmap(lambda seed: initial_state(algorithm, federation, seed).server)(jnp.arange(200))
    outer, inner = (np.asarray(each.behaviour.values) for each in (servers, servers.inner))
    assert (outer.sum(axis=1) == 2).all()
    assert (inner.sum(axis=1) == 2).all()
    # 0.16 of the clients are in both: 160 of 1,000.
    assert 0.1 < (outer & inner).mean() < 0.22
    single = byzantine(everybody(), fraction=0.4)
    alone = jax.vmap(lambda seed: initial_state(single, federation, seed).server)(jnp.arange(200))
    np.testing.assert_array_equal(alone.behaviour.values, inner)


@pytest.mark.thorough
def test_the_noise_of_nested_clipping_is_drawn_apart(federation):
    """75 pairs of numbers; if they were the same, their correlation would be 1."""
    inner = clipped(everybody(), norm=1e6, noise=1e-6)
    plain, once, both = (
        flat(sent(algorithm, federation)[1].update)
        for algorithm in (everybody(), inner, clipped(inner, norm=1e6, noise=1e-6))
    )
    assert (once - plain).std() > 0.5
    assert (both - once).std() > 0.5
    assert abs(np.corrcoef(once - plain, both - once)[0, 1]) < 0.4


@pytest.mark.thorough
def test_the_noise_of_byzantine_clients_inside_each_other_is_drawn_apart(federation):
    """Of the two noises of a client that is Byzantine twice, neither is a multiple of the other."""
    inner = byzantine(everybody(), fraction=1.0, noise=1.0)
    nested = (everybody(), inner, byzantine(inner, fraction=1.0, noise=1.0))
    for plain, first, second in zip(*(flat(sent(each, federation)[1].update, 1) for each in nested), strict=True):
        once, again = first - plain, second - first
        assert abs(np.corrcoef(once, again)[0, 1]) < 0.95
        assert np.abs(once).max() > 0
        assert np.abs(again).max() > 0


@pytest.mark.parametrize("outer", REGISTRY)
def test_every_scenario_is_named_on_the_algorithm(outer):
    inner = dropout(everybody(), rate=0.5)
    found = REGISTRY[outer].build(inner, **HARMLESS[outer])
    assert [each.name for each in found.scenarios] == ["dropout", outer]


def test_absence_of_both_kinds_adds_up(federation):
    trace = np.array([[1, 0, 1, 0, 1]])
    cohort = selected(availability(dropout(everybody(), rate=0.5), trace=trace), federation)
    there, traced = np.asarray(cohort.present), trace[0].astype(bool)[np.asarray(cohort.id)]
    assert not there[~traced].any()
    assert 0.4 < there[traced].mean() < 0.6


NAMES = list(REGISTRY)
# Of all pairs, each scenario inside itself and inside the next one is not slow; the quick tests take a sample of these.
PAIRS = [
    pytest.param(
        outer,
        inner,
        marks=() if (NAMES.index(outer) - NAMES.index(inner)) % len(NAMES) < 2 else pytest.mark.slow,
    )
    for outer in NAMES
    for inner in NAMES
    if outer != "robust" or inner not in ("colluding", "median_clipped", "robust")  # these read single updates
]


@functools.cache
def first_round(inner: str) -> frozenset[int]:
    """Who takes part in round 0 with one scenario alone."""
    wrapped = REGISTRY[inner].build(everybody(), **REGISTRY[inner].example)
    return frozenset(taking_part(run(wrapped, tiny_federation(), 1)[1][0]))


@pytest.mark.thorough
@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_presence_never_grows(outer, inner, federation):
    """A scenario may take clients out of the pool or the cohort and never adds one that the other took out."""
    wrapped = REGISTRY[inner].build(everybody(), **REGISTRY[inner].example)
    states, records = run(REGISTRY[outer].build(wrapped, **REGISTRY[outer].example), federation, 2)
    # The first round starts from the same state with both. A sampling draws others for those that are left out.
    assert taking_part(records[0]) <= first_round(inner) or inner == outer == "client_sampling"
    for record in records:
        ids = record["cohort_id"][record["cohort_present"]].tolist()
        assert len(set(ids)) == len(ids) <= POPULATION
    assert int(states[-1].diverged) == -1
