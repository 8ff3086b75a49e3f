"""Deviations that are functions of what a client knows, beside strategies of numbers that do the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from fljax import algorithms, games
from fljax.engine import Plan
from fljax.scenarios import ByReport, Knowledge, Strategy
from tests.games.mean_estimation import PLAN, estimation
from tests.games.test_retraining import few, plan


def doubled(message: Any, knowledge: Knowledge) -> Any:
    return message._replace(update=jax.tree.map(lambda leaf: 2.0 * leaf, message.update))


def later(message: Any, knowledge: Knowledge) -> Any:
    """Doubles its update from round 2 on, and only as client 2."""
    factor = 1.0 + (knowledge.seat.round >= 2) * (knowledge.seat.id == 2)
    return message._replace(update=jax.tree.map(lambda leaf: factor * leaf, message.update))


def as_threshold(message: Any, knowledge: Knowledge) -> Any:
    """Reports its threshold as its loss."""
    return message._replace(report=message.report._replace(loss=message.report.threshold))


def nothing(message: Any, knowledge: Knowledge) -> Any:
    return message._replace(report=message.report._replace(loss=0.0))  # a number for an array


def ten_rows(message: Any, knowledge: Knowledge) -> Any:
    return message._replace(report=message.report._replace(size=10 * knowledge.data.train.rows.size))


def too_long(message: Any, knowledge: Knowledge) -> Any:
    return message._replace(update={"w": np.zeros(2, np.float32)})


@pytest.mark.in_turn
def test_a_function_is_the_strategy_that_does_the_same() -> None:
    """All profiles, also of two functions and numbers at once; honest clients keep their bits."""
    lies: dict[str, Any] = {"function": doubled, "numbers": Strategy(own=2.0), "rider": Strategy(own=0.0)}
    table = games.payoffs(PLAN, estimation(), rounds=4, deviations=lies | {"later": later}, outside=None)
    named = {(table.strategies[row.max()], int(row.argmax())): place for place, row in enumerate(table.choices)}
    for client in range(3):
        one, other = (table.payoffs[0, named[name, client]] for name in ("function", "numbers"))
        np.testing.assert_allclose(one, other, rtol=1e-6)
    alone = games.payoffs(PLAN, estimation(), rounds=4, deviations={"rider": Strategy(own=0.0)}, outside=None)
    np.testing.assert_array_equal(table.payoffs[:, 0], alone.payoffs[:, 0])
    np.testing.assert_array_equal(table.payoffs[0, named["later", 0]], table.payoffs[0, 0])
    model = 0.0
    for round in range(4):
        model += (0.25 * (np.array([0.0, 1.0, 5.0]) - model) * [1, 1, 1 + (round >= 2)]).mean()
    np.testing.assert_allclose(table.payoffs[0, named["later", 2], 2], -((5 - model) ** 2) / 2, rtol=1e-5)


@pytest.mark.thorough
def test_reports_that_depend_on_what_a_client_knows() -> None:
    """INCFL: a client whose loss is its threshold; FedAvg: ten times its size, as by a factor."""
    incfl = Plan(algorithms.incfl, {**plan().arguments, "threshold": 0.9})
    lies: dict[str, Any] = {"as threshold": as_threshold, "loss times 0": Strategy(factor=ByReport(loss=0.0))}
    lies |= {"nothing": nothing}
    table = games.payoffs(incfl, few(3), rounds=2, deviations=lies, outside=None)
    assert np.isfinite(table.payoffs).all()
    np.testing.assert_allclose(table.payoffs[0, 2::3], table.payoffs[0, 3::3], atol=1e-6)
    sized = plan()._replace(arguments={**plan().arguments, "weights": "size"})
    lies = {"function": ten_rows, "numbers": Strategy(factor=ByReport(size=10.0))}
    found = games.payoffs(sized, few(3), rounds=2, deviations=lies, outside=None).payoffs[0, 1:]
    np.testing.assert_allclose(found[::2], found[1::2], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 0


@pytest.mark.thorough
def test_certificates_of_functions() -> None:
    """Of functions alone there is no attack, which varies numbers."""
    same: dict[str, Any] = {"rounds": 4, "seeds": 5, "tolerance": 0.1, "candidates": 3, "controls": False}
    alone = games.certify(PLAN, estimation(), deviations={"double": doubled}, **same)
    assert (alone.verdict, alone.attack) == ("VIOLATED", None)
    both = games.certify(PLAN, estimation(), deviations={"double": doubled, "rider": Strategy(own=0.0)}, **same)
    assert both.attack is not None
    np.testing.assert_array_equal(both.gains.gains[:, ::2], alone.gains.gains)


def test_a_message_of_another_form_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"expected .*too_long to give a message of the form of an honest one"):
        games.payoffs(PLAN, estimation(), rounds=1, deviations={"long": too_long})
