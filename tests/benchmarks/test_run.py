"""Measurements by their names: the registry, options, files and checkouts."""

from __future__ import annotations

import importlib
import json
import math
import pathlib
import subprocess
import sys

import pytest

from benchmarks import cases, registry, reporting, run

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", registry.MEASUREMENTS)
def test_a_measurement_has_its_function_and_its_line(name: str) -> None:
    measurement = registry.MEASUREMENTS[name]
    module = importlib.import_module(f"benchmarks.{measurement.module}")
    assert callable(getattr(module, measurement.function))
    assert len(set(measurement.columns)) == len(measurement.columns)
    assert measurement.small.keys() <= measurement.options.keys()
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {measurement.sentence} |" in readme


def test_smallest_sizes_are_defaults() -> None:
    methods = registry.MEASUREMENTS["methods"]
    assert run.arguments(methods, []).passes == 5
    small = run.arguments(methods, ["--small", "--rounds", "7"])
    assert (small.passes, small.rounds, small.methods) == (1, 7, "incfl")
    assert run.arguments(registry.MEASUREMENTS["trials"], ["--small"]).no_run


def test_rows_are_saved(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="expected a known measurement, got 'speed'; valid names are throughput, "):
        run.main(["speed"])
    reporting.save(tmp_path / "a", "Speed", "python x", "How.", ("name", "rate"), [("b", 1234.5), ("c", math.nan)])
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert "| b | 1,234 |\n| c | - |" in text
    assert text.startswith("# Speed, 20")
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0] == {"name": "b", "rate": 1234.5}


def test_checkouts_are_folders_or_revisions(tmp_path: pathlib.Path) -> None:
    with cases.checkouts("") as alone:
        assert alone == {"after": ROOT}
    with cases.checkouts(str(ROOT)) as both:
        assert list(both.items()) == [("before", ROOT), ("after", ROOT)]
    with pytest.raises(SystemExit, match="expected a checkout of fljax or a revision"), cases.checkouts(str(tmp_path)):
        pass


def test_a_case_has_the_fljax_of_its_checkout(tmp_path: pathlib.Path) -> None:
    """The functions that measure are those of this checkout; a case that fails has a reason."""
    (tmp_path / "fljax").mkdir()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "fljax" / "__init__.py").write_text("raise RuntimeError('the other one')\n")
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    found = cases.apart("engine.compiled_memory:images", tmp_path, clients=2)
    assert found == {"failed": "RuntimeError: the other one"}


def test_without_a_name_all_are_listed() -> None:
    done = subprocess.run([sys.executable, "benchmarks/run.py"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(f"  {name} " in done.stdout for name in registry.MEASUREMENTS)
