"""Arrays of another shape, which JAX would broadcast or refuse without a name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import aggregators as ag

S, N, C = 3, 5, 2
UPDATES = {"w": jnp.ones((S, 4)), "b": jnp.arange(float(S))}
TOTAL = {"w": jnp.ones(4), "b": jnp.ones(())}
KEY = jax.random.key(0)
ONE, SHORT = jnp.ones(1, bool), jnp.ones(S - 1, bool)

WITH_PRESENT: dict[str, Any] = {
    "incfl": lambda present: ag.incfl_update(UPDATES, jnp.zeros(S), present=present),
    "qffl": lambda present: ag.qffl_update(UPDATES, jnp.ones(S), q=1.0, learning_rate=0.1, present=present),
    "cgsv": lambda present: ag.cgsv_reputation(jnp.zeros(S), UPDATES, TOTAL, present=present),
    "iafl": lambda present: ag.iafl_rewards(KEY, UPDATES, jnp.ones(N), ids=jnp.arange(S), present=present),
    "clip": lambda present: ag.clip(UPDATES, 1.0, present=present),
    "clipped": lambda present: ag.clip_to_median(UPDATES, present=present),
    "rank": lambda present: ag.rank_rewards(UPDATES, jnp.ones(S), present=present),
}


@pytest.mark.parametrize("name", WITH_PRESENT)
@pytest.mark.parametrize("present", [ONE, SHORT, jnp.array(True)], ids=["one", "short", "scalar"])
def test_presence_has_an_entry_for_each_row(name, present):
    with pytest.raises(ValueError, match=r"expected present of shape \[S\], which is \[3\] here, got"):
        WITH_PRESENT[name](present)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", WITH_PRESENT)
def test_presence_may_be_of_whole_numbers(name):
    expected = WITH_PRESENT[name](jnp.array([True, False, True]))
    for given in (jnp.array([1, 0, 1]), jnp.array([1.0, 0, 1]), [True, False, True], np.array([True, False, True])):
        jax.tree.map(np.testing.assert_array_equal, WITH_PRESENT[name](given), expected)


COHORTS: dict[str, Any] = {
    "iafl": lambda **options: ag.iafl_rewards(KEY, UPDATES, jnp.ones(N), **options),
    "iafl_reference": lambda **options: ag.iafl_reference(KEY, jnp.ones(N), **options),
    "cgsv": lambda **options: ag.cgsv_reputation(jnp.zeros(N), UPDATES, TOTAL, **options),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", COHORTS)
def test_a_cohort_without_ids_is_not_taken_for_the_first_clients(name):
    with pytest.raises(ValueError, match="expected ids of the 3 rows, since there are 5 clients, got None"):
        COHORTS[name](present=jnp.ones(S, bool))
    COHORTS[name](present=jnp.ones(S, bool), ids=jnp.array([0, 2, 4]))


def test_ids_for_each_update():
    with pytest.raises(ValueError, match=r"expected ids of shape \[S\], which is \[3\] here, got \[2\]"):
        ag.cgsv_reputation(jnp.zeros(N), UPDATES, TOTAL, ids=jnp.array([0, 1]))


def settle(**given):
    arguments: dict[str, Any] = {
        "tokens": jnp.full(N, 10),
        "pools": jnp.zeros(C, int),
        "best": jnp.zeros(C),
        "members": jnp.ones((N, C), bool),
        "contribution": jnp.zeros((N, C)),
        "participation": jnp.ones((N, C), int),
        "accuracy": jnp.ones(C),
    }
    return ag.settle_tokens(**{**arguments, **given})


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("accuracy", (N, C), r"\[C\], which is \[2\] here, got \[5, 2\]"),
        ("best", (), r"\[C\], which is \[2\] here, got \[\]"),
        ("members", (6, C), r"\[N, C\], which is \[5, 2\] here, got \[6, 2\]"),
        ("contribution", (C, N), r"\[N, C\], which is \[5, 2\] here, got \[2, 5\]"),
        ("participation", (N,), r"\[N, C\], which is \[5, 2\] here, got \[5\]"),
        ("tokens", (), r"\[N\], which is \[1\] here, got \[\]"),
    ],
)
def test_a_settlement_names_the_array(name, shape, expected):
    with pytest.raises(ValueError, match=f"expected {name} of shape {expected}"):
        settle(**{name: jnp.ones(shape, int)})


@pytest.mark.in_turn
def test_bids_and_slots_name_the_array():
    both = jnp.ones((N, C))
    with pytest.raises(ValueError, match=r"expected tokens of shape \[N\], which is \[5\] here, got \[\]"):
        ag.bid_preferences(both, jnp.asarray(10))
    with pytest.raises(
        ValueError, match=r"expected contribution of shape \[N, C\], which is \[5, 2\] here, got \[2, 5\]"
    ):
        ag.schedule(KEY, both > 0, both.T, both.astype(int), jnp.ones(C), slots=2)
    with pytest.raises(ValueError, match=r"expected exploration of shape \[C\], which is \[2\] here, got \[\]"):
        ag.schedule(KEY, both > 0, both, both.astype(int), jnp.asarray(0.5), slots=2)


def test_members_and_weights_the_wrong_way_round():
    with pytest.raises(
        ValueError, match=r"expected membership of shape \[S, C\], got \[2, 3\] with sizes of shape \[S\] = \[3\]"
    ):
        ag.cluster_means(UPDATES, jnp.ones((C, S), bool), jnp.ones(S))
    gradients = {"w": jnp.ones((C, 4)), "b": jnp.ones(C)}
    with pytest.raises(ValueError, match=r"expected weights of shape \[C, S\], which is \[2, 3\] here, got \[3, 2\]"):
        ag.shapley_first_order(gradients, UPDATES, jnp.ones((S, C)))


def test_total_is_one_tree():
    with pytest.raises(ValueError, match=r"expected a leaf of total of shape \[4\], got \[3, 4\]"):
        ag.cgsv_reputation(jnp.zeros(S), {"w": UPDATES["w"]}, {"w": UPDATES["w"]})
