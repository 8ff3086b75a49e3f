"""Arrays of another shape, which JAX would broadcast or refuse without a name, and other wrong arguments."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import aggregators as ag
from tests.refusals import refusals, refuses

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
    "colluding": lambda present: ag.a_little_is_enough(UPDATES, present, present, deviations=1.5),
    "rank": lambda present: ag.rank_rewards(UPDATES, jnp.ones(S), present=present),
}


@pytest.mark.parametrize("name", WITH_PRESENT)
@pytest.mark.parametrize("present", [ONE, SHORT, jnp.array(True)], ids=["one", "short", "scalar"])
def test_presence_has_an_entry_for_each_row(name, present):
    refuses(lambda: WITH_PRESENT[name](present), r"expected present of shape \[S\], which is \[3\] here, got")


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


BOTH, RICH = jnp.ones((N, C)), (jnp.ones((1, 2)), jnp.ones((1, 2), bool), jnp.asarray([2**31 - 1]))
SLOTS = ag.SlotSchedule(jnp.array([[3, 0, 4], [1, 3, 2]]), jnp.ones((C, 3), bool))


def ranked(contribution: Any = BOTH, exploration: Any = 1.0) -> Any:
    share = jnp.ones(C) if exploration == 1.0 else jnp.asarray(exploration)
    return ag.schedule(KEY, BOTH > 0, contribution, BOTH.astype(int), share, slots=2)


def incfl(**options: Any) -> Any:
    return ag.incfl_update(UPDATES, jnp.zeros(S), **options)


def first_order(weights: Any, gradients: Any = None, **options: Any) -> Any:
    gradients = {"w": jnp.ones((C, 4)), "b": jnp.ones(C)} if gradients is None else gradients
    return ag.shapley_first_order(gradients, UPDATES, weights, **options)


@pytest.mark.unchecked
@refusals(
    (lambda: settle(accuracy=jnp.ones((N, C), int)), "accuracy of shape [C], which is [2] here, got [5, 2]"),
    (lambda: settle(best=jnp.ones((), int)), "best of shape [C], which is [2] here, got []"),
    (lambda: settle(members=jnp.ones((6, C), int)), "members of shape [N, C], which is [5, 2] here, got [6, 2]"),
    (lambda: settle(contribution=jnp.ones((C, N), int)), "contribution of shape [N, C]", "[5, 2] here, got [2, 5]"),
    (lambda: settle(participation=jnp.ones(N, int)), "participation of shape [N, C]", "[5, 2] here, got [5]"),
    (lambda: settle(tokens=jnp.ones((), int)), "tokens of shape [N], which is [1] here, got []"),
    (lambda: settle(price=0), "price", "above 0, got 0"),
    (lambda: settle(price=-1), "price", "above 0, got -1"),
    (lambda: settle(price=np.nan), "price", "above 0, got nan"),
    (lambda: settle(price=np.inf), "price", "above 0, got inf"),
    (lambda: settle(price=10**10), "a price that int32 holds, at most 2147483647, got 10000000000"),
    (lambda: settle(price=1.5), "a whole price for whole tokens", "got 1.5"),
    (lambda: settle(price=0.5), "a whole price for whole tokens", "got 0.5"),
    (lambda: settle(ranked="some"), "ranked", "members or all", "got 'some'"),
    (lambda: ag.affordable(*RICH, price=10**10), "at most 2147483647, got 10000000000"),
    (lambda: ag.affordable(*RICH, price=(1, -2)), "price", "above 0, got -2"),
    (lambda: ag.affordable(*RICH, price=(1, 2, 3)), "price of shape [C], which is [2] here, got [3]"),
    (lambda: ag.bid_preferences(BOTH, jnp.ones(N), price=-2), "price", "above 0, got -2"),
    (lambda: ag.bid_preferences(BOTH, jnp.asarray(10)), "tokens of shape [N], which is [5] here, got []"),
    (lambda: ag.bid_preferences(BOTH, jnp.ones(N), rule="best"), "rule", "threshold or argmax", "got 'best'"),  # type: ignore
    (lambda: ranked(BOTH.T), "contribution of shape [N, C], which is [5, 2] here, got [2, 5]"),
    (lambda: ranked(exploration=0.5), "exploration of shape [C], which is [2] here, got []"),
    (lambda: ag.record_slots(0 * BOTH, SLOTS, jnp.zeros((3, C))), "values of shape [C, S]", "got [3, 2]"),
    (lambda: ag.record_slots(jnp.zeros((N, 3)), SLOTS, 1.0), "table of shape [N, C]", "[5, 2] here, got [5, 3]"),
    (lambda: ag.member_accuracy(0 * BOTH, jnp.zeros((6, C), bool)), "members of shape [N, C]", "got [6, 2]"),
    (
        lambda: ag.cluster_means(UPDATES, jnp.ones((C, S), bool), jnp.ones(S)),
        "membership of shape [S, C], got [2, 3] with sizes of shape [S] = [3]",
    ),
    (lambda: first_order(jnp.ones((S, C))), "weights of shape [C, S], which is [2, 3] here, got [3, 2]"),
    (lambda: first_order(jnp.ones((C, S)), normalised=False), "models, those before aggregation"),
    (
        lambda: ag.cgsv_reputation(jnp.zeros(N), UPDATES, TOTAL, ids=jnp.array([0, 1])),
        "ids of shape [S], which is [3] here, got [2]",
    ),
    (
        lambda: ag.cgsv_reputation(jnp.zeros(S), {"w": UPDATES["w"]}, {"w": UPDATES["w"]}),
        "a leaf of total of shape [4], got [3, 4]",
    ),
    (lambda: ag.mix(jnp.ones(3), {"w": jnp.ones((3, 2))}), "a matrix [R, S], got shape (3,)"),
    (lambda: ag.mix(jnp.ones((1, 3)), {"w": jnp.ones((2, 2))}), "a leading axis of 3", "a leaf of shape (2, 2)"),
    (lambda: ag.mix(jnp.ones((1, 3)), {"w": jnp.ones(())}), "a leading axis of 3", "a leaf of shape ()"),
    (lambda: incfl(surrogate="sigmoidal"), "got 'sigmoidal'; valid names are sigmoid, softplus, relu, hinge, exp"),
    (lambda: incfl(normalise="max"), "a normaliser, got 'max'; valid names are sum, mean"),
    (lambda: ag.incfl_weights(jnp.zeros(2), surrogate="sigmoidal"), "got 'sigmoidal'; valid names are sigmoid"),
    (lambda: ag.iafl_reference(KEY, jnp.ones(3), rule="mean"), "valid names are max, median"),  # type: ignore
    (lambda: ag.clip(UPDATES, jnp.ones(2)), "bound to be a number or of shape [3], got [2]"),
    (lambda: ag.incfl_weights(jnp.zeros(4), gap_scale="wide"), "gap_scale to be a finite number above 0, got wide"),  # type: ignore
    (lambda: ag.coordinate_median({}, present=True), "present of shape [S]"),  # type: ignore
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


POSITIVE: dict[str, Any] = {
    "bound": lambda number: ag.clip(UPDATES, number),
    "times": lambda number: ag.clip_to_median(UPDATES, times=number),
    "gap_scale": lambda number: incfl(gap_scale=number),
    "gap_scale ": lambda number: ag.incfl_weights(jnp.zeros(4), gap_scale=number),
    "ceiling": lambda number: ag.iafl_rates(jnp.ones(2), ceiling=number),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", POSITIVE)
def test_numbers_above_0(name):
    at_all = "positive" if name == "ceiling" else "above 0"
    for number in (0, -1.0, float("inf"), float("nan"), np.float64(-2)):
        if (name, number) != ("ceiling", float("inf")):
            words = [f"expected {name.strip()} to be", at_all, f"got {number}"]
            refuses(lambda number=number: POSITIVE[name](number), words)


def test_of_several_bounds_each_is_above_0() -> None:
    for bound in (jnp.array(-1.0), np.array([1, np.inf, 1])):
        refuses(
            lambda bound=bound: ag.clip(UPDATES, cast(Any, bound)), ["expected bound to be a finite number above 0"]
        )
    refuses(lambda: ag.iafl_rates(jnp.ones(2), ceiling="min"), ["expected ceiling to be"])  # type: ignore
