"""The tables of rules by attacks have the means of the cells that were run."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from docs.generator.certificates import certified_from
from tests.docs.test_pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("page", ["benchmarks/results/2026-11-30-robust.md", "docs/howto/attacks.md"])
def test_the_tables_of_rules_have_the_means_of_their_cells(page: str) -> None:
    cells: dict[tuple[str, str], list[float]] = {}
    with (RESULTS / "2026-11-30-robust.csv").open() as file:
        for row in csv.DictReader(file):
            cells.setdefault((row["config"], row["rule"]), []).append(float(row["accuracy"]))
            cells.setdefault((row["config"], row["rule"] + row["attack"]), []).append(float(row["success"] or "nan"))
    lines = re.findall(r"^\| `(\w+)` \| (\..*) \|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == (24 if page.startswith("b") else 12)
    for place, (rule, numbers) in enumerate(lines):
        config = "fmnist_iid" if len(lines) - place > 12 else "fmnist_dirichlet"
        means = [*np.reshape(cells[config, rule], (8, 3)).mean(axis=1), np.mean(cells[config, f"{rule}backdoor"])]
        assert [float(number) for number in numbers.split(" | ")] == pytest.approx(means, abs=0.006)
        assert [float(number) for number in numbers.split(" | ")[:-1]] == pytest.approx(means[:-1], abs=0.0006)


def test_the_table_of_lies_has_the_numbers_of_the_certificates() -> None:
    robust, riders = (
        json.loads((RESULTS / "certificates" / f"fmnist_groups_{name}.json").read_text())["mechanisms"]
        for name in ("robust", "riders")
    )
    page = (ROOT / "docs" / "howto" / "attacks.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\| `(\w+)` \| (0\..*) \|$", page, re.MULTILINE))
    assert set(lines) == set(riders)
    for rule, line in lines.items():
        gains = [
            {row["deviation"]: row["expected"]["mean"] for row in of[rule]["deviations"]} for of in (robust, riders)
        ]
        payoff, certified, *shown = line.split(" | ")
        expected = [robust[rule]["payoff"], gains[0]["update times 4"], *(each["zero rider"] for each in gains)]
        assert [float(payoff), *map(float, shown)] == pytest.approx(expected, abs=0.0006)
        assert certified == certified_from(robust[rule])
    assert [rule for rule, entry in robust.items() if entry["verdict"] == "CERTIFIED"] == ["geometric_median"]
