"""The laws that hold for each algorithm, by kind of test: ``python benchmarks/laws_by_algorithm.py --against FOLDER``.

The tests of ``tests/laws`` are collected in two checkouts, and not run. A law is a test function. It counts for what
its parameters name: an algorithm, a variant such as ``iafl_cosine``, or an algorithm in scenarios, such as
``byzantine(fedavg)``, of which all are joined. A law of several cases counts as its quickest one. Laws without such a
name are in the row of no algorithm. Some laws look at what an algorithm declares, and run nothing.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

from throughput import RESULTS

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"quick": "not slow and not thorough", "thorough": "thorough and not slow", "slow": "slow"}
# What a checkout calls its cases: algorithms, toys, variants.
NAMES = "from tests.laws import cases; print(*cases.CASES, *cases.ALGORITHMS, *cases.PAIRS)"
NONE = "no algorithm"
Laws = dict[str, dict[str, str]]  # by name and law: the kind


def told(source: Path, *words: str, allowed: tuple[int, ...] = (0,)) -> str:
    """What Python prints in a checkout.

    Raises:
      SystemExit: unless it ends with an allowed code.
    """
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=source)
    if done.returncode not in allowed:
        raise SystemExit(
            f"expected {' '.join(words)} to work in {source}, got {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return done.stdout


def laws(source: Path) -> Laws:
    """Those of one checkout."""
    names = set(re.findall(r"\w+", told(source, "-c", NAMES)))
    found: Laws = collections.defaultdict(dict)
    for kind, words in KINDS.items():
        arguments = ("-m", "pytest", "--collect-only", "-q", "-m", words, "tests/laws")
        listed = told(source, *arguments, allowed=(0, 5))  # 5: there are none
        for law, case in re.findall(r"^tests/laws/\w+\.py::(\w+)(?:\[(.+)\])?$", listed, re.MULTILINE):
            for name in named(case, names):
                found[name].setdefault(law, kind)
    return found


def named(case: str, names: set[str]) -> set[str]:
    """What the parameters of a test name."""
    inner = set(re.findall(r"\((\w+)\)", case)) & names
    if inner:
        return {f"{name}, in scenarios" for name in inner}
    return set(re.findall(r"\w+", case)) & names or {NONE}


def table(before: Laws, after: Laws) -> list[str]:
    """Numbers of laws, and the names of those that are lost."""
    heads = [f"{kind} {when}" for when in ("before", "after") for kind in KINDS]
    lines = [f"| | {' | '.join(heads)} | quick before, and not now | lost |", f"|---|{'---:|' * len(heads)}---:|---|"]
    for name in sorted(before.keys() | after.keys(), key=lambda name: ("scenarios" in name, name)):
        old, new = before.get(name, {}), after.get(name, {})
        counts = [list(kinds.values()).count(kind) for kinds in (old, new) for kind in KINDS]
        later = sum(kind == "quick" and new.get(law) != "quick" for law, kind in old.items())
        lost = ", ".join(sorted(old.keys() - new.keys())) or "none"
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {later} | {lost} |")
    return lines


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-laws-by-algorithm.md")
    options = parser.parse_args()
    sources = options.against.resolve(), ROOT
    words = ["git", "rev-parse", "--short", "HEAD"]
    commits = [subprocess.run(words, cwd=each, capture_output=True, text=True).stdout.strip() for each in sources]
    command = "python benchmarks/laws_by_algorithm.py --against FOLDER"
    lines = [
        "# Laws by algorithm",
        "",
        f"{datetime.date.today()}. `{command}`, which says what is counted.",
        f"Before: commit {commits[0]}. After: a change of commit {commits[1]}.",
        "",
        *table(*map(laws, sources)),
    ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
