"""What ``fljax worth`` and ``fljax certify`` have in common: options that are refused, and interruptions."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from fljax.cli.options import CertifyOptions, WholeRunOptions, WorthOptions
from fljax.engine.checkpoints import Stopped
from fljax.experiments import certify, worth
from tests.cli.test_worth import CONFIG, call

COMMANDS: dict[str, Any] = {"worth": worth, "certify": certify}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a config; whatever would run is interrupted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    (tmp_path / "bad.toml").write_text("own = 2\n")
    (tmp_path / "key.toml").write_text("[lie]\nowns = 2.0\n")

    def run(*_: Any, **__: Any) -> Any:
        raise Stopped(8, 16, 8, "runs")

    for experiment in COMMANDS.values():
        monkeypatch.setattr(experiment, "run", run)


@pytest.mark.parametrize("command", COMMANDS)
def test_interrupted(command: str, capsys: Any) -> None:
    code, _, err = call(capsys, command, "tiny.toml", "--quiet", "--out", "x")
    assert code == 143
    how = f"to go on: fljax {command} tiny.toml --quiet --out x --resume"
    assert err == f"fljax: interrupted; saved after 8 of 16 runs; {how}\n"


@pytest.mark.parametrize(
    ("command", "option", "words"),
    [
        ("worth", ["--among", "0-1"], "expected --among to be leave_one_out, or coalitions of client numbers"),
        ("worth", ["--among", ""], "expected --among to be leave_one_out, or coalitions of client numbers"),
        ("worth", ["--baseline", "zero"], "expected --baseline to be initial, chance or a number, got 'zero'"),
        ("worth", ["--max-runs", "0"], "expected --max-runs to be at least 1, got 0"),
        ("worth", ["--value", "no_module:f"], "no_module"),
        ("worth", ["--value", "module:f", "--no-import"], "module:f"),
        ("worth", ["--estimators", "shaply"], "expected one of the estimators"),
        ("certify", ["--tolerance", "-1"], "expected --tolerance to be at least 0, got -1.0"),
        ("certify", ["--confidence", "1"], "expected --confidence to be between 0 and 1, got 1.0"),
        ("certify", ["--method", "hoeffding"], "expected --method to be bonferroni or max_t, got 'hoeffding'"),
        ("certify", ["--metric", "accuracy"], "expected --metric to be test_accuracy or test_loss, got 'accuracy'"),
        ("certify", ["--candidates", "-1"], "expected --candidates to be a whole number of at least 0, got -1"),
        ("certify", ["--identities", "0"], "expected --identities to be a whole number of at least 1, got 0"),
        ("certify", ["--max-runs", "0"], "expected --max-runs to be a whole number of at least 1, got 0"),
        (
            "certify",
            ["--deviators", "0,-1"],
            "expected --deviators to be different ids with commas, got '0,-1'",
        ),
        (
            "certify",
            ["--deviators", "1, 1"],
            "expected --deviators to be different ids with commas, got '1, 1'",
        ),
        ("certify", ["--deviations", "zero ridr"], "got 'zero ridr' (did you mean 'zero rider'?)"),
        ("certify", ["--deviations", "none.toml"], "expected 'none.toml' to be readable, got: No such file"),
        ("certify", ["--deviations", "bad.toml"], "a table of numbers for each deviation of 'bad.toml', got own = 2"),
        ("certify", ["--deviations", "key.toml"], "lie"),
        *((command, ["--set", "round=3"], "round") for command in COMMANDS),
        *((command, ["--seeds", "0"], "seeds") for command in COMMANDS),
    ],
)
def test_bad_options_are_refused_before_anything_runs(command: str, option: list[str], words: str, capsys: Any) -> None:
    code, out, err = call(capsys, command, "tiny.toml", "--out", "x", *option)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err


def test_each_option_is_of_one_value() -> None:
    alone = {*WorthOptions._fields, *CertifyOptions._fields}
    assert not alone & set(WholeRunOptions._fields)
    assert WholeRunOptions(["rounds=2"], seeds=3).changes == ["rounds=2", "seeds=3"]
