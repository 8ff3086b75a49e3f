"""The tables of mechanisms have the numbers of the searches."""

from __future__ import annotations

import ast
import csv
import re

import numpy as np
import pytest

from tests.docs.test_pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("page", ["benchmarks/results/2026-11-30-mechanisms.md", "docs/howto/mechanisms.md"])
def test_the_tables_have_the_numbers_of_the_searches(page: str) -> None:
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    with (RESULTS / "2026-11-30-mechanisms.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["setting"], {}).setdefault(row["mechanism"], []).append(row)
    lines = re.findall(
        r"^\| ([a-z_ ]+) \| (0\.\d+) \([^)]*\) \| (.*) \|$", (ROOT / page).read_text("utf-8"), re.MULTILINE
    )
    assert len(lines) == (34 if page.startswith("b") else 13)
    for place, (label, accuracy, rest) in enumerate(lines[:26]):  # behind these is Fashion-MNIST
        by_label = found["roles" if place < 13 else "alike"]
        own, designed = (
            np.array([ast.literal_eval(row["objective"]) for row in by_label[of]]) for of in (label, "designed")
        )
        assert float(accuracy) == pytest.approx(own.mean(), abs=6e-4)
        cells = [cell.strip() for cell in rest.split("|")]
        if label != "designed":
            assert float(cells[0].split(" ")[0]) == pytest.approx((designed - own).mean(), abs=6e-4)
        regrets, ends = cells[2:4] if page.startswith("b") else cells[1:3]
        told = [float(row["regret"]) for row in by_label[label]]
        assert [float(regret) for regret in regrets.split("; ")] == pytest.approx(told, abs=6e-4)
        marks = {"CERTIFIED": " C", "VIOLATED": " V", "INCONCLUSIVE": ""}
        for end, row in zip(ends.split("; "), by_label[label], strict=True):
            assert float(end.split(" ")[0]) == pytest.approx(ast.literal_eval(row["ends"])[1], abs=6e-4)
            assert end.endswith(marks[row["verdict"]] or end)
