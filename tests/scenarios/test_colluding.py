"""Attackers that know the honest updates: rounds are NumPy's, and only the updates that the server gets change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import simulate
from fljax.algorithms import fedproto, standalone
from fljax.scenarios import availability, colluding, median_clipped
from tests.aggregators.test_attacks import bisected
from tests.aggregators.test_clipping import oracle
from tests.scenarios.test_median_clipped import BAD
from tests.scenarios.tools import LOCAL, TASK, flat, run, sent, uniform

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]


def own(updates: Any, honest: Any, attackers: Any, id: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.tensordot(1.0 * id * honest * attackers.sum(), leaf, 1), updates)


# Options, and what attackers send, of the honest ids, the honest updates and their own.
SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "a_little_is_enough": ({"deviations": 1.5}, lambda id, x, mine: x.mean(axis=0) - 1.5 * x.std(axis=0, ddof=1)),
    "inner_product_manipulation": ({"scale": 2.0}, lambda id, x, mine: -2 * x.mean(axis=0)),
    "min_max": ({"direction": "unit"}, lambda id, x, mine: bisected(x, "min_max, unit")),
    "min_sum": ({"direction": "sign"}, lambda id, x, mine: bisected(x, "min_sum, sign")),
    "mimic": ({}, lambda id, x, mine: x[0]),
    "sign_flip": ({"scale": 3.0}, lambda id, x, mine: -3 * mine),
    "own": ({"attack": own}, lambda id, x, mine: id @ x * len(mine)),
}


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("name", SENT)
def test_one_round_is_numpys(name: str, clipped: bool, federation: Any) -> None:
    """Absent clients are neither honest nor attackers. A defence inside meets the attack."""
    (options, send), (state, up) = SENT[name], sent(uniform(), federation)
    present = np.array([True, True, True, clipped, not clipped])
    rows, honest, bad = flat(up.update, 1), present & ~BAD, present & BAD
    rows[bad] = send(np.flatnonzero(honest), rows[honest], rows[bad])
    rows = oracle(rows, present, 0.7) if clipped else rows
    algorithm = median_clipped(uniform(), times=0.7) if clipped else uniform()
    attacked = colluding(algorithm, **{"attack": name, "who": BAD, **options})
    found = flat(run(availability(attacked, trace=present[None]), federation, 1)[0][-1].server.model)
    np.testing.assert_allclose(found, flat(state.server.model) + rows[present].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_drawn_attackers_stay_and_metrics_leave_them_out(federation: Any) -> None:
    """A run with the drawn clients as ``who`` is the same; those of one round never count."""
    options: dict[str, Any] = {"attack": "sign_flip", "fraction": 0.4}
    drawn = simulate(colluding(uniform(), **options), federation, rounds=2)
    bad = np.asarray(drawn.state.server.behaviour.values[0])
    for who, same in ((bad, True), (np.stack([bad, 0 * bad]), False)):
        found = simulate(colluding(uniform(), who=who, **options), federation, rounds=2)
        values, others = (result.metrics["test_loss"].values for result in (found, drawn))
        np.testing.assert_array_equal(np.isfinite(values), np.broadcast_to(~bad, values.shape) & (bad.sum() == 2))
        assert np.allclose(values, others, rtol=1e-6, equal_nan=True) == same


@pytest.mark.parametrize("build", [standalone, fedproto])
def test_without_an_update_nothing_changes(build: Any, federation: Any) -> None:
    inner = build(TASK, LOCAL)
    plain, attacked = (run(each, federation, 2)[0][-1] for each in (inner, colluding(inner, who=BAD)))
    jax.tree.map(np.testing.assert_array_equal, *((state.server, state.clients) for state in (plain, attacked)))
