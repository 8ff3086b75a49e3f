"""Whether it pays to join as several identities, beside the same rounds in NumPy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import games
from fljax.algorithms import afl, weighted
from fljax.engine import Plan
from fljax.games.strategic.splitting import check_splits
from fljax.protocol import ClientData, Examples, Federation, Rows
from fljax.scenarios import Strategy, dropout, strategic
from fljax.training import Local
from tests.games.mean_estimation import PLAN

ROWS = ([0.0, 2.0, 1.0, 3.0], [5.0, 7.0], [-1.0, -2.0])
ROUNDS, RATE = 3, 0.25


def federation() -> Federation:
    """Clients with 4, 2 and 2 rows, which are their test rows, too."""
    size = np.array([len(rows) for rows in ROWS])
    index = np.zeros((3, 4), np.int32)
    for client, begin in enumerate(np.cumsum(size) - size):
        index[client, : size[client]] = begin + np.arange(size[client])
    rows = Rows(jnp.asarray(index), jnp.asarray(size, jnp.int32))
    none = rows._replace(size=jnp.zeros(3, jnp.int32))
    examples = Examples(jnp.zeros((8, 1)), jnp.asarray(np.concatenate(ROWS), jnp.float32))
    return Federation(examples, ClientData(jnp.arange(3, dtype=jnp.int32), rows, none, rows))


def model_of(clients: list[list[float]], weights: str) -> float:
    """``w <- w - rate sum_i a_i (w - mean_i)`` from 0, one full batch each round."""
    sizes = np.array([len(rows) if weights == "size" else 1 for rows in clients], float)
    means, model = np.array([np.mean(rows) for rows in clients]), 0.0
    for _ in range(ROUNDS):
        model -= RATE * float(sizes / sizes.sum() @ (model - means))
    return model


def payoffs_of(model: float) -> list[float]:
    return [-float(np.mean(np.square(np.array(rows) - model) / 2)) for rows in ROWS]


def played(weights: str, **changes: Any) -> games.PayoffTable:
    local = Local(RATE, 4, steps=1)
    plan = PLAN._replace(arguments={**PLAN.arguments, "local": local, "weights": weights})
    return games.split_payoffs(plan, federation(), rounds=ROUNDS, **changes)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_fedavg_is_that_of_all_identities(weights: str) -> None:
    """By size a split changes nothing; uniform weights give a client with two identities 2/4 in place of 1/3."""
    table: Any = played(weights)
    assert (table.strategies, table.choices.tolist()) == (
        ("honest", "split in 2"),
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
    )
    expected = [payoffs_of(model_of(list(ROWS), weights))]
    for client, rows in enumerate(ROWS):
        half = len(rows) // 2
        identities = [*ROWS[:client], rows[:half], *ROWS[client + 1 :], rows[half:]]
        expected.append(payoffs_of(model_of(identities, weights)))
    np.testing.assert_allclose(table.payoffs[0], expected, rtol=2e-6)
    outside = [payoffs_of(model_of([rows], weights))[client] for client, rows in enumerate(ROWS)]
    np.testing.assert_allclose(table.outside[0], outside, rtol=2e-6)
    gains = games.unilateral_gains(table).gains[0]
    if weights == "size":
        np.testing.assert_allclose(gains, 0, atol=1e-5)
    else:
        assert gains[1] > 0.1


@pytest.mark.in_turn
def test_all_identities_take_part_where_all_clients_do() -> None:
    """A config has its number of clients in place of None."""
    local = Local(RATE, 4, steps=1)
    plan = PLAN._replace(arguments={**PLAN.arguments, "local": local, "weights": "size", "clients_per_round": 3})
    table = games.split_payoffs(plan, federation(), rounds=ROUNDS, seeds=3, deviators=[1], outside=False)
    np.testing.assert_allclose(games.unilateral_gains(table).gains, 0, atol=1e-5)
    check_splits(Plan(afl, {"task": PLAN.arguments["task"], "local": local, "clients_per_round": 3}), federation(), 2)


def test_the_owner_pays_for_the_steps_of_all_identities() -> None:
    """Each of the two computes one step a round, as the owner alone would."""
    free, paid = (
        played("size", deviators=[1], outside=False, utility=games.Utility(cost=cost))
        for cost in (0.0, [0.0, 0.5, 2.0])
    )
    np.testing.assert_allclose(free.payoffs - paid.payoffs, [[[0, 0.5, 2.0], [0, 1.0, 2.0]]], atol=1e-5)
    assert free.outside is None


@pytest.mark.parametrize(("power", "shares"), [(1.0, [1 / 4, 1 / 4]), (0.0, [1 / 3, 2 / 4])])
def test_all_identities_share_the_budget(power: float, shares: list[float]) -> None:
    """Three rounds pay 2 each, and the budget is 3. By size a split changes nothing."""
    arguments = {"task": PLAN.arguments["task"], "local": Local(RATE, 4, steps=1), "clients_per_round": None}
    plan = Plan(weighted, {**arguments, "size_power": power, "payment": 2.0})
    asked = games.Utility(), games.Utility(price=10.0, budget=3.0)
    same: dict[str, Any] = {"rounds": ROUNDS, "deviators": [1], "outside": False}
    free, paid = (games.split_payoffs(plan, federation(), utility=utility, **same).payoffs for utility in asked)
    np.testing.assert_allclose((paid - free)[0, :, 1], 30 * np.array(shares), rtol=1e-5)
    np.testing.assert_allclose((paid - free).sum(axis=2), 30, rtol=1e-5)


def test_saved_runs_go_on(tmp_path: Any) -> None:
    """A second call computes nothing; the number of runs is that of all calls."""
    told: list[Any] = []
    same: dict[str, Any] = {"checkpoint": tmp_path, "on_block": told.append}
    first = played("uniform", outside="mechanism", **same)
    assert [(block.done, block.runs) for block in told] == [(3, 7), (4, 7), (5, 7), (6, 7), (7, 7)]
    told.clear()
    np.testing.assert_array_equal(played("uniform", outside="mechanism", **same).payoffs, first.payoffs)
    assert not told


@pytest.mark.in_turn
def test_splits_are_cells_of_a_certificate(tmp_path: Any) -> None:
    """Beside the deviations, with gains beside honest runs of the same form; the attack is of the others."""
    told: list[Any] = []
    plan = PLAN._replace(arguments={**PLAN.arguments, "local": Local(RATE, 4, steps=1)})
    same: dict[str, Any] = {"rounds": ROUNDS, "seeds": 5, "deviations": {"double": Strategy(own=2.0)}}
    same |= {"tolerance": 0.1, "controls": False, "candidates": 2, "outside": False, "deviators": [1]}
    found = games.certify(plan, federation(), identities=2, checkpoint=tmp_path, on_block=told.append, **same)
    assert found.gains.deviations == ("double", "split in 2")
    expected = games.unilateral_gains(played("uniform", seeds=5, deviators=[1], outside=False))
    np.testing.assert_allclose(found.gains.gains[:, 1], expected.gains[:, 0], atol=1e-6)
    assert found.attack is not None
    assert (told[-1].done, told[-1].runs) == (5 * (2 + 2 + 3), 35)


def test_an_argument_of_one_number_for_each_client_is_refused() -> None:
    scaled = PLAN._replace(arguments={**PLAN.arguments, "local": Local(RATE, 4, steps=1)})

    def build(shares: Any, **arguments: Any) -> Any:
        return strategic(scaled.build(**arguments), strategy=Strategy(own=shares))

    plan = Plan(build, {**scaled.arguments, "shares": (1.0, 1.0, 2.0)})
    with pytest.raises(ValueError, match=r"without an argument of one number for each client, .* each of 4 clients"):
        games.split_payoffs(plan, federation(), rounds=1)


@pytest.mark.unchecked
def test_an_argument_that_is_read_in_the_selection_is_refused_before_anything_runs() -> None:
    scaled = PLAN._replace(arguments={**PLAN.arguments, "local": Local(RATE, 4, steps=1)})

    def build(rates: Any, **arguments: Any) -> Any:
        return dropout(scaled.build(**arguments), rate=rates)

    with pytest.raises(ValueError, match=r"without an argument of one number for each client, .* each of 4 clients"):
        check_splits(Plan(build, {**scaled.arguments, "rates": (0.0, 0.5, 0.5)}), federation(), 2)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"identities": 1}, "identities"),
        ({"deviators": [3]}, "ids of the clients 0 to 2, got 3"),
        ({"max_runs": 3}, "expected at most 3 runs, got 5"),
        ({"utility": games.Utility(price=1.0)}, "whose server keeps tokens for a price of tokens"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        played("size", **changes)
