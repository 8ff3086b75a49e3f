"""What is committed of certificates."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from benchmarks.papers.certificates import cells_as_csv, document, rounded, summary_of
from fljax import games
from tests.games.played import GAINS, unilateral


@pytest.fixture(scope="module")
def saved() -> games.SavedCertificates:
    attack = games.Attack(1, (("own", 2.5),), 50, 0.4, 0.3, 0.2, 0.4)
    control = games.Control("known", "VIOLATED", "VIOLATED", 1.0, 0.9, 1.1)
    first = games.certificate(unilateral(GAINS, outside=0.545), tolerance=0.01)
    second = games.certificate(unilateral(GAINS, outside=None), tolerance=0.01)
    return games.SavedCertificates({"a": first._replace(attack=attack, controls=(control,)), "b": second}, "", "1.0")


def test_short_numbers() -> None:
    assert rounded({"a": [0.1234567, 3, None, "x", np.float64(1) / 3]}) == {"a": [0.12346, 3, None, "x", 0.33333]}


def test_a_summary_has_each_deviation_with_its_worst_client(saved: games.SavedCertificates) -> None:
    summary = summary_of(saved.certificates["a"])
    (row,) = summary["deviations"]
    assert (row["deviation"], row["client"], row["gain"]) == ("lie", 0, 0.015)
    assert row["any_client"] == {"low": -0.00093, "high": 0.03093}
    assert row["expected"]["mean"] == pytest.approx(saved.certificates["a"].bounds.mean.mean(), abs=1e-5)
    assert row["expected"]["low"] < row["expected"]["mean"] < row["expected"]["high"]
    assert row["verdicts"] == {"CERTIFIED": 2, "INCONCLUSIVE": 1}
    assert (row["loss"], row["welfare"]) == (0.0015, 0.012)
    assert row["participation"] == 0.06667  # with seed 1 it joins then
    assert summary["irrational"]["share"] == 0.33333
    assert summary["worst"] == {"deviation": "lie", "client": 0, "gain": 0.015}
    assert summary["attack"]["strategy"] == {"own": 2.5}
    assert summary_of(saved.certificates["b"])["irrational"] is None


def test_the_committed_files(saved: games.SavedCertificates) -> None:
    committed = json.loads(json.dumps(document(saved, {"config": "x"}, {"a": [60.04, 90.5]})))
    setting = committed["setting"]
    assert (setting["config"], setting["seeds"], setting["clients"]) == ("x", 5, 3)
    spent = [(entry["seconds"], entry["cpu_seconds"]) for entry in committed["mechanisms"].values()]
    assert spent == [(60.04, 90.5), (None, None)]
    lines = list(csv.DictReader(io.StringIO(cells_as_csv(saved))))
    assert len(lines) == 6
    assert [float(lines[0][f"seed_{seed}"]) for seed in range(5)] == pytest.approx(GAINS[:, 0].tolist())
    assert (lines[5]["algorithm"], lines[5]["client"], lines[5]["verdict"]) == ("b", "2", "CERTIFIED")
