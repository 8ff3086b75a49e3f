"""What algorithms read of clients, and the deviations that follow from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax import algorithms
from fljax.engine import Plan
from fljax.games import messages_of, usual_deviations
from fljax.games.strategic.playing import Messages, check_deviations, numbers_of, strategies_played, unread
from fljax.games.values import algorithm_of
from fljax.scenarios import ByReport, Strategy
from tests.games.test_retraining import LOCAL, few
from tests.toys.task import logistic_regression

FEDERATION = few(2)
ONE = {"clients_per_round": None}


def plan_of(name: str, **options: Any) -> Plan:
    build = algorithms.REGISTRY[name].build
    return Plan(build, {"task": logistic_regression(), "local": LOCAL, **options})


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("fedavg", ONE, Messages(("size",), True, True, True)),
        ("fedavg", {"weights": "uniform", **ONE}, Messages((), True, True, True)),
        ("incfl", {"threshold": 0.9, **ONE}, Messages(("loss", "threshold"), True, True, True)),
        ("weighted", ONE, Messages(("loss", "size"), True, True, True)),
        ("learnt", ONE, Messages(("loss", "size", "accuracy"), True, True, True)),
        ("iafl", {"contribution": (1.0, 2.0)}, Messages(("contribution",), True, True, True)),
        ("ipfl", {"clients_per_cluster": 2}, Messages(("size", "accuracy", "bid"), True, False, True, True)),
    ],
)
def test_what_algorithms_read(name: str, options: dict[str, Any], expected: Messages) -> None:
    assert messages_of(plan_of(name, **options), FEDERATION) == expected


def test_deviations_are_those_that_the_algorithm_reads() -> None:
    nothing = usual_deviations(Messages((), False, False, False))
    assert list(nothing) == ["no effort", "half effort"]
    update = [name for name in usual_deviations(Messages((), True, False, True)) if name not in nothing]
    assert update == ["zero rider", "update times -1", "update times 0.5", "update times 2", "update times 4"]
    riders = usual_deviations(Messages((), True, True, True)).keys() - {*nothing, *update}
    assert riders == {"delta rider", "disguised rider"}
    found = usual_deviations(Messages(("size", "bid"), False, False, False))
    factors = [f"{name} times {factor}" for name in ("size", "bid") for factor in ("0", "0.5", "2", "10")]
    assert list(found) == ["no effort", "half effort", *factors, "bid plus 1"]
    assert found["size times 10"] == Strategy(factor=ByReport(size=10.0))


@pytest.mark.parametrize("name", ["fedavg", "ipfl"])
def test_usual_deviations_are_allowed(name: str) -> None:
    plan = plan_of(name, **({"clients_per_cluster": 2} if name == "ipfl" else {}))
    messages = messages_of(plan, FEDERATION)
    check_deviations(usual_deviations(messages), messages, algorithm_of(plan))


@pytest.mark.parametrize(
    "deviations",
    [
        {"stale": Strategy(stale=1.0)},
        {"noise": Strategy(noise=1.0), "double": Strategy(own=2.0)},
    ],
)
def test_deviations_of_earlier_rounds_need_one_model(deviations: dict[str, Strategy]) -> None:
    plan = plan_of("ipfl", clients_per_cluster=2)
    with pytest.raises(ValueError, match="whose clients do not receive one model"):
        check_deviations(deviations, messages_of(plan, FEDERATION), algorithm_of(plan))


def test_what_is_never_read_is_named_with_the_reason() -> None:
    few = Messages(("loss", "bid"), False, False, False)
    one = Messages(("size",), True, False, True)
    lies = {
        "both": Strategy(own=2.0, factor=ByReport(size=2.0)),
        "flip": Strategy(flip=0.5),
        "lazy": Strategy(effort=0),
    }
    assert unread(lies, few) == {
        "both": "which never reads size (it asks for loss, bid)",
        "flip": "which never reads labels of classes (the task has none)",
    }
    assert unread(lies, one) == {}
    assert unread({"own": Strategy(own=2.0)}, few) == {"own": "which never reads an update (clients send none)"}
    assert list(unread({"echo": Strategy(own=0.0, echo=1.0), "double": Strategy(own=2.0)}, one)) == ["echo"]
    noisy = {"noise": Strategy(noise=1.0), "double": Strategy(own=2.0)}
    assert list(unread(noisy, one)) == ["noise"]
    assert unread({"noise": Strategy(noise=1.0)}, one) == unread(noisy, one._replace(one_model=True)) == {}


def test_strategies_of_profiles() -> None:
    """Fields of some deviation, with the honest number where a client has another strategy."""
    deviations = {
        "rider": Strategy(own=0.0, echo=2.0),
        "size": Strategy(factor=ByReport(size=10.0)),
        "bid": Strategy(shift=ByReport(bid=1.0)),
    }
    found = strategies_played(deviations, np.array([[0, 1], [2, 3]]))
    assert numbers_of(deviations["rider"]) == {"own": 0.0, "echo": 2.0}
    assert (found.effort, found.stale, found.factor.loss) == (None, None, None)
    for field, expected in (
        (found.own, [[1, 0], [1, 1]]),
        (found.echo, [[0, 2], [0, 0]]),
        (found.factor.size, [[1, 1], [10, 1]]),
        (found.shift.bid, [[0, 0], [0, 1]]),
    ):
        np.testing.assert_array_equal(field, expected)
