"""Costs of the steps that are computed, and what clients get outside: one rule for all strategies, shapes and forms."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fljax
from fljax import algorithms, games
from fljax.data import stack
from fljax.engine import Plan
from fljax.scenarios import Strategy
from fljax.training import Local
from tests.games.mean_estimation import PLAN, TARGETS, TASK, estimation
from tests.games.strategic.test_splitting import federation

pytestmark = pytest.mark.in_turn

ROUNDS, COST = 2, np.array([10.0, 0.5, 2.0])
# What is played, with the share of an honest client's steps that is computed.
EFFORTS: dict[str, tuple[Strategy, float]] = {
    "double": (Strategy(own=2.0), 1),
    "against": (Strategy(own=-1.0), 1),
    "zero rider": (Strategy(own=0.0), 0),
    "delta rider": (Strategy(own=0.0, echo=1.0), 0),
    "disguised rider": (Strategy(own=0.0, echo=1.0, noise=1.0, noise_decay=1.0), 0),
    "replay": (Strategy(own=0.0, stale=1.0), 1),  # sends its own training, a round later
    "no effort": (Strategy(effort=0.0), 1),  # on one row, in as many steps
}
LIES = {name: strategy for name, (strategy, _) in EFFORTS.items()}


def played(cost: Any = 0.0, plan: Plan = PLAN, data: Any = None, **changes: Any) -> games.PayoffTable:
    settings: dict[str, Any] = {"rounds": ROUNDS, "deviations": LIES, "utility": games.Utility(cost=cost)} | changes
    return games.payoffs(plan, estimation() if data is None else data, **settings)


@pytest.mark.parametrize("shape", ["unilateral", "pairs", "symmetric", "full"])
def test_everybody_pays_for_its_steps(shape: Any) -> None:
    lies = LIES if shape in ("unilateral", "pairs") else {name: LIES[name] for name in ("double", "zero rider")}
    free, paid = (played(cost, shape=shape, outside="mechanism", deviations=lies) for cost in (0.0, COST))
    spent = np.array([1.0, *(EFFORTS[name][1] for name in lies)])
    np.testing.assert_allclose(free.payoffs - paid.payoffs, (COST * spent[free.choices])[None], atol=1e-5)
    assert free.outside is not None
    assert paid.outside is not None
    np.testing.assert_allclose(free.outside - paid.outside, [COST], atol=1e-5)


def test_riding_free_pays_where_training_costs_ten() -> None:
    free, paid = (games.unilateral_gains(played(cost, outside=None, seeds=2)).gains for cost in (0.0, 10.0))
    rider = [name.endswith("rider") for name in games.unilateral_gains(played(outside=None, seeds=2)).deviations]
    np.testing.assert_allclose((paid - free)[:, rider], 10, atol=1e-4)
    np.testing.assert_allclose((paid - free)[:, ~np.array(rider)], 0, atol=1e-4)


def test_riders_that_use_models_of_their_own_pay() -> None:
    """Ditto's personal model is trained, whatever is sent."""
    same: dict[str, Any] = {"plan": PLAN._replace(build=algorithms.ditto), "data": federation(), "outside": None}
    same["deviations"] = {"rider": Strategy(own=0.0)}
    free, paid = (played(cost, **same) for cost in (0.0, 10.0))
    np.testing.assert_allclose(free.payoffs - paid.payoffs, 10, atol=1e-4)


@pytest.mark.parametrize(("steps", "spent"), [({"steps": 3}, [1, 1, 1]), ({"epochs": 2}, [0.5, 1, 1])])
def test_no_effort_costs_what_it_trains(steps: dict[str, Any], spent: list[float]) -> None:
    """One row is as many steps, or an epoch of one batch in place of two of 4 rows."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "local": Local(0.1, 2, **steps)})
    same: dict[str, Any] = {"plan": plan, "data": federation(), "outside": None}
    same["deviations"] = {"no effort": Strategy(effort=0.0)}
    free, paid = (played(cost, **same) for cost in (0.0, 1.0))
    effort = (free.payoffs - paid.payoffs)[0]
    np.testing.assert_allclose(effort[0], 1, atol=1e-5)
    np.testing.assert_allclose(np.diagonal(effort[1:]), spent, atol=1e-5)


def test_each_seed_has_its_own_rows() -> None:
    """In the second seed clients 0 and 2 have each other's rows: 2 in place of 4, and 4 in place of 2."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "local": Local(0.1, 2, epochs=1)})
    one = federation()
    rows = jax.tree.map(lambda leaf: leaf[np.array([2, 1, 0])], one.clients)._replace(id=one.clients.id)
    same: dict[str, Any] = {"plan": plan, "data": stack([one, one._replace(clients=rows)]), "seeds": 2}
    same["deviations"] = {"no effort": Strategy(effort=0.0), "rider": Strategy(own=0.0)}
    free, paid = (played(cost, **same) for cost in (0.0, 1.0))
    effort = free.payoffs - paid.payoffs
    np.testing.assert_allclose(np.diagonal(effort[:, 1::2], axis1=1, axis2=2), [[0.5, 1, 1], [1, 1, 0.5]], atol=1e-5)
    np.testing.assert_allclose(np.diagonal(effort[:, 2::2], axis1=1, axis2=2), 0, atol=1e-5)
    assert free.outside is not None
    assert paid.outside is not None
    np.testing.assert_allclose(free.outside - paid.outside, 1, atol=1e-5)


def test_absent_clients_compute_nothing() -> None:
    """Of three clients one takes part in each round: together they pay for as many steps as one in all rounds."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "clients_per_round": 1})
    lies = {"double": Strategy(own=2.0)}
    free, paid = (played(cost, plan, outside=None, deviations=lies, rounds=4) for cost in (0.0, 1.0))
    effort = free.payoffs - paid.payoffs
    np.testing.assert_allclose(effort.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(effort * 4, np.rint(effort * 4), atol=1e-4)


@pytest.mark.parametrize("outside", ["standalone", "mechanism", [-1.0, -2.0, -3.0], np.full((1, 3), -4.0)])
@pytest.mark.parametrize("shape", ["unilateral", "join"])
def test_what_is_outside(shape: Any, outside: Any) -> None:
    """A slow server makes the mechanism alone worse than a model of one's own; numbers are taken as they are."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "server_lr": 0.5})
    table = played(COST, plan, shape=shape, outside=outside, deviations=None if shape == "join" else LIES)
    rate = {"standalone": 0.25, "mechanism": 0.125}.get(outside, 0) if isinstance(outside, str) else 0
    own = -np.square((1 - rate) ** ROUNDS * np.array(TARGETS)) / 2 - COST
    expected = own if rate else np.broadcast_to(outside, (1, 3))[0]
    assert table.outside is not None
    np.testing.assert_allclose(table.outside, [expected], atol=1e-5)
    assert table.outside_is == (outside if isinstance(outside, str) else "given")
    if shape == "join":
        away = table.choices == 1
        np.testing.assert_allclose(table.payoffs[0][away], np.broadcast_to(expected, away.shape)[away], atol=1e-5)
    split = games.split_payoffs(plan, federation(), rounds=ROUNDS, outside=outside, deviators=[1])
    assert split.outside_is == table.outside_is


def test_standalone_models_of_a_reference_and_of_another_local() -> None:
    local = Local(0.5, 1, steps=2 * ROUNDS)  # twice as many steps as in all rounds
    reference = fljax.standalone(TASK, estimation(), local, seeds=(0,))
    tables = [played(COST, outside=outside, standalone=local) for outside in ("standalone", reference)]
    for table in tables:
        expected = -np.square(0.5 ** (2 * ROUNDS) * np.array(TARGETS)) / 2 - 2 * COST
        assert (table.outside is not None, table.outside_is) == (True, "standalone")
        np.testing.assert_allclose(table.outside, [expected], atol=1e-5)  # type: ignore[arg-type]
    silent = played(outside=None)
    assert (silent.outside, silent.outside_is) == (None, "")


def squared(algorithm: Any, state: Any, scores: Any) -> Any:
    return -2 * scores["test_loss"].values


@pytest.mark.quick
@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outside": "alone"}, "expected one of the outside options standalone, mechanism, got 'alone'"),
        ({"outside": [1.0]}, r"expected outside options of 3 clients, or of 1 seeds by 3 clients, got .* \[1\]"),
        ({"outside": [0.0, np.nan, 1.0]}, "expected finite outside options"),
        ({"outside": fljax.Reference(np.ones((1, 3)), np.ones((1, 3)), None), "utility": squared}, "got a Reference"),
        (
            {"plan": algorithms.standalone(TASK, Local(0.1, 1, steps=1))},
            "expected standalone=, how clients train alone",
        ),
    ],
)
def test_other_outside_options_are_refused(changes: dict[str, Any], words: str) -> None:
    plan = changes.get("plan", PLAN)
    rest: dict[str, Any] = {"deviations": {"no effort": Strategy(effort=0.0)}, "rounds": 1} | changes
    rest.pop("plan", None)
    with pytest.raises(ValueError, match=words):
        games.payoffs(plan, estimation(), **rest)
