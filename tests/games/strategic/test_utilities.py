"""What clients get: ``u_i = metric_i - cost_i effort_i + price paid_i``."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import xarray as xr
from hypothesis import given

from fljax.algorithms import fedavg
from fljax.engine import Plan
from fljax.games import Utility
from fljax.games.strategic.utilities import Earnings, check_utility, tokens_of, utilities_of, utilities_of_runs
from fljax.games.values import algorithm_of
from fljax.protocol import Labelled
from tests.games.mean_estimation import PLAN, estimation
from tests.games.test_retraining import LOCAL
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

SCORED = Plan(fedavg, {"task": logistic_regression(), "local": LOCAL})


class Books(NamedTuple):
    """What a server keeps of a market."""

    tokens: Any
    pools: Any = 0


class Server(NamedTuple):
    """A Server with books inside."""

    models: Any
    books: Any


def test_the_equation() -> None:
    earned, effort = np.array([[0.5, 0.8], [0.6, 0.7]]), np.array([[1.0, 0.5], [0.0, 1.0]])
    found = utilities_of(earned, effort, np.array([[3.0, 0.0], [1.0, 2.0]]), Utility(cost=[0.1, 0.2], price=0.01))
    np.testing.assert_allclose(found, [[0.43, 0.7], [0.61, 0.52]])
    np.testing.assert_allclose(utilities_of(earned, effort, None, Utility(cost=0.1)), earned - 0.1 * effort)


@pytest.mark.parametrize(("budget", "share"), [(None, 1), (np.inf, 1), (4, 1), (2, 0.5), (0, 0)])
def test_tokens_are_paid_in_proportion_to_the_budget_and_debts_in_full(budget: Any, share: float) -> None:
    tokens = np.array([[3.0, 1.0, -2.0, 0.0], [0.0, 0.0, -1.0, 0.0]])
    found = utilities_of(np.ones((2, 4)), 0.0, tokens, Utility(price=0.5, budget=budget))
    np.testing.assert_allclose(found, 1 + 0.5 * np.where(tokens > 0, share * tokens, tokens))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.floats(0, 1e6), st.floats(0.1, 10))
def test_the_budget_is_kept_in_any_order(tokens: list[float], budget: float, price: float) -> None:
    held, order, utility = np.array(tokens), np.argsort(tokens), Utility(price=price, budget=budget)
    found, sorted = (utilities_of(np.zeros(len(held)), 0.0, each, utility) for each in (held, held[order]))
    assert found.clip(0).sum() <= price * budget * (1 + 1e-12) + 1e-12
    assert np.all(np.abs(found) <= np.abs(price * held))
    np.testing.assert_allclose(sorted, found[order], rtol=1e-9, atol=1e-12)


def test_tokens_are_a_field_of_the_server_or_of_its_parts() -> None:
    assert tokens_of(Server({"w": 1}, Books((1.0, 2.0)))) == (1.0, 2.0)
    assert tokens_of(Server({"w": 1}, ())) is None
    assert tokens_of({"tokens": 1}) is None


def test_utilities_of_runs() -> None:
    """By seed, run and client; of a loss the negative; with the tokens, if they have a price."""
    axes = ("run", "seed", "client")
    arrays = {"test_loss": np.arange(12.0), "test_accuracy": np.arange(12.0) / 12, "tokens": np.ones(12)}
    measured = xr.Dataset({name: (axes, array.reshape(3, 2, 2)) for name, array in arrays.items()})
    measured["diverged"] = (("run", "seed"), np.zeros((3, 2), bool))
    effort = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    losses = np.moveaxis(np.arange(12.0).reshape(3, 2, 2), 0, 1)
    np.testing.assert_allclose(utilities_of_runs(measured, effort, Utility()), losses / 12)
    found = utilities_of_runs(measured, effort, Utility("test_loss", cost=2.0, price=0.5))
    np.testing.assert_allclose(found, -losses - 2 * effort + 0.5)
    some = measured.assign_coords(member=(("run", "client"), np.array([[1, 0], [1, 1], [0, 1]], bool)))
    found = utilities_of_runs(some, 0 * effort, Utility("test_loss", price=1.0, budget=1.0))
    np.testing.assert_allclose(found, -losses + [[1, 0], [0.5, 0.5], [0, 1]])  # members alone are paid
    alone = measured.drop_vars(["test_accuracy", "tokens"])
    np.testing.assert_allclose(utilities_of_runs(alone, effort, Utility()), -losses)
    own = measured.rename(tokens="earned")
    np.testing.assert_array_equal(utilities_of_runs(own, effort, lambda *_: None), np.ones((2, 3, 2)))  # type: ignore


@pytest.mark.unchecked
def test_a_function_gives_one_number_for_each_client() -> None:
    scores = {"test_loss": Labelled(np.ones(3), ("client",))}
    state: Any = None
    algorithm: Any = None
    found = Earnings(lambda algorithm, state, scores: scores["test_loss"].values * 2)(algorithm, state, scores)
    np.testing.assert_array_equal(found["earned"].values, [2, 2, 2])
    with pytest.raises(
        ValueError, match=r"to return one number of each client \[3\], got an array of float64 of shape \[\]"
    ):
        Earnings(lambda algorithm, state, scores: scores["test_loss"].values.sum())(algorithm, state, scores)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("utility", "words"),
    [
        ("accuracy", r"expected a fljax\.games\.Utility or a function as utility, got 'accuracy'"),
        (Utility("loss"), 'the metric "test_accuracy" or "test_loss", got \'loss\''),  # type: ignore[arg-type]
        (Utility(price=float("nan")), "price to be one finite number, got nan"),
        (Utility(budget=1.0), "budget to be a number of at least 0 beside a price of tokens, got 1.0"),
        (Utility(price=1.0, budget=float("nan")), "got nan"),
        (Utility(cost=[1.0, 2.0]), r"cost to be one finite number or one for each of 3 clients, got \[1\.0, 2\.0\]"),
        (Utility(cost=float("inf")), "cost to be"),
        (Utility("test_accuracy"), 'the metric "test_loss" for a task without a score'),
    ],
)
def test_other_utilities_are_refused(utility: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_utility(utility, algorithm_of(PLAN), estimation())


def test_usual_utilities_pass() -> None:
    check_utility(Utility(cost=[0.0] * 5, price=0.1, budget=float("inf")), algorithm_of(SCORED), tiny_federation())
