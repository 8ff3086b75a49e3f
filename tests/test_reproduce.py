"""Published tables, and ours beside them."""

from __future__ import annotations

import csv
import math
import pathlib

import numpy as np
import pytest
import xarray as xr

from fljax import reproduce

FOLDER = pathlib.Path(reproduce.__file__).parent / "published"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.csv")))
def test_every_table_can_be_read(name):
    with open(FOLDER / f"{name}.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = reproduce.read(name)
    assert len(rows) == len(lines) > 0
    assert {row.split for row in rows} <= {"seen", "unseen"}
    assert all(row.metric in reproduce.METRICS for row in rows)
    assert all(math.isfinite(row.mean) for row in rows)
    assert name in reproduce.tables()
    assert all(float(line["mean"]) == row.mean for line, row in zip(lines, rows, strict=True))


def test_rows_of_one_setting():
    rows = reproduce.select(["maxfl_table2_byzantine"], "FMNIST", "byz=0.05")
    assert {row.partition for row in rows} == {"5 clusters x 2 labels; byz=0.05"}
    assert {row.algorithm for row in rows} == {"MW-Fed", "MaxFL"}
    with pytest.raises(ValueError, match=r"expected rows about FMNIST, byz=0\.5, got none; there are EMNIST, "):
        reproduce.select(["maxfl_table2_byzantine"], "FMNIST", "byz=0.5")
    with pytest.raises(ValueError, match=r"expected one of the tables incfl_table1_unseen, .*, got '\.\./secret'"):
        reproduce.read("../secret")


def test_ours_stand_beside_theirs():
    dims = ("algorithm", "seed", "evaluated_round")
    share = np.array([[[0.0, 0.5], [0.0, 0.7]], [[0.0, 0.1], [0.0, np.nan]]])
    metrics = xr.Dataset(
        {
            "incentivised_participation_rate": (dims, share),
            "unseen_preferred_model_accuracy": (dims, share),
        },
        {"algorithm": ["incfl", "qffl_q1"], "seed": [0, 1], "evaluated_round": [0, 9]},
    )
    rows = reproduce.select(["incfl_table4_fair", "incfl_table1_unseen"], "FMNIST")
    found = {(c.published.algorithm, c.published.metric, c.published.split): c for c in reproduce.beside(metrics, rows)}
    ours = found["INCFL", "IPR", "seen"]
    assert (ours.published.mean, ours.mean) == (0.55, pytest.approx(0.6))
    assert ours.std == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert found["INCFL", "pref_model_test_acc_pct", "unseen"].mean == pytest.approx(60)
    assert found["q-FFL(q=1)", "IPR", "seen"].mean == pytest.approx(0.1)  # the finite seed
    assert math.isnan(found["q-FFL(q=10)", "IPR", "seen"].mean)  # not run
    assert math.isnan(found["INCFL", "IPR", "unseen"].mean)  # not evaluated


def test_numbers_as_they_are_printed():
    assert reproduce.number(0.5549, 0.005, "IPR") == "0.55 ± 0.01"
    assert reproduce.number(70.86, 2.18, "avg_test_acc_pct") == "70.9 ± 2.2"
    assert reproduce.number(0.5, math.nan, "IPR") == "0.50"
    assert reproduce.number(math.nan, math.nan, "IPR") == "–"
