"""``fljax worth``: what it asks, prints and writes; ``test_whole_runs.py`` kills it and goes on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.experiments import worth as experiment
from fljax.results.events import Event
from tests.games.known import THREE_SEEDS, comparison_of, table_of
from tests.toys.command import call, printed
from tests.toys.configs import config_text

CONFIG = config_text(
    'dataset = "blobs"\npartition = "iid"\nclients = 3', "fedavg", "incfl", head='name = "tiny"\nrounds = 3'
)


def instead_of(monkeypatch: pytest.MonkeyPatch, place: pathlib.Path, experiment: Any, told: dict[str, Any]) -> Any:
    """A folder with a config; an experiment there takes no time, returns ``told["found"]``, and adds what is asked."""

    def run(config: Any, question: Any, *, directory: pathlib.Path, resume: bool, on_event: Any, saving: Any) -> Any:
        told.update(config=config, question=question, directory=directory, resume=resume)
        directory.mkdir(parents=True, exist_ok=True)
        on_event(Event("train", "fedavg", 8, 24, 1.0, "about 2 s left"))
        return told["found"]

    monkeypatch.chdir(place)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (place / "tiny.toml").write_text(CONFIG)
    monkeypatch.setattr(experiment, "run", run)
    return told


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Retraining that takes no time; ``tables`` and ``estimators`` may be changed."""
    answer = experiment.Answer({"fedavg": table_of(THREE_SEEDS)}, {})
    return instead_of(monkeypatch, tmp_path, experiment, {"found": answer, **answer._asdict()})


@pytest.mark.in_turn
def test_the_table_and_the_files(fake: dict[str, Any]) -> None:
    out = printed("worth", "tiny.toml", "--out", "x", "--seeds", "3")
    words = (
        "fedavg: what clients are worth",
        "Shapley",
        "±",
        "sum",
        "v(S) is average_accuracy",
        "Results: x",
        "worth.png",
    )
    assert all(each in out for each in words), out
    assert fake["config"].seeds == (0, 1, 2)
    assert {path.name for path in pathlib.Path("x").iterdir()} >= {"worth.csv", "worth.png", "worth.html"}


def test_the_question(fake: dict[str, Any]) -> None:
    asked = ["--value", "average_loss", "--among", "0+2, 1,none", "--baseline", "0.1", "--max-runs", "7", "--resume"]
    assert call("worth", "tiny.toml", "--out", "x", "--quiet", "--no-report", *asked)[:2] == (0, "")
    assert fake["question"] == experiment.Question("average_loss", [[0, 2], [1], []], 0.1, max_runs=7)
    assert fake["resume"]
    assert not pathlib.Path("x", "worth.png").exists()
    call("worth", "tiny.toml", "--out", "x", "--among", "leave_one_out", "--no-report")
    assert fake["question"].among == "leave_one_out"


def test_json(fake: dict[str, Any]) -> None:
    gone = np.zeros((3, 8), bool)
    gone[1, 5] = True
    values = np.where(gone, np.nan, THREE_SEEDS)
    fake["tables"]["b"] = table_of(values, diverged=gone, notes="4 of 8 runs have few members")
    code, out, err = call("worth", "tiny.toml", "--out", "x", "--json", "--quiet", "--no-report")
    assert code == 1
    assert err == "fljax: b: 1 run of 24 diverged and has no value: {0, 2} with seed 1; all is saved in x\n"
    found = json.loads(out)["algorithms"]
    client = found["fedavg"]["clients"][1]
    assert client["name"] == "b"
    assert client["shapley"]["mean"] == pytest.approx(games.shapley(table_of(THREE_SEEDS)).mean(axis=0)[1])
    assert found["fedavg"]["laws"]["superadditivity"]["violations"] > 0
    assert found["b"]["clients"][0]["shapley"]["mean"] is None
    assert (found["fedavg"]["notes"], found["b"]["notes"]) == ("", "4 of 8 runs have few members")
    assert found["b"]["diverged"] == [{"seed": 1, "coalition": "{0, 2}"}]


def test_estimators(fake: dict[str, Any]) -> None:
    table = fake["tables"]["fedavg"]
    fake["estimators"]["fedavg"] = comparison_of(table, ipss=games.shapley(table))
    asked = ["--estimators", "ipss, digfl", "--no-report"]
    out = printed("worth", "tiny.toml", "--out", "x", *asked)
    assert fake["question"].estimators == ["ipss", "digfl"]
    assert "fedavg: estimators beside retraining" in out
    assert pathlib.Path("x", "estimators.csv").read_text().count("fedavg,ipss,") == 3
    out = printed("worth", "tiny.toml", "--out", "y", "--estimators", "all", "--json", "--no-report")
    assert fake["question"].estimators == "all"
    entry = json.loads(out)["algorithms"]["fedavg"]["estimators"]["ipss"]
    assert (entry["kendall"], entry["trainings"]) == ([1, 1, 1], 7)
    assert len(entry["worth"]) == 3
