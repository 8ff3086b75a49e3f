"""The table of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fljax.report.tables import title
from fljax.results.sweeps import VALIDATION, Best


def best_rows(found: Sequence[Best], metric: str, diverged: Mapping[str, str] | None = None) -> list[list[str]]:
    """The best cells as text: a row of headings, then one row for each algorithm and criterion.

    ``diverged`` has words about diverged runs by the label of their algorithm; a column shows them if there are any.
    """
    diverged = diverged or {}
    axes = list(found[0].cell) if found else []
    several = len({each.criterion for each in found}) > 1
    chosen = ["value chosen by"] if several else []
    rows = [["algorithm", "chosen by", *axes, *chosen, title(metric), *["diverged"] * bool(diverged)]]
    for each in found:
        cell = [number(each.cell[name]) + ("*" if name in each.edges else "") for name in axes]
        spread = "" if math.isnan(each.std) else f" ± {each.std:.3f}"
        by = "validation rows" if each.criterion in VALIDATION else "test rows"
        own = [f"{each.chosen_by:.3f}"] if several else []
        marks = [diverged.get(each.algorithm, "")] * bool(diverged)
        rows.append([each.algorithm, by, *cell, *own, f"{each.mean:.3f}{spread}", *marks])
    return rows


def number(value: Any) -> str:
    """A value of an axis as text; ``any`` for None."""
    if value is None:
        return "any"
    return f"{value:g}" if isinstance(value, float) else str(value)
