"""``benchmarks/accelerator.py``: its front door, its file of results, its rule for GPUs, and README's sentence."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.accelerators import tables
from benchmarks.accelerators.cells import CELLS
from fljax.core import gpu_rules

ROOT = pathlib.Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"
# Packages that a machine with an accelerator need not have.
ABSENT = ("pydantic", "h5netcdf", "h5py", "zarr", "filelock", "tensorflow_datasets", "typer", "click", "sklearn")
HIDE = f"""
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
PROGRAM = """
import numpy as np
import fljax
from fljax import algorithms, data, engine, models

blobs = data.load("blobs")
federation = data.federate(blobs, "dirichlet", clients=4, beta=1.0)
task = models.logistic_regression(blobs.x.shape[1:], blobs.classes)
local = fljax.Local(learning_rate=0.1, batch_size=8, steps=2)
fljax.simulate(algorithms.fedavg(task, local, clients_per_round=2), federation, rounds=1)
given = [{"task": task, "local": local._replace(learning_rate=rate)} for rate in (0.1, 0.2)]
plans = [engine.Plan(algorithms.fedavg, each) for each in given]
print(len(engine.sweep(plans, federation, rounds=1)))
"""


def call(out: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The script as a user calls it."""
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


@pytest.mark.thorough
def test_simulate_and_sweep_need_few_packages() -> None:
    done = subprocess.run([sys.executable, "-c", HIDE + PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("1,7", "expected a known part, got '7'; valid names are 1, 2, 3, 4, 5, 6"),
        ("one", "expected a known part, got 'one'; valid names are 1, 2, 3, 4, 5, 6"),
        (",", "expected at least one part, got none; valid names are 1, 2, 3, 4, 5, 6"),
    ],
)
def test_unknown_parts_are_refused(tmp_path: pathlib.Path, parts: str, sentence: str) -> None:
    done = call(tmp_path / "new", "--parts", parts)
    assert (done.returncode, done.stderr) == (1, sentence + "\n")
    assert not (tmp_path / "new").exists()


def test_an_out_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("kept")
    done = call(tmp_path / "file")
    assert (done.returncode, done.stderr) == (1, "expected --out to be a folder that can be written, got File exists\n")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            json.dumps({"rows": {"1/copy": {}}, "source": "other", "device": "A"}),
            "expected results of this code in --out, got those of another commit; take another folder",
        ),
        ("{", "expected accelerator.json to be results of this script, got a file that cannot be read"),
        ("[]", "expected accelerator.json to be results of this script, got something else"),
    ],
)
def test_other_results_are_not_overwritten(tmp_path: pathlib.Path, text: str, sentence: str) -> None:
    file = tmp_path / "accelerator.json"
    file.write_text(text)
    done = call(tmp_path)
    assert (done.returncode, done.stderr) == (1, sentence + "\n")
    assert file.read_text() == text


def test_a_rule_needs_results(tmp_path: pathlib.Path) -> None:
    done = call(tmp_path, "--write-rule")
    assert done.returncode == 1
    assert done.stderr.startswith("expected results in accelerator.json, got none")


@pytest.mark.thorough
def test_part_1_is_measured_and_goes_on_where_it_was_cut_off(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "accelerator.json"
    cut = call(tmp_path, "--parts", "1", "--small", "--seconds", "0.2")
    if not file.exists():  # cut off before the device was known: nothing is kept
        assert "nothing was measured" in cut.stdout
    done = call(tmp_path, "--parts", "1", "--seconds", "10", "--small")
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    rows = report["rows"]
    assert report["small"]
    assert set(rows) == {f"1/{name}" for name in (
        "memory", "copy", "product, highest", "product, default", "product, bfloat16", "empty step of a scan",
        "empty step of a while", "empty program",
    )}  # fmt: skip
    assert [key for key, row in rows.items() if "failed" in row] == ["1/memory"]  # a CPU reports none
    assert rows["1/copy"]["bandwidth"] > 1e8
    assert "8 of 8 cells" in done.stdout
    again = call(tmp_path, "--parts", "1", "--small")
    assert json.loads(file.read_text())["rows"] == rows
    assert "part 1, device" not in again.stdout  # nothing was left to do
    report["device"] = "another one"
    del report["rows"]["1/copy"]
    file.write_text(json.dumps(report))
    other = call(tmp_path, "--parts", "1", "--small")
    assert other.returncode == 1
    assert "got those of another one; take another folder" in other.stderr
    assert json.loads(file.read_text()) == report
    refused = call(tmp_path, "--write-rule")
    assert refused.stderr.startswith("expected results of a GPU at full size, got those of another one")


def _report(rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"device": "G", "platform": "gpu", "small": False, "date": "2026-12-01", "commit": "c", "versions": {}}
    return {**told, "rows": rows, **more}


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> gpu_rules.GpuRules:
    """Rules before any measurement."""
    rules = gpu_rules.GpuRules("estimates", 2**35, "grouped", "grouped", "elementwise")
    monkeypatch.setattr(gpu_rules, "read", lambda: rules)
    return rules


def test_the_rule_follows_the_fastest_form(estimates: gpu_rules.GpuRules) -> None:
    rows = {
        "3/lenet, 100 clients, grouped": {"rate": 100.0},
        "3/lenet, 100 clients, patches": {"rate": 200.0},
        "3/lenet, 100 clients, tiles": {"rate": 300.0},
        "3/lenet, 100 clients, tiles, windows": {"rate": 302.0},  # within the margin
        "3/resnet18, 10 clients, grouped": {"rate": 10.0},
        "3/resnet18, 10 clients, patches": {"failed": "out of memory"},
    }
    rule = tables.rule_of(_report(rows), "file.json")
    assert rule == gpu_rules.GpuRules("file.json", estimates.chunk_bytes, "tiles", "grouped", "elementwise")
    assert gpu_rules.parse(tables.rule_text(_report(rows), "file.json")) == rule


def test_a_form_that_was_cut_off_was_not_measured(estimates: gpu_rules.GpuRules) -> None:
    rows = {
        "3/resnet18, 10 clients, grouped": {"failed": "not finished in 45 s", "again": True},
        "3/resnet18, 10 clients, tiles": {"rate": 10.0},
    }
    assert tables.rule_of(_report(rows), "estimates") == estimates


@pytest.mark.usefixtures("estimates")
def test_of_forms_about_as_fast_the_one_with_less_memory_is_taken() -> None:
    rows = {
        "3/resnet18, 10 clients, grouped": {"rate": 1.0, "temporary": 1},
        "3/resnet18, 10 clients, patches": {"rate": 3.05, "temporary": 30},
        "3/resnet18, 10 clients, tiles": {"rate": 3.0, "temporary": 20},
    }
    assert tables.rule_of(_report(rows), "file.json").wide_convolution == "tiles"
    rows["3/resnet18, 10 clients, patches"]["rate"] = 3.2
    assert tables.rule_of(_report(rows), "file.json").wide_convolution == "patches"


@pytest.mark.usefixtures("estimates")
def test_a_new_form_is_judged_in_its_better_chunk() -> None:
    rows = {
        "3/lenet, 100 clients, grouped": {"rate": 100.0},
        "3/lenet, 100 clients, grouped, 10 at a time": {"rate": 300.0},
        "3/lenet, 100 clients, patches": {"rate": 200.0},
        "3/resnet18, 10 clients, grouped": {"failed": "out of memory"},
        "3/resnet18, 10 clients, patches": {"rate": 1.0},
    }
    rule = tables.rule_of(_report(rows), "file.json")
    assert (rule.narrow_convolution, rule.wide_convolution) == ("grouped", "patches")


def test_the_chunk_is_that_of_the_best_neighbours() -> None:
    def row(clients: int, lane: int, rate: float) -> dict[str, Any]:
        return {"clients": clients, "lane_bytes": lane, "rate": rate}

    names = ("W5", "W2 of 100")
    rows = {
        "5/W5, fljax": row(1000, 10, 90.0),
        "5/W5, fljax, a quarter": row(250, 10, 100.0),
        "5/W2 of 100, fljax": row(100, 25, 80.0),
        "5/W2 of 100, fljax, a quarter": row(25, 25, 60.0),
    }
    # 2,500 bytes: both at their best. More would put 1,000 clients of W5 side by side, less only 25 of W2.
    assert (tables.chunk_of(rows, 20_000, names), tables.chunk_of(rows, 2500, names)) == (2500, 2500)
    assert tables.chunk_of({"5/W5, fljax": row(1000, 10, 90.0)}, 7, names) == 7
    rows["5/W5, fljax, a quarter"]["rate"] = 91.0  # no clear gain
    assert tables.chunk_of(rows, 20_000, names) == 20_000


def test_the_summary_has_few_lines() -> None:
    keys = [cell.key for cell in CELLS]
    assert len(set(keys)) == len(keys)
    rows: dict[str, Any] = {key: {"failed": "out of memory"} for key in keys}
    for key in keys:
        if key.startswith("2/"):
            rows[key] = {"difference": 1e-3, "decisions": 9, "decisions_that_differ": 1}
        if key.startswith("6/"):
            rows[key] = {"idle_share": 0.5, "kernels": 9}
    for versions in (rows, {key: {"failed": "out of memory"} for key in keys}):
        lines = tables.summary(_report(versions), [1, 2, 3, 4, 5, 6])
        assert len(lines) <= 40
        assert lines[-1].startswith("W5: ")  # the trace, which comes last
    text = tables.markdown(_report({}))
    assert all(f"| {cell.name} | missing |" in text for cell in CELLS)


def test_readme_tells_the_newest_measurement(tmp_path: pathlib.Path) -> None:
    sentence = tables.readme_sentence(FOLDER / "results" / "current")
    assert sentence in " ".join((ROOT / "README.md").read_text().split())
    assert tables.readme_sentence(tmp_path) == tables.NO_GPU
    rows = {"5/W5, fljax": {"rate": 1234567.0}, "5/W2 of 100, fljax": {"failed": "out of memory"}}
    (tmp_path / "accelerator-g.json").write_text(json.dumps(_report(rows)))
    (tmp_path / "accelerator-cpu.json").write_text(json.dumps(_report(rows, platform="cpu")))
    assert tables.readme_sentence(tmp_path) == (
        "On one G (2026-12-01) fljax makes 1,234,567 client-steps/s with 1,000 MLPs side by side."
    )
