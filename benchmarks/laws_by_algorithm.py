"""The laws that hold for each algorithm, by kind of test: ``python benchmarks/laws_by_algorithm.py --against FOLDER``.

The tests of ``tests/laws`` are collected in two checkouts, and not run. A law is a test function. One
whose parameters name an algorithm counts for it; one that names an algorithm in scenarios, such as
``byzantine(fedavg)``, counts apart. A law that has quick cases of an algorithm counts as quick, even if other cases are
thorough; one of thorough cases counts as thorough, even if others are slow.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from throughput import RESULTS

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"quick": "not slow and not thorough", "thorough": "thorough and not slow", "slow": "slow"}
NAMES = "import fljax.algorithms as a; print(*a.REGISTRY)"
Laws = dict[str, dict[str, str]]  # by algorithm and law: the kind


class Found(NamedTuple):
    """The laws of one checkout: of algorithms, and of algorithms in scenarios."""

    bare: Laws
    in_scenarios: Laws


def laws(source: Path) -> Found:
    """What a checkout has."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    told = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, env=environment, cwd=source)
    found = Found({name: {} for name in told.stdout.split()}, {name: {} for name in told.stdout.split()})
    for kind, words in KINDS.items():
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-m",
            words,
            "-p",
            "no:cacheprovider",
            "tests/laws",
        ]
        listed = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=source).stdout
        for law, case in re.findall(r"^tests/laws/\w+\.py::(\w+)\[(.+)\]$", listed, re.MULTILINE):
            for names, known in zip(found, named(case, found.bare), strict=True):
                for name in known:
                    names[name].setdefault(law, kind)
    return found


def named(case: str, algorithms: Laws) -> tuple[set[str], set[str]]:
    """The algorithms that the parameters of a test name, and those that they name in scenarios."""
    words = set(re.findall(r"\w+", case)) & algorithms.keys()
    inner = set(re.findall(r"\((\w+)\)", case)) & algorithms.keys()
    return words - inner, inner


def table(before: Laws, after: Laws) -> list[str]:
    """Numbers of laws, and the names of those that are lost."""
    lines = ["| algorithm | quick, slow before | quick, thorough, slow after | lost |", "|---|---|---|---|"]
    for name in after:
        old, new = before.get(name, {}), after[name]
        counts = [
            ", ".join(str(list(kinds.values()).count(kind)) for kind in chosen)
            for kinds, chosen in ((old, ("quick", "slow")), (new, KINDS))
        ]
        lines.append(f"| {name} | {' | '.join(counts)} | {', '.join(sorted(old.keys() - new.keys())) or 'none'} |")
    return lines


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-laws-by-algorithm.md")
    options = parser.parse_args()
    before, after = laws(options.against.resolve()), laws(ROOT)
    lines = [
        "# Laws by algorithm",
        "",
        f"{datetime.date.today()}. `python benchmarks/laws_by_algorithm.py --against FOLDER`. The program says what is",
        "counted. Before, quick tests were all that are not slow; there were no thorough ones.",
        "",
        *table(before.bare, after.bare),
        "",
        "The same, for algorithms in scenarios:",
        "",
        *table(before.in_scenarios, after.in_scenarios),
    ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
