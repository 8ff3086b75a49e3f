"""Early stopping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine import StopEarly, replay, stop_early
from fljax.metrics import registry
from fljax.metrics.registry import is_lower_better
from fljax.training import Local
from tests.engine.callbacks.blocks import block
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

NAN = float("nan")


def answers(stop: StopEarly, values: Sequence[Any], seeds: Sequence[int] = (0,)) -> list[bool]:
    """The answers of a callback to evaluations after rounds 1, 2, ..."""
    rows = [np.atleast_1d(value) for value in values]
    return [stop(block({stop.metric: row}, seeds=seeds, round=at + 1, ran=1)) for at, row in enumerate(rows)]


def test_it_stops_after_evaluations_without_improvement():
    stop = stop_early("average_accuracy", patience=2)
    assert answers(stop, [0.1, 0.2, 0.2, 0.3, 0.1, 0.3]) == [False, False, False, False, False, True]
    assert stop.reason == "average_accuracy has not improved in 2 evaluations, best 0.3 after round 4"


def test_lower_is_better_for_losses():
    assert answers(stop_early("average_loss", patience=1), [3.0, 2.0, 2.5]) == [False, False, True]
    assert answers(stop_early("average_loss", patience=1, lower=False), [3.0, 2.0]) == [False, True]
    assert is_lower_better("unseen_opt_outs")
    assert is_lower_better("server_test_loss")
    assert is_lower_better("dropped_messages")  # a table has its least number in bold
    assert not is_lower_better("unseen_incentivised_participation_rate")


def test_an_improvement_is_more_than_the_minimum_change():
    stop = stop_early("average_accuracy", patience=2, minimum_change=0.1)
    # Small steps add up: each is compared with the last value that counted.
    assert answers(stop, [0.5, 0.55, 0.65, 0.7, 0.75]) == [False, False, False, False, True]
    assert "by more than 0.1 in 2 evaluations, best 0.65 after round 3" in stop.reason


def test_seeds_decide_by_their_mean():
    stop = stop_early("average_accuracy", patience=1)
    assert answers(stop, [[0.2, 0.4], [0.5, 0.2], [0.6, NAN], [0.9, 0.2]], seeds=(0, 1)) == [False, False, False, True]
    assert [means for _, means in stop.history] == [[pytest.approx(each)] for each in (0.3, 0.35, 0.6, 0.55)]


def test_no_value_is_no_improvement():
    assert answers(stop_early("average_accuracy", patience=2), [NAN, NAN, 0.1]) == [False, True, False]
    assert answers(stop_early("average_loss", patience=2), [float("inf"), 1.0, NAN, 2.0]) == [False, False, False, True]


def test_cells_of_a_sweep_stop_together():
    stop = stop_early("average_accuracy", patience=1)
    rows = [[0.1, 0.3, 0.5, 0.5], [0.1, 0.1, 0.6, 0.6], [0.1, 0.1, 0.6, 0.4]]
    assert answers(stop, rows, seeds=(0, 1, 0, 1)) == [False, False, True]
    assert stop.reason == "average_accuracy has not improved in 1 evaluation"


def test_the_history_can_be_replayed():
    """A run that goes on from a checkpoint answers as one that was never interrupted."""
    values = [0.1, 0.3, 0.2, 0.25, 0.2]
    blocks = [block({"average_accuracy": [value]}, seeds=(0,), round=at, ran=at) for at, value in enumerate(values)]
    for cut in range(len(blocks)):
        stop = stop_early("average_accuracy", patience=3)
        stop(blocks[-1])  # of an earlier life
        assert replay([stop, print], blocks[:cut]) is False
        assert [stop(each) for each in blocks[max(cut, 1) :]][-1] is True
    assert replay([stop_early("average_accuracy", patience=3)], blocks) is True


def test_every_metric_of_one_evaluation_is_described():
    assert set(registry.OF_ONE_EVALUATION) <= set(registry.METRICS)
    assert set(registry.OF_LOSSES) <= set(registry.METRICS)
    assert "unseen_average_loss" in registry.OF_LOSSES
    assert "average_valid_loss" in registry.OF_LOSSES
    assert "average_valid_accuracy" not in registry.OF_LOSSES
    assert is_lower_better("average_valid_loss")


@pytest.mark.in_turn
def test_a_run_says_where_it_ended():
    algorithm = fedavg(logistic_regression(), Local(1e-9, batch_size=2, steps=1), clients_per_round=3)
    stop = stop_early("average_accuracy", patience=2)
    given: dict[str, Any] = {"rounds": 8, "evaluate_every": 2, "seeds": (5, 9)}
    result = engine.simulate(algorithm, tiny_federation(), **given, callbacks=[stop])
    assert result.metrics["evaluated_round"].values.tolist() == [0, 2, 4, 6]
    assert int(result.metrics["rounds_done"]) == 6
    whole = engine.simulate(algorithm, tiny_federation(), **given)
    assert int(whole.metrics["rounds_done"]) == 8
