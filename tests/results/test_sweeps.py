"""A best cell is chosen among cells with the same data and the same model."""

from __future__ import annotations

import json
import math

import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from fljax.report import sweep_picture
from fljax.report.tables import best_cell_rows
from fljax.results.clients import gain_shares, gains_at_best
from fljax.results.sweeps import best

PATHS = ["data.alpha", "model.width", "local.rate", "algorithms.0.mu"]
SHAPE = {"algorithm": 2, "a": 2, "b": 3, "seed": 2, "evaluated_round": 1, "client": 2}


def sweep(accuracy: np.ndarray, paths: list[str]) -> xr.Dataset:
    grid, scalar = dict(zip("ab", paths, strict=True)), ("algorithm", "a", "b", "seed", "evaluated_round")
    alone = accuracy[0, ..., 0, :] / 2
    variables = {
        "test_accuracy": ((*scalar, "client"), accuracy),
        "standalone_test_accuracy": (("a", "b", "seed", "client"), alone),
        "test_loss": ((*scalar, "client"), 1 - accuracy),
        "standalone_test_loss": (("a", "b", "seed", "client"), 1 - alone),
        "average_accuracy": (scalar, accuracy.mean(axis=-1)),
        "diverged": (scalar[:-1], np.full(accuracy.shape[:4], -1)),
    }
    coordinates = {"algorithm": ["fedavg", "incfl"], "a": [0.1, 0.5], "b": [1, 2, 3], "evaluated_round": [9]}
    return xr.Dataset(variables, coordinates, {"grid": json.dumps(grid), "metric": "average_accuracy"})


@given(seed=st.integers(0, 2**20), paths=st.lists(st.sampled_from(PATHS), min_size=2, max_size=2, unique=True))
def test_the_best_cells_are_those_of_each_problem_alone(seed: int, paths: list[str]) -> None:
    whole = sweep(np.random.default_rng(seed).random(tuple(SHAPE.values())), paths)
    problems = [name for name, path in zip("ab", paths, strict=True) if path in PATHS[:2]]
    parts = [whole.isel({name: [place]}) for name in problems[:1] for place in range(whole.sizes[name])] or [whole]
    parts = [
        part.isel({name: [at]}) for part in parts for name in problems[1:] for at in range(part.sizes[name])
    ] or parts
    for found in (
        lambda of: best(of, "average_accuracy"),
        gains_at_best,
        gain_shares,
        lambda of: best_cell_rows(of)[0],
    ):
        apart = [each for part in parts for each in found(part)]
        assert [str(each) for each in found(whole)] == [str(each) for each in apart]
    assert len(best(whole, "average_accuracy")) == 2 * math.prod(whole.sizes[name] for name in problems)


def test_a_picture_has_a_frame_in_each_problem() -> None:
    made = sweep(np.random.default_rng(0).random(tuple(SHAPE.values())), ["data.alpha", "local.rate"])
    assert [len(axes.patches) for axes in sweep_picture(made).axes[:2]] == [2, 2]
    apart = made.assign_attrs(grid=json.dumps({"a": "data.alpha", "b": "model.width"}))
    assert [len(axes.patches) for axes in sweep_picture(apart).axes[:2]] == [0, 0]  # nothing was chosen
    third = xr.concat([made, made], "c").assign_coords(c=[4, 8])
    wider = third.assign_attrs(grid=json.dumps({"a": "local.rate", "b": "local.steps", "c": "model.width"}))
    assert sweep_picture(wider).get_suptitle() == "c = 4"
