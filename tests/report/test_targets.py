"""Rounds to a target as rows, as text, on a page and as files, of results by hand."""

from __future__ import annotations

import csv
import io
import math
import pathlib

import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import report
from fljax.cli import main
from fljax.results import Results, folders

NAN = np.nan
VALUES = [[[0.1, 0.6, 0.7], [0.2, 0.4, 0.9]], [[0.1, 0.2, 0.3], [0.1, 0.5, NAN]], [[0.1, 0.2, 0.3], [NAN] * 3]]
CONFIG = """rounds = 8
[data]
dataset = "blobs"
clients = 4
"""


def metrics() -> xr.Dataset:
    dims = ("algorithm", "seed", "evaluated_round")
    coordinates = {"algorithm": ["a", "b", "c"], "seed": [0, 1], "evaluated_round": [0, 4, 8]}
    values = np.array(VALUES)
    return xr.Dataset({"average_accuracy": (dims, values), "average_loss": (dims, 1 - values)}, coordinates)


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    folders.save_results(folder, Results(metrics(), xr.Dataset()), CONFIG)
    return folder


def test_rows_by_hand() -> None:
    first, second, third = report.to_target(metrics(), "average_accuracy", 0.5)
    assert first == report.Row("a", "average_accuracy", 6.0, math.sqrt(8), 2, 2, 8)
    assert second[:3] == ("b", "average_accuracy", 4.0)
    assert (second.seeds, second.of, third.seeds) == (1, 2, 0)
    assert math.isnan(third.mean)
    # Lower is better for losses.
    assert [row.mean for row in report.to_target(metrics(), "average_loss", 0.5)][:2] == [6.0, 4.0]


def test_the_cost_of_a_target_by_hand() -> None:
    """Bytes of the rounds until then, and their share of the seconds of all rounds; also by cell of a sweep."""
    made = metrics().assign(seconds_train=("algorithm", [8.0, 4.0, 1.0]), rounds_done=("algorithm", [8, 8, 8]))
    sent = (("algorithm", "seed", "round"), np.arange(48.0).reshape(3, 2, 8))
    run = fljax.Comparison("", made, xr.Dataset({"bytes_up": sent, "bytes_down": sent}), {})
    found = report.cost_to_target(run, "average_accuracy", 0.5)
    np.testing.assert_array_equal(found["rounds"], [[4, 8], [NAN, 4], [NAN, NAN]])
    np.testing.assert_array_equal(found["seconds"], [[4, 8], [NAN, 2], [NAN, NAN]])
    first, second = np.arange(4).sum(), np.arange(8, 16).sum()
    np.testing.assert_array_equal(
        found["bytes"], [[2 * first, 2 * second], [NAN, 2 * np.arange(24, 28).sum()], [NAN] * 2]
    )
    assert set(report.cost_to_target(made, "average_accuracy", 0.5)) == {"rounds", "seconds"}
    grid = {"grid": '{"rate": "local.learning_rate"}', "metric": "average_accuracy"}
    cells = [made.assign(diverged=(("algorithm", "seed"), np.full((3, 2), -1))), made.fillna(0.0) * 0]
    swept = xr.concat([cells[0], cells[1].assign(diverged=cells[0]["diverged"])], "rate").assign_coords(rate=[0.1, 0.2])
    by_cell = report.cost_to_target(swept.assign_attrs(grid), "average_accuracy", 0.5)["rounds"]
    np.testing.assert_array_equal(by_cell.sel(rate=0.1), found["rounds"])
    assert np.isnan(by_cell.sel(rate=0.2)).all()
    rows = report.to_target(swept.assign_attrs(grid), "average_accuracy", 0.5)
    assert [(row.algorithm, row.mean) for row in rows[:2]] == [("a (rate = 0.1)", 6.0), ("b (rate = 0.1)", 4.0)]


def test_words() -> None:
    assert report.target_lines(report.to_target(metrics(), "average_accuracy", 0.5), 0.5) == [
        ["algorithm", "rounds to Average accuracy >= 0.5"],
        ["a", "6.0 ± 2.8"],
        ["b", "4.0 (1 of 2 seeds)"],
        ["c", "not reached by round 8"],
    ]
    assert report.target_lines(report.to_target(metrics(), "average_loss", 2), 2)[0][1] == "rounds to Average loss <= 2"


def test_a_score_says_itself_whether_lower_is_better(tmp_path: pathlib.Path) -> None:
    scored = metrics().rename(average_loss="pooled_score_mae")
    scored["pooled_score_mae"].attrs["lower"] = 1
    assert [row.mean for row in report.to_target(scored, "pooled_score_mae", 0.5)][:2] == [6.0, 4.0]
    (tmp_path / "config.toml").write_text(CONFIG)
    folders.save_results(tmp_path, Results(scored, xr.Dataset()), CONFIG)
    _, page = report.write(tmp_path, targets={"pooled_score_mae": 0.5})
    assert "&lt;= 0.5</th>" in page.read_text()


@pytest.mark.parametrize(
    ("name", "target", "sentence"),
    [
        ("average_acuracy", 0.5, "got 'average_acuracy' .did you mean 'average_accuracy'"),
        ("average_accuracy", NAN, "expected a finite target of average_accuracy, got nan"),
    ],
)
def test_refused(name: str, target: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        report.to_target(metrics(), name, target)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    written = capsys.readouterr()
    return stopped.value.code, written.out, written.err


def test_export(run: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ("--target", "average_accuracy=0.5", "--target", "average_loss=0.2")
    code, out, _ = called(capsys, "export", str(run), "--csv", *targets)
    lines = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [line["rounds"] for line in lines] == ["6.0", "4.0", "", "8.0", "", ""]
    assert [line["seeds_reached"] for line in lines] == ["2", "1", "0", "1", "0", "0"]
    code, out, _ = called(capsys, "export", str(run), "--latex", *targets)
    assert code == 0
    assert "  c & not reached by round 8 & not reached by round 8 \\\\" in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--csv", "--target", "average_accuracy"), "expected --target METRIC=VALUE with a number"),
        (("--csv", "--target", "average_accuracy=much"), "got 'average_accuracy=much'"),
        (("--csv", "--target", "a=1", "--target", "a=2"), "once for a metric, got 'a=2'"),
        (("--csv", "--target", "a=1", "--metric", "a"), "and no --metric, got it with --metric"),
        (("--pdf", "--target", "a=1"), "expected --target with --latex or --csv"),
    ],
)
def test_refused_by_the_command(run, capsys, arguments, sentence):
    code, _, err = called(capsys, "export", str(run), *arguments)
    assert code == 2
    assert sentence in " ".join(err.split())


def test_page(run: pathlib.Path) -> None:
    _, page = report.write(run, targets={"average_accuracy": 0.5})
    text = page.read_text()
    assert "<h2>Rounds to a target</h2>" in text
    assert "<td>not reached by round 8</td>" in text
    assert "Rounds to a target" not in report.write(run)[1].read_text()
