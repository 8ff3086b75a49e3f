"""``fljax worth``: what it asks, prints and writes, and a run that is killed and goes on."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.experiments import worth as experiment
from fljax.results import folders
from fljax.results.events import Event
from tests.games.known import THREE_SEEDS, comparison_of, table_of
from tests.processes import command, ended, until
from tests.toys.command import call
from tests.toys.configs import config_text

CONFIG = config_text(
    'dataset = "blobs"\npartition = "iid"\nclients = 3', "fedavg", "incfl", head='name = "tiny"\nrounds = 3'
)


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with a config, and retraining that takes no time; ``tables`` may be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    told: dict[str, Any] = {"tables": {"fedavg": table_of(THREE_SEEDS)}, "comparisons": {}}

    def run(config: Any, question: Any, *, directory: pathlib.Path, resume: bool, on_event: Any, saving: Any) -> Any:
        told.update(config=config, question=question, directory=directory, resume=resume)
        directory.mkdir(parents=True, exist_ok=True)
        on_event(Event("train", "fedavg", 8, 24, 1.0, "about 2 s left"))
        return experiment.Answer(told["tables"], told["comparisons"])

    monkeypatch.setattr(experiment, "run", run)
    return told


@pytest.mark.in_turn
def test_the_table_and_the_files(fake: dict[str, Any]) -> None:
    code, out, _ = call("worth", "tiny.toml", "--out", "x", "--seeds", "3")
    assert code == 0
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
    fake["comparisons"]["fedavg"] = comparison_of(table, ipss=games.shapley(table))
    asked = ["--estimators", "ipss, digfl", "--no-report"]
    code, out, _ = call("worth", "tiny.toml", "--out", "x", *asked)
    assert code == 0
    assert fake["question"].estimators == ["ipss", "digfl"]
    assert "fedavg: estimators beside retraining" in out
    assert pathlib.Path("x", "estimators.csv").read_text().count("fedavg,ipss,") == 3
    code, out, _ = call("worth", "tiny.toml", "--out", "y", "--estimators", "all", "--json", "--no-report")
    assert fake["question"].estimators == "all"
    entry = json.loads(out)["algorithms"]["fedavg"]["estimators"]["ipss"]
    assert (entry["kendall"], entry["trainings"]) == ([1, 1, 1], 7)
    assert len(entry["worth"]) == 3


# --- A run of its own --------------------------------------------------------------------------------------------


def whole_and_killed(place: pathlib.Path, name: str, *words: str) -> tuple[dict[str, Any], pathlib.Path, pathlib.Path]:
    """What a command says in JSON, its folder, and that of the same command which was killed and went on."""
    (place / "tiny.toml").write_text(CONFIG)
    whole, killed = place / "whole", place / "killed"
    start = functools.partial(command, place, name, "tiny.toml", *words)
    ((code, out, err),) = ended([start("--out", str(whole), "--json")])
    assert code == 0, err
    process = start("--out", str(killed), "--quiet")
    until(process, lambda: list((killed / name / "checkpoints" / "fedavg").rglob("runs-*.npz")))
    process.kill()
    process.communicate()
    ((code, _, err),) = ended([start("--out", str(killed), "--resume")])
    assert code == 0, err
    assert not (killed / name).exists()
    return json.loads(out)["algorithms"], whole, killed


@pytest.mark.thorough
def test_killed_and_resumed(tmp_path: pathlib.Path) -> None:
    """The tables are those of a run without an interruption, and the values of clients add up."""
    found, whole, killed = whole_and_killed(tmp_path, "worth", "--seeds", "2")
    assert list(found) == ["fedavg", "incfl"]
    expected, tables = (games.load(folder / experiment.TABLES) for folder in (whole, killed))
    assert folders.config_of(killed) == tables.config
    for label, table in tables.tables.items():
        np.testing.assert_array_equal(table.values, expected.tables[label].values)
        np.testing.assert_array_equal(table.payoffs, expected.tables[label].payoffs)
        gain = table.values[:, -1] - table.values[:, 0]
        np.testing.assert_allclose(games.shapley(table).sum(axis=1), gain, atol=1e-15)
