"""The registry of estimators: what each needs and costs, one function for all, and rounds taken one by one."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import ESTIMATORS, CachedGame, agreement, estimate
from fljax.contributions.estimators import (
    NEEDS,
    Observation,
    begin,
    digfl,
    estimate_of,
    estimate_run,
    observe,
)
from tests.contributions import games
from tests.contributions.estimators import runs

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Options beyond the defaults.
OPTIONS = {
    "shapfed": {"head": lambda updates: updates[:, None, None]},
    "fedce": {"client_metric": lambda models, ids: jnp.exp(-((models - 1.0) ** 2))},
    "ipss": {"budget": 6},
}


def options(name):
    entry = ESTIMATORS[name]
    return OPTIONS.get(name, {}) | ({"utility": runs.utility} if "utility" in entry.needs else {})


def test_thirteen_look_at_one_run_and_six_retrain():
    assert len([each for each in ESTIMATORS.values() if not each.on_host]) == 13
    assert len([each for each in ESTIMATORS.values() if each.on_host]) == 6


@pytest.mark.parametrize("name", ESTIMATORS)
def test_entries(name):
    entry = ESTIMATORS[name]
    assert set(entry.needs) <= set(NEEDS)
    assert entry.function.__name__ == name
    assert entry.summary[-1] != "."
    assert entry.source
    assert entry.cost
    assert (entry.least is not None) == entry.on_host
    asked = inspect.signature(entry.function).parameters
    assert ("utility" in asked) == ("utility" in entry.needs)


@pytest.mark.parametrize("name", [name for name, entry in ESTIMATORS.items() if entry.on_host])
def test_those_that_retrain(name, x64):
    found = estimate(name, CachedGame.of_table(games.THREE), key=jax.random.key(0), **options(name))
    assert found.worth.shape == (3,)
    assert found.by_round is None
    assert agreement(found.worth, [0.286667, 0.376667, 0.136667]).kendall == pytest.approx(1)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("digfl", "cosine", "in_run_leave_one_out") else pytest.mark.thorough)
        for name, entry in ESTIMATORS.items()
        if not entry.on_host
    ],
)
def test_those_that_look_at_one_run(name, x64):
    """Under jit and vmap over seeds; the absent client of the second seed is not read, and changes no number."""
    entry = ESTIMATORS[name]
    present = np.array([[True, False, True], [True, False, True]])
    whole = runs.record(runs.THREE)._replace(present=jnp.ones((2, 3), bool))
    part = runs.record(runs.THREE, present)
    poisoned = part._replace(updates=jnp.where(jnp.asarray(present), part.updates, jnp.nan))
    records = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(each._replace(server_rate=1.0) for each in (whole, part))
    )
    both = jax.jit(jax.vmap(lambda record: estimate(name, record, key=jax.random.key(0), **options(name))))
    found, again = both(records), both(jax.tree.map(lambda *leaves: jnp.stack(leaves), whole, poisoned))
    assert (found.by_round is not None) == entry.by_round
    unknown = [[False] * 3, [True] * 3 if name == "completed_shapley" else [False, True, False]]
    assert np.isnan(found.worth).tolist() == unknown
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), found, again)


@pytest.mark.in_turn
def test_in_single_precision():
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), runs.record(runs.THREE))
    found = estimate("in_run_leave_one_out", record, utility=runs.utility)
    assert found.worth.dtype == jnp.float32
    np.testing.assert_allclose(found.worth, (0.291667, 0.067708, -0.286458), atol=1e-5)


@pytest.mark.in_turn
def test_rounds_one_by_one_are_the_record(x64):
    record = runs.drawn(0)
    estimator = digfl()
    state = begin(estimator, jax.tree.map(lambda leaf: leaf[0], record.models), 5, 3)
    for t in range(3):
        row = lambda tree, t=t: jax.tree.map(lambda leaf: leaf[t], tree)  # noqa: E731
        seen = Observation(
            row(record.models),
            row(record.updates),
            *(jnp.asarray(each)[t] for each in (record.weights, record.present, record.ids)),
            gradient=row(record.gradients),
        )
        state, _ = jax.jit(lambda state, seen: observe(estimator, state, seen))(state, seen)
    whole = estimate_run(estimator, record, clients=5)
    np.testing.assert_allclose(estimate_of(estimator, state).worth, whole.worth, atol=1e-12)
    assert int(state.round) == 3
