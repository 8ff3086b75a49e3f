"""Which clients gain: numbers by hand, names, and tasks without accuracies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr

from fljax.protocol import Names
from fljax.results.clients import gains, gains_frame, names_of, with_names

ACCURACY = np.array([[[0.5, 0.9], [0.7, 0.9]], [[0.6, 0.8], [0.8, 0.6]]])  # [algorithm, seed, client]
ALONE = np.array([[0.4, 0.95], [0.5, 0.85]])


def made_up(measure: str = "accuracy") -> xr.Dataset:
    """Two algorithms, two seeds and two clients; losses are what accuracies lack."""
    axes = ("algorithm", "seed", "evaluated_round", "client")
    variables = {
        "test_loss": (axes, 1 - ACCURACY[:, :, None]),
        "standalone_test_loss": (("seed", "client"), 1 - ALONE),
    }
    if measure == "accuracy":
        variables |= {
            "test_accuracy": (axes, ACCURACY[:, :, None]),
            "standalone_test_accuracy": (("seed", "client"), ALONE),
        }
    coordinates = {"algorithm": ["fedavg", "incfl"], "seed": [0, 1], "evaluated_round": [9], "client": [0, 1]}
    return xr.Dataset(variables, coordinates)


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_gains_by_hand(measure: str) -> None:
    found = gains(made_up(measure))
    assert [(each.algorithm, each.client) for each in found] == [
        (label, client) for label in ("fedavg", "incfl") for client in ("0", "1")
    ]
    first, second, third, _ = found
    assert first.measure == measure
    assert not first.unseen
    assert first.gain == pytest.approx(0.15)
    assert first.std == pytest.approx(0.05 * math.sqrt(2))
    assert (first.seeds, first.prefers) == (2, 1.0)
    assert second.prefers == 0.5
    assert second.gain == pytest.approx(0.0)
    assert third.over_baseline == pytest.approx(0.1)
    assert first.over_baseline == 0
    assert first.value == pytest.approx(0.6 if measure == "accuracy" else 0.4)
    assert list(gains_frame(made_up(measure)).columns) == list(first._fields)


def test_a_client_without_test_rows_has_no_gain() -> None:
    metrics = made_up()
    for name in metrics.data_vars:
        metrics[name] = metrics[name].where(metrics["client"] != 1)
    second = gains(metrics)[1]
    assert math.isnan(second.gain)
    assert math.isnan(second.prefers)
    assert second.seeds == 0


def test_names_are_those_of_all_seeds() -> None:
    same = with_names(made_up(), [Names(clients=("Elm", 7))] * 2)
    assert names_of(same, "client") == ["Elm", "7"]
    assert [each.client for each in gains(same)][:2] == ["Elm", "7"]
    other = with_names(made_up(), [Names(clients=("Elm", "Ivy")), Names(clients=("Elm", "Oak"))])
    assert names_of(other, "client") == ["0", "1"]
    assert names_of(with_names(made_up(), [Names()] * 2), "client") == ["0", "1"]
