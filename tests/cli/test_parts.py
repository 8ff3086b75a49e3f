"""``fljax sweep --part`` and ``--join``: parts that start at once, go on, are refused, and are joined."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import subprocess
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax.config import dumps, load_grid
from fljax.core.files import locked
from fljax.experiments import sweep
from fljax.results import Results, folders
from tests import processes
from tests.processes import until
from tests.toys import command
from tests.toys.configs import BLOBS, config_text

CONFIG = config_text(
    BLOBS,
    "fedavg",
    "incfl",
    head='name = "tiny"\nrounds = 4\nevaluate_every = 2',
    standalone=2,
    more='[sweep]\ngrid = {"local.learning_rate" = [0.1, 0.2]}',
)
ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


call = functools.partial(command.call, "sweep")
WHOLE = ["tiny.toml", "--out", "out"]
PART = [*WHOLE, "--part"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[pathlib.Path]:
    """Sweeps that compute nothing: the folders in which they ran, with results of all their algorithms."""
    ran: list[pathlib.Path] = []

    def run(grid: Any, *, directory: pathlib.Path, resume: bool, **_: Any) -> sweep.Outcome:
        axes = [axis.name for axis in grid.axes]
        shape = [len(grid.config.algorithms), *(len(axis.values) for axis in grid.axes), 1]
        metrics = xr.Dataset(
            {
                "average_accuracy": (("algorithm", *axes, "seed", "evaluated_round"), np.full([*shape, 1], 0.5)),
                "diverged": (("algorithm", *axes, "seed"), np.full(shape, -1)),
            },
            {axis.name: np.array(axis.values) for axis in grid.axes}
            | {"algorithm": [each.label for each in grid.config.algorithms], "seed": [0], "evaluated_round": [4]},
            {"grid": sweep.paths(grid), "metric": "average_accuracy", "rounds": 4},
        )
        with folders.claim(directory, dumps(grid.config), resume, sweep.paths(grid)):
            folders.save_results(directory, Results(metrics, metrics.drop_vars(list(metrics))), dumps(grid.config))
        ran.append(directory)
        return sweep.Outcome(metrics, xr.Dataset(), ())

    monkeypatch.setattr(sweep, "run", run)
    return ran


def test_parts_run_once(place: pathlib.Path, quick: list[pathlib.Path]) -> None:
    first, _ = (sweep.folder_of(pathlib.Path("out"), number, 2) for number in (1, 2))
    code, out, err = call(*PART, "1/2")
    assert (code, out) == (0, "Part 1 of 2 is finished; to join all of them: fljax sweep --join out\n"), err
    assert call(*PART, "1/2") == (0, f"Part 1 of 2 is finished: its results are in {first}\n", "")
    found = json.loads(call(*PART, "1/2", "--json")[1])
    assert found == {"directory": str(first), "message": f"Part 1 of 2 is finished: its results are in {first}"}
    assert quick == [first]
    assert not (place / "out/results.nc").exists()
    assert folders.config_of(place / "out") == dumps(load_grid("tiny.toml").config)


def test_more_parts_than_cells(place: pathlib.Path, quick: list[pathlib.Path]) -> None:
    assert call(*PART, "6/6") == (0, "Part 6 of 6 has no cells: the sweep divides into 4 parts\n", "")
    assert json.loads(call(*PART, "5/6", "--json")[1])["directory"] is None
    assert call(*PART, "4/6")[0] == 0
    assert len(quick) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*PART, "1/3"], "expected a part of 2, as those in 'out' are, got 1/3"),
        ([*PART, "5/5"], "expected a part of 2, as those in 'out' are, got 5/5"),
        ([*PART, "1/2", "--set", "rounds=6"], "of the parts in 'out', got a changed one: rounds is 4 there and 6 here"),
        ([*PART, "2/2", "--grid", "local.learning_rate=0.1,0.3"], "the parts in 'out', got a changed one: sweep.grid."),
        (WHOLE, "expected --part I/2 or --join for the parts in 'out', got neither"),
        ([*WHOLE, "--resume"], "expected --part I/2 or --join for the parts in 'out', got neither"),
    ],
)
def test_other_commands_in_the_folder_of_parts(place, quick, arguments, sentence):
    assert call(*PART, "1/2")[0] == 0
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert len(quick) == 1


def test_folders_of_something_else(place: pathlib.Path, quick: list[pathlib.Path]) -> None:
    """A part overwrites no results of a whole sweep, and no config of the user's."""
    assert call("tiny.toml", "--out", "out", "--no-report", "--quiet")[0] == 0
    code, _, err = call(*PART, "1/2")
    assert (code, err) == (2, "fljax: expected a folder without results, got 'out', which holds results.nc\n")
    (place / "config.toml").write_text(CONFIG)
    code, _, err = call("config.toml", "--out", ".", "--part", "1/2")
    assert (code, err) == (2, "fljax: expected a folder without a config.toml that no run wrote, got '.'\n")
    assert (place / "config.toml").read_text() == CONFIG


@pytest.mark.in_turn
def test_unfinished_parts(place: pathlib.Path, quick: list[pathlib.Path]) -> None:
    """Those that are missing and one that runs are listed; what is whole is joined."""
    assert call(*PART, "3/4")[0] == 0
    running = sweep.folder_of(pathlib.Path("out"), 2, 4)
    with locked(running / folders.LOCK):
        found = call("--join", "out")
    words = "expected all 4 parts in 'out' to be finished, got 3 that are not; running now: 2"
    assert found == (1, "1-2,4\n", f"fljax: {words}\n")
    assert not (place / "out/results.nc").exists()
    assert call(*PART, "4/4")[0] == 0
    code, out, err = call("--join", "out", "--json")
    assert (code, json.loads(out)) == (1, {"directory": "out", "unfinished": [1, 2]})
    words = "expected all 4 parts in 'out' to be finished, got 2 that are not; joined are the results of incfl"
    assert err == f"fljax: {words}\n"
    assert folders.load_results(place / "out")[0]["algorithm"].values.tolist() == ["incfl"]


@pytest.mark.in_turn
def test_parts_that_are_not_ours(place: pathlib.Path, quick: list[pathlib.Path]) -> None:
    assert call(*PART, "1/2")[0] == 0
    (place / "out/parts/1-of-2/results.nc").write_bytes(b"damaged")
    for arguments in ([*PART, "1/2"], ["--join", "out"]):
        code, out, err = call(*arguments)
        assert (code, out, "to be a whole file, got a damaged one" in err) == (2, "", True)
    (place / "out/parts/1-of-3").mkdir()
    for arguments in ([*PART, "1/2"], ["--join", "out"]):
        code, _, err = call(*arguments)
        assert (code, "expected the parts of one division, got those of [2, 3] in 'out/parts'" in err) == (2, True)
    (place / "out/parts/1-of-3").rmdir()
    (place / "out/config.toml").unlink()
    code, _, err = call(*PART, "2/2")
    assert (code, "expected config.toml of the sweep beside its parts in 'out', got none" in err) == (2, True)
    assert (call("--join", "out")[0], len(quick)) == (2, 1)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    return processes.ended([process])[0]


def start(place: pathlib.Path, *words: str, code: str | None = None) -> subprocess.Popen[str]:
    return processes.command(place, "sweep", *words, code=code)


WITHOUT_JAX = """
import sys
from fljax.cli import main
try:
    main()
finally:
    from jax._src import xla_bridge
    assert not xla_bridge.backends_are_initialized(), "JAX has started"
"""


@pytest.mark.thorough
def test_parts_that_start_at_once(place: pathlib.Path) -> None:
    """In a new folder; joined without JAX, they are the sweep in one piece, with the environment of the parts."""
    whole = start(place, "tiny.toml", "--out", "whole", "--no-report", "--quiet")
    running = [start(place, *PART, f"{number}/3", "--quiet") for number in (1, 2, 3)]
    for process in (*running, whole):
        assert finished(process) == (0, "", "")
    code, out, err = finished(start(place, "--join", "out", "--json", code=WITHOUT_JAX))
    assert (code, err) == (0, "")
    assert {each["algorithm"] for each in json.loads(out)["best"]} == {"fedavg", "incfl"}
    assert (place / "out/report.html").is_file()
    for mine, theirs in zip(folders.load_results(place / "out"), folders.load_results(place / "whole"), strict=True):
        odd = [name for name in mine if str(name).startswith(("seconds_", "execution_"))]
        xr.testing.assert_allclose(mine.drop_vars(odd), theirs.drop_vars(odd), rtol=1e-4, atol=1e-5)
    part = json.loads((place / "out/parts/1-of-3/environment.json").read_text())
    assert json.loads((place / "out/environment.json").read_text()) == part | {"parts": [1, 2]}
    assert finished(start(place, *PART, "2/3"))[:2] == (
        0,
        "Part 2 of 3 is finished: its results are in out/parts/2-of-3\n",
    )


@pytest.mark.thorough
def test_a_part_whose_time_is_up(place: pathlib.Path) -> None:
    """It saves a checkpoint and ends with 143; the same command goes on. Meanwhile nobody else runs it."""
    long = ["--set", "rounds=1500", "--set", "evaluate_every=500", "--set", "local.steps=400"]
    words = [*PART, "1/2", *long, "--checkpoint-every", "0.2", "--quiet"]
    running = start(place, *words)
    until(running, lambda: list(place.glob("out/parts/1-of-2/checkpoints/*/*/rounds/round_*")))
    code, _, err = finished(start(place, *words))
    assert (code, "in which another run goes on" in err) == (2, True), err
    os.kill(running.pid, signal.SIGTERM)
    code, _, err = finished(running)
    assert (code, err.splitlines()[-1].endswith(f"to go on: fljax sweep {' '.join(words)}")) == (143, True), err
    code, out, err = finished(start(place, *words))
    assert (code, out) == (0, ""), err
    log = (place / "out/parts/1-of-2/log.jsonl").read_text()
    assert "goes on after round" in log
    assert "the edge of the grid" not in log  # which a part does not know


@pytest.mark.in_turn
@pytest.mark.parametrize(("ends_with", "queued"), [(143, True), (0, False), (1, False)])
def test_the_job_array_of_the_page(place: pathlib.Path, ends_with: int, queued: bool) -> None:
    """The part hears of Slurm's signal; its job is queued again if the part saved and ended, and only then."""
    page = (ROOT / "docs" / "howto" / "sweeps.md").read_text(encoding="utf-8")
    (place / "job.sh").write_text(page.split("```sh\n")[1].split("```")[0])
    commands = {
        "fljax": f"trap 'sleep 0.2; exit {ends_with}' TERM\necho \"$@\" > started\n"
        "for i in $(seq 200); do sleep 0.05; done",
        "scontrol": 'echo "$@" > queued',
    }
    for name, text in commands.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)
    slurm = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "77"}
    job = subprocess.Popen(
        ["bash", "job.sh"], env=os.environ | slurm | {"PATH": f"{place}:{os.environ['PATH']}"}, cwd=place, text=True
    )
    until(job, lambda: (place / "started").exists() and (place / "started").read_text(), 60)
    job.terminate()
    assert job.wait(60) == ends_with
    assert (place / "started").read_text() == "sweep sweep.toml --out runs/mine --part 3/16 --quiet\n"
    assert (place / "queued").exists() == queued
    if queued:
        assert (place / "queued").read_text() == "requeue 77\n"
