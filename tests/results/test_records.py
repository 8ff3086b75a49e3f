"""Records as labelled arrays: dimensions, bytes, tables over clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from fljax.protocol import along
from fljax.results.further_rounds import joined
from fljax.results.records import Wire, by_client, dataset, with_compute


def block(rounds, start=0) -> dict[str, Any]:
    rows = along(
        "row",
        cohort_id=np.arange(start, start + 2 * rounds * 3).reshape(2, rounds, 3),
        cohort_present=np.tile(np.array([True, True, False]), (2, rounds, 1)),
        weight=np.ones((2, rounds, 3), np.float32),
    )
    return rows | {"polled": np.full((2, rounds), 4, np.int32), "tokens": np.zeros((2, rounds, 4, 5))}


def test_records():
    found = dataset([0, 1], 10, [block(2), block(3, 50)], Wire(2**33, 2**33, 10, 3), 70)
    assert (found["round"].values.tolist(), found["weight"].dims) == ([10, 11, 12, 13, 14], ("seed", "round", "row"))
    assert found["polled"].dims == ("seed", "round")
    assert found["tokens"].dims == ("seed", "round", "tokens_axis_0", "tokens_axis_1")
    np.testing.assert_array_equal(found["cohort_id"].sel(seed=1, round=12), block(3, 50)["cohort_id"].values[1, 0])
    # Two rows present and four clients polled; counts beyond 32 bits do not overflow.
    assert (found["bytes_down"] == (2 + 4) * 2**33).all()
    assert (found["bytes_up"] == 2 * 10 + 4 * 3).all()


def test_participation_and_weights_by_client(monkeypatch):
    one = block(2)
    one["cohort_id"].values[0, 0] = (7, 7, 1)  # two rows of one client; the third row is empty
    one["weight"].values[0, 0] = (0.25, 0.5, 9.0)
    found = dataset([0, 1], 0, [one], Wire(1, 1, 1, 1), 20)
    assert found["participation"].dims == found["client_weight"].dims == ("seed", "round", "client")
    table, weight = found["participation"].values, found["client_weight"].values
    assert table[0, 0].tolist() == [2 if client == 7 else 0 for client in range(20)]
    assert (table.sum(axis=-1) == 2).all()
    assert weight[0, 0, 7] == 0.75
    assert np.isnan(weight[0, 0, [0, 1]]).all()
    np.testing.assert_array_equal(np.isfinite(weight), table > 0)
    without = {name: values for name, values in one.items() if name != "weight"}
    assert "client_weight" not in dataset([0, 1], 0, [without], Wire(1, 1, 1, 1), 20)
    monkeypatch.setattr("fljax.results.records.LARGEST_TABLE", 79)  # 2 x 2 x 20 is more
    large = dataset([0, 1], 0, [one], Wire(1, 1, 1, 1), 20)
    assert "participation" not in large
    derived = by_client(large, 20)
    xr.testing.assert_identical(derived, found[["participation", "client_weight"]].drop_vars(["row"], errors="ignore"))
    chosen = by_client(large.isel(round=slice(1, None)), 20)
    np.testing.assert_array_equal(chosen["participation"], table[:, 1:])


def test_records_of_no_rounds():
    found = dataset([0, 1], 10, [], Wire(1, 1, 1, 1), 5)
    assert found.sizes == {"seed": 2, "round": 0}


def test_costs_of_clients_until_each_evaluation():
    """Two rows of a cohort in each round: clients 0 and 1, then 3 and 4; in seed 1, 6 and 7, then 9 and 10."""
    found = dataset([0, 1], 5, [block(2)], Wire(1, 1, 1, 1), 12)
    metrics = xr.Dataset(coords={"seed": [0, 1], "evaluated_round": [5, 6, 7]})
    steps = np.arange(24).reshape(2, 12)
    costs = with_compute(metrics, found, {"gradient_steps": steps, "forward_passes": 0 * steps})
    assert costs["gradient_steps"].values.tolist() == [[0, 0 + 1, 0 + 1 + 3 + 4], [0, 18 + 19, 18 + 19 + 21 + 22]]
    by_hand = np.zeros(12, int)
    by_hand[[1, 3, 4]] = 1, 3, 4
    np.testing.assert_array_equal(costs["client_gradient_steps"].sel(seed=0, evaluated_round=7), by_hand)
    assert (costs["forward_passes"] == 0).all()
    # A run that goes on counts on.
    further = costs.assign_coords(evaluated_round=[7, 8, 9])
    whole = joined(costs.assign(rounds_done=7), further.assign(rounds_done=9), "evaluated_round")
    assert whole["gradient_steps"].sel(seed=0).values.tolist() == [0, 1, 8, 9, 16]
    assert int(whole["client_gradient_steps"].sel(seed=0, client=3, evaluated_round=9)) == 6


def test_costs_of_a_run_without_rounds():
    found = dataset([0], 0, [], Wire(1, 1, 1, 1), 3)
    metrics = xr.Dataset(coords={"seed": [0], "evaluated_round": [4]})
    assert with_compute(metrics, found, {"gradient_steps": np.ones((1, 3), int)})["gradient_steps"].values.tolist() == [
        [0]
    ]
