"""What commands of whole runs have in common: options that are refused, interruptions, and kills."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import games
from fljax.cli.running import CertifyOptions, DesignOptions, PlayOptions, WholeRunOptions, WorthOptions, changes_of
from fljax.engine.checkpoints import Stopped
from fljax.experiments import certify, design, worth
from fljax.results import folders
from tests.cli.test_worth import CONFIG
from tests.games.strategic.test_certificates import assert_equal
from tests.processes import environment
from tests.toys.command import call

COMMANDS: dict[str, Any] = {"worth": worth, "certify": certify, "design": design}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a config; whatever would run is interrupted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)

    def run(*_: Any, **__: Any) -> Any:
        raise Stopped(8, 16, 8, "runs")

    for experiment in COMMANDS.values():
        monkeypatch.setattr(experiment, "run", run)


@pytest.mark.parametrize("command", COMMANDS)
def test_interrupted(command: str) -> None:
    over = ["--over", "server_lr=1:2"] if command == "design" else []
    code, _, err = call(command, "tiny.toml", *over, "--quiet", "--out", "x")
    assert code == 143
    how = f"to go on: fljax {' '.join([command, 'tiny.toml', *over])} --quiet --out x --resume"
    assert err == f"fljax: interrupted; saved after 8 of 16 runs; {how}\n"


def test_each_option_is_of_one_value() -> None:
    for alone in (WorthOptions, CertifyOptions, DesignOptions):
        assert not set(alone._fields) & {*WholeRunOptions._fields, *PlayOptions._fields}
    assert changes_of(WholeRunOptions(["rounds=2"], seeds=3)) == ["rounds=2", "seeds=3"]


WAIT = 600
OPTIONS = {
    "worth": "--seeds 2",
    "certify": "--seeds 5 --candidates 3",
    "design": "--over server_lr=0.5:2 --pool 2 --resample 1 --validation 1 --fresh 5 --budget 400 --candidates 2 "
    "--deviators 0 --tolerance 0.5 --worse-off 1",
}


def start(place: pathlib.Path, command: str, *arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "fljax", command, "tiny.toml", *OPTIONS[command].split(), *arguments]
    own = environment() | {"FLJAX_COMPILATION_CACHE": str(place / "xla"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(program, cwd=place, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def same_tables(found: pathlib.Path, expected: pathlib.Path) -> str:
    """The tables are equal, and the values of clients add up; returns the config of the first folder's tables."""
    tables, others = (games.load(folder / worth.TABLES) for folder in (found, expected))
    for label, table in tables.tables.items():
        np.testing.assert_array_equal(table.values, others.tables[label].values)
        np.testing.assert_array_equal(table.payoffs, others.tables[label].payoffs)
        gain = table.values[:, -1] - table.values[:, 0]
        np.testing.assert_allclose(games.shapley(table).sum(axis=1), gain, atol=1e-15)
    return tables.config


def same_certificates(found: pathlib.Path, expected: pathlib.Path) -> str:
    """The certificates are equal; returns the config of those of the first folder."""
    certificates, others = (games.load_certificates(folder / folders.CERTIFICATES) for folder in (found, expected))
    for label, certificate in certificates.certificates.items():
        assert_equal(certificate, others.certificates[label], label)
        assert np.isfinite(certificate.gains.payoffs).all()
    return certificates.config


def same_designs(found: pathlib.Path, expected: pathlib.Path) -> str:
    """The designs are equal; returns the config of the first folder's design."""
    saved, other = (design.load_design(folder / folders.DESIGN) for folder in (found, expected))
    xr.testing.assert_identical(saved.design, other.design)
    return saved.config


def check_designed(printed: dict[str, Any]) -> None:
    assert printed["design"]["mechanism"] == ["designed", "fedavg", "incfl"]
    assert "The search took" in printed["said"][-1]


def check_certified(printed: dict[str, Any]) -> None:
    algorithms = printed["algorithms"]
    assert list(algorithms) == ["fedavg", "incfl", certify.CONTROL]
    assert "size times 10" in {cell["deviation"] for cell in algorithms["fedavg"]["cells"]}
    assert {"loss times 10", "threshold times 0"} <= {cell["deviation"] for cell in algorithms["incfl"]["cells"]}
    assert all(control["verdict"] == control["expected"] for control in algorithms["incfl"]["controls"])
    assert algorithms["incfl"]["attack"]["candidates"] == 3


def check_retrained(printed: dict[str, Any]) -> None:
    assert list(printed["algorithms"]) == ["fedavg", "incfl"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "blocks", "check", "same"),
    [
        ("worth", "worth/checkpoints/fedavg", check_retrained, same_tables),
        ("certify", "certify/checkpoints/fedavg/deviations", check_certified, same_certificates),
        ("design", "design/checkpoints/fedavg/0", check_designed, same_designs),
    ],
)
def test_killed_and_resumed(command, blocks, check, same, tmp_path):
    """The results are those of a run without an interruption."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(tmp_path, command, "--out", str(whole), "--json")
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    check(json.loads(out))

    process = start(tmp_path, command, "--out", str(killed), "--quiet")
    until = time.monotonic() + WAIT
    while process.poll() is None and not list((killed / blocks).rglob("runs-*.npz")):
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.communicate(timeout=WAIT)
    process = start(tmp_path, command, "--out", str(killed), "--resume")
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    assert same(killed, whole) == folders.config_of(killed)
    assert not (killed / command).exists()
