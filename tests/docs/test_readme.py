"""The numbers of README's tables are those of the results that it names."""

from __future__ import annotations

import json
import pathlib
import re

from fljax.algorithms import REGISTRY

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_every_method_has_its_measured_time_of_a_round() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = re.findall(r"benchmarks/results/current/methods\.md", readme)
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
    results = (ROOT / "benchmarks/results/current/throughput.md").read_text(encoding="utf-8")
    section = readme.split("## How fast")[1].split("\n## ")[0]
    numbers = re.findall(
        r"\d[\d,]*", " ".join(line for line in section.splitlines() if re.match(r"\| [^|]+\| [*\d]", line))
    )
    numbers = [each for each in numbers if len(each) > 2]
    assert len(numbers) >= 20
    known = set(re.findall(r"\d[\d,]*", results))
    assert set(numbers) <= known, set(numbers) - known


def test_what_the_certificates_say() -> None:
    """Riding free loses everywhere; the README names everything that pays in expectation, and how verdicts are."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for words in (
        "half of the verdicts are VIOLATED at .01, and none is CERTIFIED.",
        "riding free loses under each of them where training costs nothing.",
        "length pays under FedAvg, INCFL, MW-Fed, q-FFL, AFL, IAFL and IP-FL; two or ten times the loss under q-FFL",
        "and AFL; two or ten times the size under FedAvg by size and IP-FL.",
    ):
        assert words in readme
    pays, verdicts = set[tuple[str, str]](), list[str]()
    for name in ("fmnist_dirichlet", "fmnist_groups"):
        path = ROOT / f"benchmarks/results/certificates/{name}.json"
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
        own = {label: rows for label, rows in gains.items() if "control" not in label}
        pays |= {(name, label) for label, rows in own.items() for name, row in rows.items() if row["low"] > 0}
        verdicts += [mechanisms[label]["verdict"] for label in own]
    assert (len(verdicts), verdicts.count("VIOLATED"), verdicts.count("CERTIFIED")) == (22, 11, 0)
    longer = {"fedavg", "fedavg_uniform", "incfl", "mwfed", "qffl", "afl", "iafl", "ipfl"}
    expected = {("update", label) for label in longer} | {("loss", "qffl"), ("loss", "afl")}
    expected |= {("size", "fedavg"), ("size", "ipfl")}
    assert {(name.split(" times ")[0], label) for name, label in pays} == expected
    assert {name.split(" times ")[1] for name, _ in pays} <= {"2", "4", "10"}
