"""``fljax design``: what it asks, prints and refuses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from fljax.experiments import design as experiment
from fljax.games import Interval, Utility, design_dataset
from tests.cli.test_worth import instead_of
from tests.games.mechanisms.designs import DESIGN
from tests.toys.command import call, printed

OVER = ("--over", "server_lr=0.5:3")


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A search that takes no time."""
    return instead_of(monkeypatch, tmp_path, experiment, {"found": design_dataset(DESIGN)})


def test_what_is_asked_and_printed(fake: dict[str, Any]) -> None:
    numbers = ("--pool", "8", "--validation", "4", "--fresh", "6", "--tolerance", "0.01,0.03", "--exchangeable")
    tuned = ("--over", "incfl.gap_scale=0.1:10:log", "--deviators", "1,0", "--cost", "0.1", "--outside", "none")
    out = printed("design", "tiny.toml", "--out", "x", *OVER, *numbers, *tuned)
    words = ("On fresh federations", "0.800 (0.780 to 0.820)", "no better than $plain", "What was found", "design.html")
    assert all(text in out for text in words), out
    asked = fake["question"]
    assert (asked.label, asked.budget_of_baselines, asked.deviations) == ("fedavg", 2_000, None)
    assert asked.over == {
        "fedavg": {"server_lr": Interval(0.5, 3.0)},
        "incfl": {"gap_scale": Interval(0.1, 10.0, True)},
    }
    expected = {"roles": False, "tolerance": (0.01, 0.03), "deviators": (0, 1), "outside": None, "objective": "mean"}
    assert expected.items() <= asked.settings.items()
    assert asked.settings["utility"] == Utility(None, 0.1)
    assert len(fake["config"].seeds) == 18


def test_json(fake: dict[str, Any]) -> None:
    code, out, err = call("design", "tiny.toml", "--out", "x", *OVER, "--json", "--no-report", "--objective", "nash")
    assert code == 0, err
    found = json.loads(out)
    assert found["design"]["mechanism"] == ["designed", "$plain", "fixed"]
    assert found["said"][-1] == "The search took 1,234 runs."
    assert found["design"]["epsilon_high"] == [[None]] * 3  # no certificates
    assert fake["question"].settings["objective"] == "nash"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --over OPTION=RANGE with an option of fedavg, got none"),
        (("--over", "incfl.gap_scale=1:2"), "expected --over OPTION=RANGE with an option of fedavg, got none"),
        (("--over", "server_lr"), "expected --over [LABEL.]OPTION=RANGE, got 'server_lr'; labels are fedavg, incfl"),
        (("--over", "other.server_lr=1:2"), "labels are fedavg, incfl"),
        (("--over", "server_lr=1"), "expected LOW:HIGH, LOW:HIGH:log or around:SCALE for --over"),
        (("--over", "server_lr=1:x"), "expected LOW:HIGH, LOW:HIGH:log or around:SCALE for --over"),
        (("--over", "server_lr=1:2:lin"), "expected LOW:HIGH, LOW:HIGH:log or around:SCALE for --over"),
        (("--over", "rate=1:2"), "rate"),
        (("--over", "clients_per_round=1.5:2.5"), "clients_per_round"),
        ((*OVER, "--algorithm", "other"), "'other'"),
        ((*OVER, "--seeds", "3"), "expected --pool, --validation and --fresh, which are the seeds, got seeds"),
        ((*OVER, "--set", "seeds=3"), "expected --pool, --validation and --fresh, which are the seeds, got seeds"),
        ((*OVER, *OVER), "expected one --over for each option, got two of server_lr of fedavg"),
        ((*OVER, "--tolerance", "x"), "expected --tolerance to be numbers with commas, got 'x'"),
        ((*OVER, "--objective", "total"), "'total'"),
        ((*OVER, "--deviators", "1,1"), "expected --deviators to be different ids"),
        ((*OVER, "--metric", "loss"), "expected --metric to be test_accuracy or test_loss, got 'loss'"),
    ],
)
def test_refusals(fake: dict[str, Any], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = call("design", "tiny.toml", "--out", "x", *arguments)
    assert (code, out) == (2, ""), err
    assert words in err
    assert err.count("\n") == 1
    assert "question" not in fake
