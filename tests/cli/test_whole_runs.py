"""What ``fljax worth`` and ``fljax certify`` have in common: options that are refused, and interruptions."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from fljax.cli.options import CertifyOptions, WholeRunOptions, WorthOptions
from fljax.engine.checkpoints import Stopped
from fljax.experiments import certify, worth
from tests.cli.test_worth import CONFIG
from tests.toys.command import call

COMMANDS: dict[str, Any] = {"worth": worth, "certify": certify}


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
    code, _, err = call(command, "tiny.toml", "--quiet", "--out", "x")
    assert code == 143
    how = f"to go on: fljax {command} tiny.toml --quiet --out x --resume"
    assert err == f"fljax: interrupted; saved after 8 of 16 runs; {how}\n"


def test_each_option_is_of_one_value() -> None:
    alone = {*WorthOptions._fields, *CertifyOptions._fields}
    assert not alone & set(WholeRunOptions._fields)
    assert WholeRunOptions(["rounds=2"], seeds=3).changes == ["rounds=2", "seeds=3"]
