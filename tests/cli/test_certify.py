"""``fljax certify``: what it asks, prints and writes; ``test_whole_runs.py`` kills it and goes on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from fljax import games
from fljax.experiments import certify as experiment
from fljax.games import Utility
from fljax.scenarios import ByReport, Strategy
from tests.cli.test_worth import CONFIG, instead_of
from tests.games.played import GAINS, unilateral
from tests.toys.command import call, printed


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Deviations that take no time; ``found`` may be changed."""
    certificate = games.certificate(unilateral(GAINS, outside=0.545), tolerance=0.01)
    return instead_of(monkeypatch, tmp_path, experiment, {"found": {"fedavg": certificate}})


def test_the_table_and_the_files(fake: dict[str, Any]) -> None:
    out = printed("certify", "tiny.toml", "--out", "x", "--seeds", "5")
    words = ("fedavg: does it pay to deviate?", "lie", "INCONCLUSIVE at 0.01", "Results: x", "certificates.html")
    assert all(text in out for text in words), out
    first = "fedavg: 33.3 % of the clients have less than without joining"
    assert out.startswith(first)  # before anything else
    assert (fake["config"].seeds, fake["question"]) == ((0, 1, 2, 3, 4), experiment.Question())
    names = {path.name for path in pathlib.Path("x").iterdir()}
    assert names >= {"certificates.csv", "certificates.html", "certificate_fedavg.png"}


def test_the_control_says_whether_it_is_flagged(fake: dict[str, Any]) -> None:
    for shift, words in ((0.5, "The control is flagged, as it should be."), (0.0, "The control is not flagged:")):
        entry = games.certificate(unilateral(GAINS + shift, outside=None), tolerance=0.1)
        fake["found"] = {experiment.CONTROL: entry}
        _, out, _ = call("certify", "tiny.toml", "--out", "x", "--no-report")
        assert words in out, out
        assert "less than without joining" not in out


def test_what_was_left_out_is_said(fake: dict[str, Any]) -> None:
    """Of a deviation, and of an algorithm that reads none."""
    why = "which never reads size (it asks for no report)"
    fake["found"] = {"fedavg": fake["found"]["fedavg"]._replace(left_out=(("inflated", why),))}
    _, out, _ = call("certify", "tiny.toml", "--out", "x")
    words = " ".join(out.split())
    assert f"Deviation 'inflated' is left out for fedavg, {why}." in words
    assert "incfl has no certificate: it reads none of the deviations." in words
    page = pathlib.Path("x", "certificates.html").read_text()
    assert "is left out for fedavg" in page
    assert "incfl has no certificate" in page
    _, out, _ = call("certify", "tiny.toml", "--out", "x", "--json", "--no-report")
    assert json.loads(out)["algorithms"]["fedavg"]["left_out"] == {"inflated": why}
    assert json.loads(out)["without_certificate"] == ["incfl"]


def test_the_question(fake: dict[str, Any]) -> None:
    asked = ["--tolerance", "0.02", "--deviations", "zero rider, update times 2", "--metric", "test_loss", "--cost"]
    asked += ["0.1", "--price", "0.5", "--confidence", "0.9", "--method", "max_t", "--candidates", "0", "--no-control"]
    asked += ["--token-budget=30", "--max-runs=7", "--resume", "--identities=3", "--deviators=2, 0", "--outside=none"]
    assert call("certify", "tiny.toml", "--out", "x", "--quiet", "--no-report", *asked)[:2] == (0, "")
    names = ("zero rider", "update times 2")
    utility = Utility("test_loss", 0.1, 0.5, 30)
    assert fake["question"] == experiment.Question(0.02, names, utility, 0.9, "max_t", 3, 0, False, 7, (0, 2), None)
    assert fake["resume"]
    assert not pathlib.Path("x", "certificates.html").exists()
    pathlib.Path("lies.toml").write_text('["a lie"]\nown = 2\nfactor = {loss = 0.5}\n')
    call("certify", "tiny.toml", "--out", "x", "--no-report", "--deviations", "lies.toml")
    assert fake["question"].deviations == {"a lie": Strategy(own=2, factor=ByReport(loss=0.5))}


def test_json(fake: dict[str, Any]) -> None:
    attack = games.Attack(1, (("own", 2.5),), 50, 0.4, 0.3, 0.2, 0.4)
    control = games.Control("known", "VIOLATED", "VIOLATED", 1.0, 0.9, 1.1)
    other = games.certificate(unilateral(GAINS, outside=None), tolerance=0.05)
    fake["found"]["b"] = other._replace(attack=attack, controls=(control,))
    code, out, err = call("certify", "tiny.toml", "--out", "x", "--json", "--quiet", "--no-report")
    assert (code, err) == (0, "")
    algorithms = json.loads(out)["algorithms"]
    first = algorithms["fedavg"]
    assert next(iter(first)) == "irrational"
    assert (first["irrational"]["share"], first["outside"]) == (pytest.approx(1 / 3), "given")
    assert first["harmful"]["cell"] == 0
    assert (first["verdict"], first["seeds_needed"], algorithms["b"]["verdict"]) == ("INCONCLUSIVE", 51, "CERTIFIED")
    cell = first["cells"][0]
    assert (cell["client"], cell["deviation"], cell["verdict"]) == (0, "lie", "INCONCLUSIVE")
    assert (cell["gain"]["mean"], cell["by_seed"]) == (pytest.approx(0.015), pytest.approx(GAINS[:, 0].tolist()))
    assert cell["participation"]["mean"] == pytest.approx(1 / 15)  # with seed 1 it joins then
    assert "participation" not in algorithms["b"]["cells"][0]
    assert algorithms["b"]["irrational"] is None
    assert (algorithms["b"]["attack"]["strategy"], algorithms["b"]["controls"][0]["name"]) == ({"own": 2.5}, "known")


def test_few_seeds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    code, _, err = call("certify", "tiny.toml", "--out", "x", "--quiet", "--seeds", "4")
    assert (code, err) == (2, "fljax: seeds: expected at least 5 for a certificate, got 4\n")
