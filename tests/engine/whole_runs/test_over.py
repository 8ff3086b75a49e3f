"""What differs between runs: rows of traced leaves, and sentences about what cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl
from fljax.engine import Over, Plan
from fljax.engine.whole_runs.running import client_steps, varied_plan
from fljax.protocol import Algorithm
from fljax.training import Local
from tests.toys.federation import TRAIN, tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
PLAN = Plan(fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": 3})
THRESHOLD = np.full(5, 0.5)


def varied(plan: Algorithm | Plan = PLAN, **over: Any) -> Any:
    """The plan over some runs."""
    return varied_plan(plan, tiny_federation(), Over(**over))


@pytest.mark.in_turn
def test_only_leaves_that_differ_have_rows() -> None:
    found = varied(arguments={"local": LOCAL._replace(learning_rate=[0.1, 0.2, 0.4]), "server_lr": np.array([1, 2, 3])})
    assert found.runs == 3
    rows = [found.inputs.traced[place] for place in found.spec.varied]
    assert sorted(leaf.tolist() for leaf in rows) == [[0.1, 0.2, 0.4], [1.0, 2.0, 3.0]]
    assert all(leaf.dtype.kind == "f" for leaf in rows)
    assert all(np.ndim(leaf) == 0 for place, leaf in enumerate(found.inputs.traced) if place not in found.spec.varied)


def test_arrays_by_client_have_a_row_for_each_run() -> None:
    plan = Plan(incfl, {"task": TASK, "local": LOCAL, "threshold": THRESHOLD})
    found = varied(plan, arguments={"threshold": np.stack([THRESHOLD, 2 * THRESHOLD])})
    (place,) = found.spec.varied
    assert found.inputs.traced[place].shape == (2, 5)


def test_nothing_differs_in_a_single_run() -> None:
    found = varied()
    assert (found.runs, found.spec.varied, found.member, found.cost.tolist()) == (1, (), None, [1.0])


def test_a_run_costs_its_members_and_one_more() -> None:
    assert varied(member=[[0, 0, 0, 0, 0], [1, 0, 1, 0, 0]]).cost.tolist() == [1.0, 3.0]


def test_client_steps_of_a_round() -> None:
    member = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)
    data = tiny_federation()
    assert client_steps(PLAN, data, member, 3) == 3 * 3 + 3  # a cohort of three, and of one
    epochs = Plan(fedavg, {"local": LOCAL._replace(steps=None, epochs=2)})
    each = 2 * np.ceil(np.array(TRAIN) / 2)
    assert client_steps(epochs, data, member, 5) == each.sum() + each[0]
    assert client_steps(fedavg(TASK, LOCAL), data, member, 5) is None
    of_config = Plan(fedavg, {"arguments": {"local": LOCAL}})
    assert client_steps(of_config, data, member, 5) == 3 * 5 + 3


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"arguments": {"serverlr": [1.0]}}, "one of the arguments task, .* got 'serverlr'"),
        ({"arguments": {"server_lr": 1.0}}, "expected an array with a row for each run in the argument server_lr"),
        ({"arguments": {"server_lr": [1.0, np.nan]}}, "expected server_lr to be one finite number"),
        ({"arguments": {"server_lr": []}}, "of at least one run, got server_lr of 0"),
        (
            {"arguments": {"clients_per_round": [2, 3]}},
            "runs to differ in floats and arrays, got int64 numbers for clie",
        ),
        ({"arguments": {"server_lr": [1.0, 2.0]}, "member": np.ones((3, 5))}, "member of 3, server_lr of 2"),
        ({"member": np.ones(5)}, "a column for each of 5 clients, got shape"),
        ({"member": np.ones((2, 5)), "cost": [1.0, 0.0]}, "expected positive costs, got 0.0"),
        ({"member": np.ones((2, 5)), "cost": [[1.0, 2.0]]}, "cost of another shape"),
    ],
)
@pytest.mark.unchecked
def test_what_cannot_differ_is_refused(over: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        varied(**over)
