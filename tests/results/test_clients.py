"""Which clients gain: numbers by hand, names, and tasks without accuracies."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import xarray as xr

from fljax.protocol import Names
from fljax.results.clients import (
    gain_shares,
    gains,
    gains_at_best,
    gains_frame,
    names_of,
    with_common_names,
    with_names,
)

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


def made_up_sweep() -> xr.Dataset:
    """``made_up`` at the rate 1; at the rate 2 accuracies of incfl are higher by 0.3, those of fedavg as much lower."""
    axes, scalar = ("algorithm", "rate", "seed", "evaluated_round", "client"), ("algorithm", "rate", "seed")
    accuracy = ACCURACY[:, None] + np.array([[0.0, -0.3], [0.0, 0.3]])[:, :, None, None]
    alone = np.stack([ALONE, ALONE + 0.1])
    variables = {
        "test_accuracy": (axes, accuracy[:, :, :, None]),
        "standalone_test_accuracy": (("rate", "seed", "client"), alone),
        "test_loss": (axes, 1 - accuracy[:, :, :, None]),
        "standalone_test_loss": (("rate", "seed", "client"), 1 - alone),
        "average_accuracy": ((*scalar, "evaluated_round"), accuracy.mean(axis=-1)[..., None]),
        "diverged": (scalar, np.full((2, 2, 2), -1)),
    }
    coordinates = {"algorithm": ["fedavg", "incfl"], "rate": [1.0, 2.0], "seed": [0, 1], "evaluated_round": [9]}
    attributes = {"grid": json.dumps({"rate": "local.rate"}), "metric": "average_accuracy"}
    return xr.Dataset(variables, coordinates | {"client": [0, 1]}, attributes)


def test_gains_of_a_sweep_by_cell_in_the_best_cell_and_over_all_cells() -> None:
    table = gains_frame(made_up_sweep())
    assert list(table.columns[:3]) == ["algorithm", "rate", "client"]
    assert len(table) == 2 * 2 * 2
    assert table[table["rate"] == 1.0].drop(columns="rate").values.tolist() == gains_frame(made_up()).values.tolist()
    best = gains_at_best(made_up_sweep())
    assert [(each.algorithm, each.client) for each in best] == [
        (label, client) for label in ("fedavg", "incfl") for client in ("0", "1")
    ]
    np.testing.assert_allclose([each.gain for each in best], [0.15, 0.0, 0.45, 0.0], atol=1e-12)
    np.testing.assert_allclose(best[2].over_baseline, 0.7)  # over fedavg in the same cell
    shares = gain_shares(made_up_sweep())
    assert [each.count for each in shares] == [4] * 4
    assert [each.share for each in shares] == [0.5, 0.25, 1.0, 0.25]
    assert [each.share for each in gain_shares(made_up())] == [1.0, 0.5, 1.0, 0.0]  # of a run over its seeds


def test_names_that_are_not_those_of_all_cells_are_left_out() -> None:
    named = [with_names(made_up(), [Names(clients=names)] * 2) for names in (("Elm", "Ivy"), ("Elm", "Oak"))]
    assert [names_of(each, "client") for each in with_common_names([named[0]] * 2)] == [["Elm", "Ivy"]] * 2
    assert [names_of(each, "client") for each in with_common_names(named)] == [["0", "1"]] * 2
    assert [names_of(each, "client") for each in with_common_names([named[0], made_up()])] == [["0", "1"]] * 2


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_gains_by_hand(measure: str) -> None:
    found = gains(made_up(measure))
    assert [(each.algorithm, each.client) for each in found] == [
        (label, client) for label in ("fedavg", "incfl") for client in ("0", "1")
    ]
    first, second, third, _ = found
    assert first.measure == measure
    assert not first.unseen
    assert (first.gain, first.std) == (pytest.approx(0.15), pytest.approx(0.05 * math.sqrt(2)))
    assert (first.seeds, first.prefers) == (2, 1.0)
    assert (second.prefers, second.gain) == (0.5, pytest.approx(0.0))
    assert third.over_baseline == pytest.approx(0.1)
    assert (first.over_baseline, first.value) == (0, pytest.approx(0.6 if measure == "accuracy" else 0.4))
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
