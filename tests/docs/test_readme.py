"""The numbers of README's tables are those of the results that it names."""

from __future__ import annotations

import json
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
    results = (ROOT / "benchmarks/results/2026-11-28-throughput.md").read_text(encoding="utf-8")
    section = readme.split("## How fast")[1].split("\n## ")[0]
    numbers = re.findall(
        r"\d[\d,]*", " ".join(line for line in section.splitlines() if re.match(r"\| [^|]+\| [*\d]", line))
    )
    numbers = [each for each in numbers if len(each) > 2]
    assert len(numbers) >= 20
    known = set(re.findall(r"\d[\d,]*", results))
    assert set(numbers) <= known, set(numbers) - known


def test_what_the_certificates_say() -> None:
    """Riding free loses everywhere; long updates pay under three mechanisms, and large losses under q-FFL."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "riding free loses under each of them; an update of four times its length pays under FedAvg," in readme
    assert "INCFL and MW-Fed, and a loss of ten times its value under q-FFL." in readme
    documents = sorted((ROOT / "benchmarks/results/certificates").glob("*.json"))
    assert len(documents) == 2
    for path in documents:
        mechanisms = json.loads(path.read_text(encoding="utf-8"))["mechanisms"]
        gains = {
            label: {row["deviation"]: row["expected"] for row in entry["deviations"]}
            for label, entry in mechanisms.items()
        }
        riding = {
            (label, name): gains[label][name]["high"]
            for label in gains
            for name in ("zero rider", "delta rider", "disguised rider")
            if name in gains[label]  # who receives several models has no last change to echo
        }
        assert len({label for label, _ in riding}) == 11
        assert max(riding.values()) < 0, path
        assert min(gains[label]["update times 4"]["low"] for label in ("fedavg", "incfl", "mwfed")) > 0, path
        assert gains["qffl"]["loss times 10"]["low"] > 0, path
