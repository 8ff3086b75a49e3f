"""``fljax sweep --launcher``: parts as jobs on this machine, which fail, are cancelled and go on."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import xarray as xr

from fljax.cli import launching
from fljax.config import dumps, load_grid, parse_grid
from fljax.experiments import sweep_parts
from tests.experiments.test_sweep import TINY

pytest.importorskip("submitit")


@pytest.fixture
def config(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    small: dict[str, Any] = TINY | {"rounds": 2, "evaluate_every": 2}
    path.write_text(dumps(parse_grid(small, name="tiny").config))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    from fljax.cli import main

    with pytest.raises(SystemExit) as end:
        main(arguments)
    found = capsys.readouterr()
    return int(end.value.code or 0), found.out, found.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--jobs", "2"], "expected --launcher with --jobs and --job-option, got none"),
        (["--launcher", "slurm"], "expected a machine that can start jobs of slurm, got: "),
        (["--launcher", "local", "--jobs", "0"], "expected --jobs to be at least 1, got 0"),
        (["--launcher", "local", "--job-option", "partition"], "expected --job-option NAME=VALUE, got 'partition'"),
        (["--launcher", "local", "--job-option", "bogus=1"], "expected options that submitit knows with --job-option"),
        (["--launcher", "local", "--job-option", "timeout_min=a"], "expected options that submitit knows"),
        (["--launcher", "local", "--tensorboard"], "expected no --tensorboard with --launcher, got both"),
    ],
)
def test_wrong_options(
    config: pathlib.Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    code, _, err = run(capsys, "sweep", str(config), "--out", "out", *options)
    assert code == 2
    assert sentence in err
    assert not pathlib.Path("out/config.toml").exists()


@pytest.mark.thorough
def test_a_failed_part_runs_again(config: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part whose folder another process holds fails; the rest is kept; --resume runs this part alone."""
    command = ["sweep", str(config), "--out", "out", "--launcher", "local", "--jobs", "2", "--no-report"]
    grid = load_grid(config)
    folder = sweep_parts.folder_of(pathlib.Path("out"), 1)
    folder.mkdir(parents=True)
    (folder / "results.nc").write_bytes(b"of something else")
    code, out, err = run(capsys, *command, "--resume")
    assert code == 2, (out, err)
    (folder / "results.nc").unlink()
    code, out, err = run(capsys, *command, "--resume", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {each["algorithm"] for each in found["best"]} == {"fedavg", "incfl"}
    parts = sweep_parts.split(grid, 2)
    assert sweep_parts.open_parts(parts, pathlib.Path("out")) == []
    code, out, err = run(capsys, *command, "--resume")
    assert (code, "2 parts, 0 to do; jobs none" in out) == (0, True), err
    code, out, err = run(capsys, *command)
    assert code == 2
    assert re.search("expected a folder without results, or --resume, got 'out', which holds results.nc", err)


@pytest.mark.thorough
def test_a_failed_part_leaves_the_others(config: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One algorithm of two cannot be built: the other's results are joined, and a sentence says why."""
    pathlib.Path("own_broken.py").write_text(
        "def broken(task, local, *, clients_per_round=None):\n    raise KeyError('nope')\n"
    )
    text = config.read_text().replace('name = "incfl"', 'name = "own_broken:broken"')
    text = re.sub(r'"algorithms.incfl.eps" = .*\n', "", text)
    # Two values, so that two parts have one algorithm each.
    config.write_text(re.sub(r"= \[0.02, 0.1, 0.3\]", "= [0.02, 0.1]", text))
    command = ["sweep", str(config), "--out", "out", "--launcher", "local", "--jobs", "2", "--no-report"]
    code, out, err = run(capsys, *command)
    assert code == 1, (out, err)
    assert "part 1 failed" in err
    assert "the builder raised KeyError: 'nope' (own_broken.py:2)" in err, err
    assert "Traceback" not in err
    with xr.open_dataset("out/results.nc", engine="h5netcdf") as found:
        assert found["algorithm"].values.tolist() == ["fedavg"]


def test_jobs_are_numbers_and_texts() -> None:
    job = launching.Job("folder", 0, 2, True, True, 30.0, 2)
    assert job._replace(number=1).number == 1
    assert all(isinstance(each, str | int | float) for each in job)
