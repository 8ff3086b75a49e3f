"""Every float of every aggregator: both modes are central differences, at kinks a number between both slopes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import aggregators as ag
from fljax.aggregators.by_loss import SURROGATES
from fljax.protocol.sums import Part, add_up, divided, mean
from tests.aggregators.test_attacks import ATTACKS
from tests.drawn import at_most
from tests.precision import enable_x64
from tests.slopes import check_slopes

S, N, C = 4, 4, 2
KEY = jax.random.key(3)
PRESENT: Any = np.array([True, True, True, False])
MEMBERS: Any = np.array([[1, 0], [1, 0], [1, 1], [0, 0]], bool)
# Shapes of the floats; those with a + are not negative, those with a * are above 0.
ROWS, SOME, PLAIN, ONE, ABOVE = (S, 2), "+S", (S,), "+", "*"


def parts(value: Any, weight: Any) -> Any:
    """The sums of a round, their means, and the value that all divide."""
    total = add_up(Part(value, weight), jnp.asarray(PRESENT))
    return total, mean(total), divided(value[0], weight[0])


def settled(tokens: Any, pools: Any, best: Any, contribution: Any, accuracy: Any, price: Any) -> Any:
    """A settlement of tokens that may be divided."""
    return ag.settle_tokens(
        10 * tokens + 5, pools, best, MEMBERS, contribution, jnp.ones((N, C), int), accuracy, price=price, integer=False
    )


def apart(updates: Any) -> Any:
    """Rows of which no two are equal."""
    return updates + 0.1 * jnp.arange(S)[:, None]


FLOATS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Part": (parts, {"value": ROWS, "weight": SOME}),
    "Part of several sums": (parts, {"value": ROWS, "weight": (S, C)}),
    "mix": (ag.mix, {"matrix": (C, S), "updates": ROWS}),
    "weighted_sum": (ag.weighted_sum, {"updates": ROWS, "weights": PLAIN}),
    "weighted_mean": (ag.weighted_mean, {"updates": ROWS, "weights": SOME}),
    "qffl_update": (
        functools.partial(ag.qffl_update, present=PRESENT),
        {"updates": ROWS, "loss": "*S", "q": ONE, "learning_rate": ABOVE},
    ),
    "simplex_projection": (ag.simplex_projection, {"point": PLAIN, "mass": ONE}),
    "mw_weights": (
        lambda weights, factor: ag.mw_weights(weights, PRESENT, factor=factor),
        {"weights": SOME, "factor": ONE},
    ),
    "incfl_update": (
        functools.partial(ag.incfl_update, present=PRESENT, normalise="mean"),
        {"updates": ROWS, "gap": PLAIN, "gap_scale": ONE, "server_lr": ONE, "eps": ONE},
    ),
    **{
        f"incfl_weights, {name}": (
            functools.partial(ag.incfl_weights, surrogate=name),
            {"gap": PLAIN, "gap_scale": ONE},
        )
        for name in SURROGATES
    },
    "clip": (functools.partial(ag.clip, present=PRESENT), {"updates": "*SD", "bound": ABOVE}),
    # Rows of one norm have no derivative where the median is one of them, so no two rows are equal.
    "clip_to_median": (
        lambda updates, times: ag.clip_to_median(apart(updates), present=jnp.asarray(PRESENT), times=times),
        {"updates": "*SD", "times": ABOVE},
    ),
    **{name: (functools.partial(attack, honest=PRESENT), {"updates": "*SD"}) for name, attack in ATTACKS.items()},
    "importance_weights": (ag.importance_weights, {"accuracy": "+NC"}),
    "member_weights": (functools.partial(ag.member_weights, jnp.asarray(MEMBERS)), {"sizes": SOME}),
    "cluster_means": (
        lambda updates, sizes: ag.cluster_means(updates, jnp.asarray(MEMBERS), sizes),
        {"updates": ROWS, "sizes": SOME},
    ),
    "shapley_first_order": (ag.shapley_first_order, {"gradients": (C, 2), "updates": ROWS, "weights": "+CS"}),
    "shapley_first_order, abbreviated": (
        functools.partial(ag.shapley_first_order, normalised=False),
        {"gradients": (C, 2), "updates": ROWS, "weights": (C, S), "models": (C, 2)},
    ),
    "cgsv_normalised": (ag.cgsv_normalised, {"updates": ROWS, "length": ONE}),
    "cgsv_reputation": (
        functools.partial(ag.cgsv_reputation, present=PRESENT),
        {"reputation": SOME, "updates": "*SD", "total": "*D", "alpha": ONE},
    ),
    "cgsv_shares": (ag.cgsv_shares, {"reputation": SOME, "beta": ONE}),
    "cgsv_rewards": (ag.cgsv_rewards, {"total": "*S", "reputation": SOME, "beta": ONE}),
    "iafl_rates": (ag.iafl_rates, {"contribution": SOME, "kappa": ONE}),
    "iafl_rates, ceiling": (
        lambda contribution, ceiling: ag.iafl_rates(contribution, ceiling=ceiling),
        {"contribution": SOME, "ceiling": ONE},
    ),
    "iafl_subsets": (functools.partial(ag.iafl_subsets, KEY), {"rates": SOME}),
    "iafl_reference": (functools.partial(ag.iafl_reference, KEY), {"rates": SOME}),
    "iafl_rewards": (functools.partial(ag.iafl_rewards, KEY), {"updates": ROWS, "rates": SOME}),
    "rank_rewards": (ag.rank_rewards, {"updates": ROWS, "score": PLAIN}),
    "bid_preferences": (
        lambda accuracy, tokens, price: 1.0 * ag.bid_preferences(accuracy, tokens, price=price),
        {"accuracy": "+NC", "tokens": SOME, "price": ABOVE},
    ),
    "affordable": (
        lambda priority, tokens, price: 1.0 * ag.affordable(priority, jnp.asarray(MEMBERS), tokens, price=price),
        {"priority": (N, C), "tokens": SOME, "price": ABOVE},
    ),
    "exploration_share": (
        lambda initial, least: ag.exploration_share(jnp.asarray(MEMBERS, int), initial=initial, least=least),
        {"initial": ONE, "least": ONE},
    ),
    "schedule": (
        lambda contribution, exploration: (
            1.0
            * ag.schedule(KEY, jnp.asarray(MEMBERS), contribution, jnp.ones((N, C), int), exploration, slots=2).present
        ),
        {"contribution": (N, C), "exploration": "+C"},
    ),
    "record_slots": (
        lambda table, values: ag.record_slots(
            table, ag.SlotSchedule(jnp.asarray([[0, 1], [2, 3]]), jnp.asarray([[True, True], [True, False]])), values
        ),
        {"table": (N, C), "values": (C, 4)},
    ),
    "cluster_utility": (ag.cluster_utility, {"accuracy": "+C", "best": "+C", "most": ABOVE}),
    "member_accuracy": (lambda accuracy: ag.member_accuracy(accuracy, jnp.asarray(MEMBERS)), {"accuracy": "+NC"}),
    "settle_tokens": (
        settled,
        {"tokens": SOME, "pools": "+C", "best": "+C", "contribution": (N, C), "accuracy": "+C", "price": ABOVE},
    ),
    # Of three equal values the middle one has no derivative, and equal rows are chosen by their places.
    "coordinate_median": (lambda updates: ag.coordinate_median(apart(updates), present=PRESENT), {"updates": ROWS}),
    "trimmed_mean": (lambda updates: ag.trimmed_mean(apart(updates), 1), {"updates": ROWS}),
    "krum": (lambda updates: ag.krum(apart(updates), 1, present=PRESENT), {"updates": ROWS}),
    "krum_scores": (lambda updates: ag.krum_scores(apart(updates), 0), {"updates": ROWS}),
    "multi_krum": (lambda updates: ag.multi_krum(apart(updates), 0, keep=2), {"updates": ROWS}),
    "geometric_median": (ag.geometric_median, {"updates": ROWS, "weights": SOME}),
    "clipped_mean": (ag.clipped_mean, {"updates": ROWS, "bound": ABOVE, "weights": SOME}),
    "centred_clipping": (ag.centred_clipping, {"updates": ROWS, "bound": ABOVE, "centre": (2,)}),
    "fltrust_weights": (functools.partial(ag.fltrust_weights, present=PRESENT), {"updates": "*SD", "reference": "*D"}),
    "bulyan": (lambda updates: ag.bulyan(apart(updates), 0), {"updates": ROWS}),
    "bucketing": (lambda updates: ag.bucketing(KEY, updates, 3, present=PRESENT)[0], {"updates": ROWS}),
    "nearest_neighbour_mixing": (lambda updates: ag.nearest_neighbour_mixing(apart(updates), 1), {"updates": ROWS}),
}
FLOATS["inner_product_manipulation"][1]["scale"] = ONE
# Results of whole numbers, bools and ids, and types.
WITHOUT_FLOATS = {"assumed_byzantine", "slot_rows", "Ledger", "SlotRows", "SlotSchedule"}
# Steps of these floats alone: ranks, rounding, or a choice.
FLAT = {
    "iafl_subsets": ("rates",),
    "iafl_reference": ("rates",),
    "iafl_rewards": ("rates",),
    "rank_rewards": ("score",),
    "bid_preferences": ("accuracy", "tokens", "price"),
    "affordable": ("priority", "tokens", "price"),
    "schedule": ("contribution", "exploration"),
    "incfl_weights, relu": ("gap",),
    "incfl_weights, hinge": ("gap",),
    "cgsv_rewards": ("reputation", "beta"),
    "settle_tokens": ("contribution",),
}
SIZES = {"S": S, "N": N, "C": C, "D": 2}


def test_every_aggregator_is_here() -> None:
    assert {name.split(",")[0] for name in FLOATS} | WITHOUT_FLOATS >= set(ag.__all__)


def drawn(rng: np.random.Generator, kind: Any) -> np.ndarray:
    """A float with some entries of 0 or 1, or that tie; the kind says which."""
    positive, shape = (
        isinstance(kind, str),
        kind if isinstance(kind, tuple) else tuple(SIZES[axis] for axis in kind[1:]),
    )
    value = np.asarray(rng.uniform(0.2, 1.8, shape) if positive else rng.normal(size=shape))
    if kind == ROWS and rng.integers(2):  # whole rows
        value[rng.integers(S)] = rng.choice([0.0, 1.0])
        value[rng.integers(S)] = value[rng.integers(S)]
        return value
    chance = rng.integers(4)
    chosen = rng.uniform(size=shape) < (0.3 if shape else 0.5)
    return np.where(chosen, [0.2 if "*" in kind else 0.0, 1.0, value.flat[0], value.flat[0]][chance], value)


@pytest.mark.parametrize("name", FLOATS)
@given(st.integers(0, 10**6))
@at_most(30)
def test_derivatives_are_differences(name: str, seed: int) -> None:
    function, kinds = FLOATS[name]
    rng = np.random.default_rng(seed)
    with enable_x64(True):
        check_slopes(function, {key: drawn(rng, kind) for key, kind in kinds.items()}, flat=FLAT.get(name, ()))


def naive(weights: Any, updates: Any) -> Any:
    """The formula of the weighted mean."""
    return weights @ updates / jnp.sum(weights)


def lanes(weights: Any, updates: Any) -> Any:
    """The weighted mean of rows that are split over two lanes."""
    halves = jax.vmap(functools.partial(ag.weighted_mean, axis_name="lanes"), axis_name="lanes")
    return halves(updates.reshape(2, 2, -1), weights.reshape(2, 2))[0]


@pytest.mark.parametrize(
    "mine",
    [
        lambda weights, updates: ag.weighted_mean(updates, weights),
        lambda weights, updates: mean(add_up(Part(updates, weights), jnp.ones(S, bool))),
        lanes,
    ],
    ids=["mean", "Part", "lanes"],
)
def test_weights_of_0(mine: Any) -> None:
    """First and second derivatives are those of the formula; NaN without weight is harmless, with weight it stays."""
    updates, weights = jnp.array([[1.0], [2.0], [5.0], [3.0]]), jnp.array([1.0, 1.0, 0.0, 0.0])
    for order in (jax.jacrev, jax.jacfwd, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f, 1))):
        found, expected = (jax.jit(order(function))(weights, updates) for function in (mine, naive))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    broken = updates.at[2].set(jnp.nan).at[3].set(jnp.inf)
    np.testing.assert_allclose(mine(weights, broken), [1.5])
    assert np.isfinite(jnp.concatenate([x.ravel() for x in jax.jit(jax.jacrev(mine, (0, 1)))(weights, broken)])).all()
    assert np.isnan(mine(weights.at[2].set(1e-3), broken)).all()
