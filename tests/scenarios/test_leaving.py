"""Who left for good is no member: the others are as in a federation that never had it, and it keeps its model."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import Tokens
from fljax.algorithms.registry import REGISTRY
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import State, by_id, initial_state
from fljax.protocol import unlabelled
from fljax.scenarios import availability, opting_out
from fljax.testing.laws import assert_close, assert_same
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation", "x64")]

LOCAL = Local(0.2, 2, steps=3)
POPULATION, LEAVER = 5, 4


def federation(population: int = POPULATION) -> Any:
    """The tiny federation of 5 clients, or that of its first ``population``."""
    data = by_id(tiny_federation(dtype=np.float64))
    return data._replace(clients=jax.tree.map(lambda leaf: leaf[:population], data.clients))


def algorithm(name: str, population: int = POPULATION, *, leaves: bool = True, how: Any = None, **options: Any) -> Any:
    """An algorithm that client 4 leaves before round 1; its options are those of the first clients."""
    entry = REGISTRY[name]
    options = dict(entry.example) | options
    cut = lambda value: value[:population] if isinstance(value, tuple) and len(value) == POPULATION else value  # noqa: E731
    options = {key: cut(value) for key, value in options.items()}
    if "clients_per_round" in inspect.signature(entry.build).parameters:
        options.setdefault("clients_per_round", 3)
    inner = entry.build(logistic_regression(jnp.float64), LOCAL, **options)
    baseline = np.where(leaves & (np.arange(population) == LEAVER), 2.0, 0.0)
    return opting_out(inner, baseline=baseline, every=1, **(how or {}))


begin = jax.jit(initial_state, static_argnums=0)


def rounds(algorithm: Any, data: Any, state: Any = None, count: int = 1) -> tuple[State, Any]:
    """The state after ``count`` rounds, and the records of the last one."""
    population = data.clients.id.shape[0]
    step = jax.jit(lambda state: one_round(algorithm, data, Layout(population, 1, population), state))
    state = begin(algorithm, data, jnp.uint32(0)) if state is None else state
    info: Any = {}
    for _ in range(count):
        state, info = step(state)
    assert int(state.diverged) == -1
    return state, jax.tree.map(np.asarray, unlabelled(info))


def rescaled(server: Any) -> Any:
    """The server of the smaller federation, in which shares of a whole have the sum 1."""
    inner, shares = server.inner, lambda leaf: leaf / leaf.sum()
    if hasattr(inner, "mixture"):  # AFL
        inner = inner._replace(mixture=shares(inner.mixture))
    if hasattr(getattr(inner, "book", ()), "reputation"):  # CGSV
        inner = inner._replace(book=jax.tree.map(shares, inner.book))
    return server._replace(inner=inner)


def like(tree: Any, example: Any) -> Any:
    """The first rows of arrays, as many as those of ``example`` have: those of the other clients."""
    return jax.tree.map(lambda leaf, small: leaf[tuple(map(slice, small.shape))], tree, example)


CASES = {
    "iafl": ("iafl", {"joining": None}),
    "iafl, median": ("iafl", {"reference_rule": "median"}),
    "iafl, copied": ("iafl", {"reference_draw": "copied"}),
    "iafl, copied median": ("iafl", {"reference_draw": "copied", "reference_rule": "median"}),
} | {name: (name, {}) for name in REGISTRY if name != "iafl"}


@pytest.mark.parametrize("case", CASES)
def test_members_are_as_in_a_federation_that_never_had_who_left(case: str) -> None:
    name, options = CASES[case]
    whole, others = (algorithm(name, population, **options) for population in (POPULATION, POPULATION - 1))
    before, _ = rounds(whole, federation())
    start = begin(others, federation(LEAVER), jnp.uint32(0))
    found, info = rounds(whole, federation(), before, 2)
    assert info["opted_out"].tolist() == [False] * 4 + [True]
    small, first = (like(state, start) for state in (before, begin(whole, federation(), jnp.uint32(0))))
    # What no round has changed, such as a mean size of all clients, is that of the others alone.
    constant = lambda old, now, own: own if np.array_equal(old, now) else now  # noqa: E731
    server = rescaled(jax.tree.map(constant, first.server, small.server, start.server))
    expected, _ = rounds(others, federation(LEAVER), small._replace(server=server), 2)
    assert_close(like(found, start), expected, 1e-12)


@pytest.mark.parametrize("name", ["iafl", "cgsv", "cgsv_iafl", "rank"])
def test_who_left_keeps_its_model(name: str) -> None:
    """A client that is rewarded, as one that may come back, has another model after each round."""
    data, kept = federation(), algorithm(name)
    before, _ = rounds(kept, data)
    for how in ({"leavers": "rewarded"}, {"comes_back": True}):
        absent, moved = algorithm(name, how=how), []
        state = before._replace(server=before.server._replace(inner=before.server.inner._replace(members=None)))
        for _ in range(3):
            state, _ = rounds(absent, data, state)
            moved.append(np.asarray(own_model(state)))
        assert not any(np.array_equal(first, second) for first, second in itertools.pairwise(moved))
    after, info = rounds(kept, data, before, 3)
    np.testing.assert_array_equal(own_model(after), own_model(before))
    assert not np.array_equal(own_model(after, 0), own_model(before, 0))
    if name == "iafl":
        assert info["rate"][LEAVER] == 0
        assert not info["recovered"][LEAVER]
    elif name == "rank":
        assert np.isnan(info["score"]).tolist() == [False] * 4 + [True]
    else:
        assert info["contribution"][LEAVER] == 0
        np.testing.assert_allclose(info["contribution"].sum(), 1)


def own_model(state: Any, id: int = LEAVER) -> Any:
    return state.server.inner.models.values.weight[id]


@pytest.mark.parametrize("name", ["iafl", "cgsv", "rank"])
def test_rewarded_leavers_are_absent_clients(name: str) -> None:
    """To the bit what they are by an announced trace."""
    data, rewarded = federation(), algorithm(name, how={"leavers": "rewarded"})
    entry = REGISTRY[name]
    options = dict(entry.example) | {"clients_per_round": 3}
    trace = np.ones((4, POPULATION))
    trace[1:, LEAVER] = 0
    traced = availability(entry.build(logistic_regression(jnp.float64), LOCAL, **options), trace=trace, announced=True)
    assert_same(rounds(rewarded, data, count=4)[0].server.inner, rounds(traced, data, count=4)[0].server)


def test_the_ceiling_is_the_largest_contribution_of_members() -> None:
    """Client 4 contributes 1 and sets the ceiling, until it leaves."""
    contribution = (0.2, 0.1, 0.5, 0.4, 1.0)
    leaving = algorithm("iafl", contribution=contribution, kappa=0.0)
    state, info = rounds(leaving, federation())
    np.testing.assert_allclose(info["rate"], contribution)
    _, info = rounds(leaving, federation(), state)
    np.testing.assert_allclose(info["rate"], [0.4, 0.2, 1.0, 0.8, 0.0])
    np.testing.assert_allclose(info["contribution"], contribution)


@pytest.mark.parametrize("name", ["iafl", "cgsv", "rank", "afl", "mwfed", "scaffold", "fedfomo", "ipfl"])
def test_when_all_have_left_a_round_changes_nothing(name: str) -> None:
    entry = REGISTRY[name]
    inner = entry.build(logistic_regression(jnp.float64), LOCAL, **entry.example)
    everybody_leaves = opting_out(inner, baseline=2.0, every=1)
    before, _ = rounds(everybody_leaves, federation())
    after, info = rounds(everybody_leaves, federation(), before, 2)
    assert info["opted_out"].all()
    judge = jax.jit(
        lambda data, state: unlabelled(evaluate_state(everybody_leaves, data, Layout(5, 1, 5), state, jnp.int32(1)))
    )
    assert_same(judge(federation(), before), judge(federation(), after))


@pytest.mark.parametrize("ranked", ["members", "all"])
def test_who_left_is_out_of_ipfl_market(ranked: Any) -> None:
    """It trained in round 0, which is settled after it left: it keeps its tokens, and the sum of all tokens stays."""
    options = {"clients_per_cluster": 5, "clusters": 2, "tokens": Tokens(initial=40.0, ranked=ranked)}
    leaving = algorithm("ipfl", **options)
    state, info = rounds(leaving, federation())
    assert info["membership"][LEAVER].any()
    rewarded = 0
    for _ in range(3):
        state, info = rounds(leaving, federation(), state)
        assert [info[name][LEAVER] for name in ("tokens", "paid", "reimbursed", "rewarded")] == [40, 0, 0, 0]
        assert not info["bid"][LEAVER].any()
        assert not info["membership"][LEAVER].any()
        assert info["tokens"].sum() + info["pool"].sum() == 40 * POPULATION
        rewarded += info["rewarded"].sum()
    assert rewarded > 0
