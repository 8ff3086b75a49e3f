"""The law of coalitions over the registry: ``python benchmarks/coalition_law.py --out results/DATE-coalition-law.md``.

A run on some of five clients is compared with the run of a federation that holds only these, in double precision. In
the first form the members are the first three clients, with drawn batches and cohorts of two; in the second form they
are others, with full batches and all members in each round, and with options with which nothing is drawn by id. The
cases are those of ``tests/laws/test_coalitions.py``; it needs the tests' packages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fljax.core.files import write
from fljax.testing.coalitions import CLOSE, OTHERS, ROUNDS, compare_with_members_alone, equals_its_members_alone
from tests.laws.coalition_cases import CASES, DRAWN, IN_ORDER, WITHOUT_DRAWS, whole, without_draws


class Line(NamedTuple):
    """What the two forms say of a case."""

    name: str
    first: str
    second: str
    options: str


def outcome(name: str, second: bool) -> str:
    """ "equal", or the sentence that says what differs."""
    try:
        if second:
            case, local = without_draws(name)
            compare_with_members_alone(case, OTHERS, local, None)
        else:
            equals_its_members_alone(whole(name))
    except AssertionError as error:
        return str(error).partition(" is ")[0] + " differs"
    return "equal"


def shown(value: Any) -> str:
    """A value; of a record, the fields that are not the default."""
    if not hasattr(value, "_field_defaults"):
        return str(value)
    changed = {key: entry for key, entry in value._asdict().items() if entry != value._field_defaults.get(key)}
    return f"{type(value).__name__}({', '.join(f'{key}={entry}' for key, entry in changed.items())})"


def line_of(name: str) -> Line:
    """Both forms of a case, or the reason why one is left out."""
    second = f"not compared: {DRAWN[name]}" if name in DRAWN else outcome(name, True)
    chosen = {} if name in DRAWN else WITHOUT_DRAWS.get(name, {})
    options = [f"{key} = {shown(value)}" for key, value in chosen.items()]
    return Line(name, outcome(name, False), second, ", ".join([*options, *(["rows in order"] * (name in IN_ORDER))]))


def table(lines: list[Line], seconds: float | None) -> str:
    """The report as Markdown; ``seconds`` are those of the cases of this process, None if it computed none."""
    spent = "" if seconds is None else f", {seconds:.0f} s in the last process"
    equal = [sum(getattr(line, form) == "equal" for line in lines) for form in ("first", "second")]
    rows = [f"| `{line.name}` | {line.first} | {line.second} | {line.options} |" for line in lines]
    return "\n".join(
        [
            f"# The law of coalitions over the registry, {datetime.date.today()}",
            "",
            *[part.strip() for part in (__doc__ or "").split("\n\n")[1:]],
            "",
            f"{ROUNDS} rounds of five clients, JAX {jax.__version__}, {jax.default_backend()}{spent}. "
            f"Equal: to {CLOSE:g} of the largest entry, all scores of members, unseen clients and server "
            "models, and measured contributions.",
            "",
            f"Equal in the first form: {equal[0]} of {len(lines)}; in the second: {equal[1]} of {len(lines)}, of which "
            f"{sum(line.name in DRAWN for line in lines)} are not compared.",
            "",
            "| case | first clients, drawn batches and cohorts | other clients, full batches | options of the latter |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Prints each case, and writes the table."""
    parser = argparse.ArgumentParser(description="The law of coalitions over the registry.")
    parser.add_argument("--only", help="names of cases, with commas between")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    parser.add_argument("--work", type=Path, help="of finished cases, a line each; the same command goes on after them")
    options = parser.parse_args()
    names = list(CASES) if options.only is None else options.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"expected cases among {', '.join(CASES)}, got {unknown[0]!r}")
    work: Path | None = options.work
    done: dict[str, Line] = {}
    if work is not None and work.exists():
        done = {line.name: line for line in (Line(*json.loads(text)) for text in work.read_text().splitlines())}
    began, missing = time.perf_counter(), not set(names) <= done.keys()
    for name in names:
        if name not in done:
            done[name] = line_of(name)
            if work is not None:
                write(work, "".join(f"{json.dumps(line)}\n" for line in done.values()).encode())
        print(*done[name], sep=" | ", flush=True)
    text = table([done[name] for name in names], time.perf_counter() - began if missing else None)
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
