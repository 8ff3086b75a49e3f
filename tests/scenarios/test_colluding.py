"""Attackers that know the honest updates: rounds are NumPy's, and only the updates that the server gets change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import simulate
from fljax.algorithms import fedproto, standalone
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import availability, byzantine, colluding, median_clipped
from tests.aggregators.test_attacks import bisected
from tests.aggregators.test_clipping import oracle
from tests.scenarios.test_median_clipped import BAD, leaves, model_of, rows_of, uniform
from tests.scenarios.tools import LOCAL, TASK, run, sent

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
WHO = jnp.asarray(BAD)


def own(updates: Any, honest: Any, attackers: Any, id: Any) -> Any:
    """The sum of honest updates by id and by the number of attackers."""
    weight = jnp.where(honest, id, 0) * attackers.sum()
    return jax.tree.map(lambda leaf: jnp.tensordot(weight.astype(leaf.dtype), leaf, 1), updates)


# Options, and what attackers send, of the honest ids, the honest updates and their own.
SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "a_little_is_enough": ({"deviations": 1.5}, lambda id, x, mine: x.mean(axis=0) - 1.5 * x.std(axis=0, ddof=1)),
    "inner_product_manipulation": ({"scale": 2.0}, lambda id, x, mine: -2 * x.mean(axis=0)),
    "min_max": ({"direction": "unit"}, lambda id, x, mine: bisected(x, "unit", np.max)),
    "min_sum": ({"direction": "sign"}, lambda id, x, mine: bisected(x, "sign", np.sum)),
    "mimic": ({}, lambda id, x, mine: x[0]),
    "sign_flip": ({"scale": 3.0}, lambda id, x, mine: -3 * mine),
    "own": ({"attack": own}, lambda id, x, mine: id @ x * len(mine)),
}


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("name", SENT)
def test_one_round_is_numpys(name: str, clipped: bool, federation: Any) -> None:
    """Absent clients are neither honest nor attackers. A defence inside meets the attack."""
    options, send = SENT[name]
    state, up = sent(uniform(), federation)
    present = np.array([True, True, True, clipped, not clipped])
    rows, honest, bad = rows_of(up.update), present & ~BAD, present & BAD
    rows[bad] = send(np.flatnonzero(honest), rows[honest], rows[bad])
    rows = oracle(rows, present, 0.7) if clipped else rows
    algorithm = median_clipped(uniform(), times=0.7) if clipped else uniform()
    algorithm = availability(colluding(algorithm, **{"attack": name, "who": WHO, **options}), trace=present[None])
    found = model_of(run(algorithm, federation, 1)[0][-1])
    np.testing.assert_allclose(found, model_of(state) + rows[present].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_drawn_attackers_stay_and_metrics_leave_them_out(federation: Any) -> None:
    """A run with the drawn clients as ``who`` is the same."""
    options: dict[str, Any] = {"attack": "sign_flip", "fraction": 0.4}
    result = simulate(colluding(uniform(), **options), federation, rounds=2)
    bad = np.asarray(result.state.server.behaviour.values[0])
    assert bad.sum() == 2
    given = simulate(colluding(uniform(), who=np.stack([bad, bad]), **options), federation, rounds=2)
    for metric in ("test_loss", "global_test_loss"):
        values = result.metrics[metric].values
        np.testing.assert_array_equal(np.isfinite(values), np.broadcast_to(~bad, values.shape))
        np.testing.assert_allclose(given.metrics[metric].values, values, rtol=1e-6)
    outer = colluding(byzantine(colluding(uniform(), **options), who=[1, 0, 0, 0, 0]), **options)
    server = initial_state(outer, by_id(federation), jnp.uint32(0)).server
    np.testing.assert_array_equal(server.inner.behaviour.values, bad)
    assert outer.counts is not None


def test_attackers_by_round(federation: Any) -> None:
    """Nobody attacks in round 1, and everybody in round 0: without honest clients, zeros are sent."""
    states, _ = run(colluding(uniform(), who=[[1] * 5, [0] * 5]), federation, 2)
    np.testing.assert_array_equal(model_of(states[1]), model_of(states[0]))
    plain, _ = run(uniform(), federation, 2)
    assert not np.array_equal(model_of(states[2]), model_of(states[1]))
    ...


@pytest.mark.parametrize("build", [standalone, fedproto])
def test_without_an_update_nothing_changes(build: Any, federation: Any) -> None:
    for one, other in zip(*(leaves(run(each, federation, 2)[0][-1]) for each in (build(TASK, LOCAL), colluding(build(TASK, LOCAL), who=WHO))), strict=True):
        np.testing.assert_array_equal(one, other)
