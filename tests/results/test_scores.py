"""Scores in results: which clients lack one, in words."""

from __future__ import annotations

import numpy as np
import xarray as xr

from fljax.results.records import names_of, without_value
from fljax.results.sweeps import best


def _metrics(values: list[list[float]]) -> xr.Dataset:
    losses = np.array([[0.1, 0.2, np.nan], [0.1, np.inf, np.nan]])  # the last client has no test rows
    by_client = ("seed", "evaluated_round", "client")
    variables = {
        "test_loss": (by_client, losses[:, None]),
        "score_auroc": (by_client, np.array(values)[:, None]),
        "pooled_score_auroc": (("seed", "evaluated_round"), np.ones((2, 1))),
    }
    return xr.Dataset(variables)


def test_clients_without_a_score_are_counted() -> None:
    nan = float("nan")
    told = without_value(_metrics([[nan, 0.5, nan], [nan, nan, nan]]))
    assert told == [
        "score_auroc is NaN for 2 of 3 clients in some seed: their test rows have one class only, or outputs are not "
        "finite"
    ]
    assert without_value(_metrics([[0.1, 0.5, nan], [0.2, 0.3, nan]])) == []
    assert names_of(_metrics([[0.1, 0.5, nan], [0.2, 0.3, nan]])) == ["auroc"]


def test_the_best_cell_is_the_least_where_lower_is_better() -> None:
    axes = ("rate", "algorithm", "seed", "evaluated_round")
    errors = np.array([0.3, 0.1, 0.2]).reshape(3, 1, 1, 1)
    variables = {
        "pooled_score_mae": (axes, errors, {"lower": 1}),
        "average_score_own": (axes, errors, {"lower": 0}),
        "diverged": (axes[:3], np.full((3, 1, 1), -1)),
        "rounds_done": (axes[:2], np.full((3, 1), 4)),
    }
    coordinates = {"rate": [1.0, 2.0, 3.0], "algorithm": ["a"], "seed": [0], "evaluated_round": [4]}
    metrics = xr.Dataset(variables, coordinates, {"grid": '{"rate": "local.learning_rate"}'})
    assert best(metrics, "pooled_score_mae")[0].cell == {"rate": 2.0}
    assert best(metrics, "average_score_own")[0].cell == {"rate": 1.0}
