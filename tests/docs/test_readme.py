"""The numbers of README's tables are those of the results that it names."""

from __future__ import annotations

import pathlib
import re

from fljax.algorithms import REGISTRY

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_every_method_has_its_measured_time_of_a_round() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = re.findall(r"benchmarks/results/[\d-]+-methods\.md", readme)
    assert len(results) == 1
    measured = dict(re.findall(r"\| `(\w+)` \| [\d.]+ \| ([\d.]+) \|", (ROOT / results[0]).read_text(encoding="utf-8")))
    section = readme.split("## Methods")[1].split("\n## ")[0]
    printed: dict[str, float] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = [each.strip() for each in line.strip("|").split("|")]
            printed |= zip(re.findall(r"`(\w+)`", cells[0]), map(float, cells[2].split(", ")), strict=True)
    assert set(printed) == set(REGISTRY)
    for name, value in printed.items():
        assert abs(value - float(measured[name])) <= 0.0501, name


def test_the_table_of_speed_has_numbers_of_its_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = (ROOT / "benchmarks/results/2026-11-24-throughput-amd.md").read_text(encoding="utf-8")
    section = readme.split("## How fast")[1].split("\n## ")[0]
    numbers = re.findall(
        r"\d[\d,]*", " ".join(line for line in section.splitlines() if re.match(r"\| [^|]+\| [*\d]", line))
    )
    numbers = [each for each in numbers if len(each) > 2]
    assert len(numbers) >= 20
    known = set(re.findall(r"\d[\d,]*", results))
    assert set(numbers) <= known, set(numbers) - known
