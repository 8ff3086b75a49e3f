"""Two forms of fljax in interleaved pairs: ``python benchmarks/pairs.py``.

Each workload runs in two processes, which take turns (one is halted while the other runs). Of every pair of turns the
ratio of the two times is kept. The table gives the median ratio with a 95 % interval (bootstrap over pairs), that of
the processes' CPU-seconds, and by how much the resident memory of both processes grew over all turns, which have as
many rounds in both. CPU-seconds include what a call does before its first round.

Without further arguments, the first form is fljax as it is, and the second is compiled without YNNPACK's fused
kernels: on several CPU devices the heap grows with them while a program runs.
The workloads ``coalitions``, ``table`` and ``certify`` are whole calls of ``fljax.games`` in place of rounds.
With ``--against FOLDER`` the first form is the fljax of another checkout, and the second is that of this one. With
``--host`` examples and the states of clients are on the device in the first form and on the host in the second.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Entrant, enter, export
from throughput import RESULTS, hardware
from workers import OWN, Contestant, WorkerError
from workloads import WORKLOADS, Workload

_STEP: dict[str, Any] = {"clients": 2, "cohort": 2, "samples": 8, "distinct": 16, "batch": 8}
GAMES = ("coalitions", "table", "certify")
CHOSEN = {name: WORKLOADS[name] for name in ("W1a", "W1b", "W2", "W3", "W3r", "W5", *GAMES)} | {
    "ResNet18": WORKLOADS["W4"]._replace(
        name="ResNet18", title="ResNet18 with GroupNorm on 32x32x3, 2 of 2 clients, 1 step of 8", **_STEP
    ),
    "ragged": WORKLOADS["W1a"]._replace(
        name="ragged", title="as W1a, but clients' shares of the rows are drawn from Dirichlet(0.5)", spread=0.5
    ),
}
USUAL = ("W1a", "W1b", "W2", "W3", "ResNet18")


class Question(NamedTuple):
    """What is compared: the two forms, and their names in the table."""

    title: str
    names: tuple[str, str]
    contestants: tuple[Contestant, Contestant]
    file: str


def question(against: Path | None, devices: str, host: bool) -> Question:
    """The question that the command line asks."""
    options = ("--clients", "auto", "--devices", devices)

    def form(name: str, *more: str) -> Contestant:
        return Contestant(name, "fljax", OWN, "fljax_.py", ((*options, *more),), tuple(CHOSEN))

    if host:
        forms = form("device"), form("host", "--host")
        return Question("Data on the device and on the host", ("device", "host"), forms, f"host-data-{devices}")
    if against is None:
        names = ("with", "without")
        forms = form("with fused kernels"), form("without", "--unfused")
        return Question("fljax with and without YNNPACK's fused kernels", names, forms, "fused-kernels")
    names = ("before", "after")
    forms = form("before", "--source", str(against.resolve())), form("after")
    return Question("fljax before and after a change", names, forms, f"before-after-{devices}")


def main() -> None:
    """Measures workload after workload, and writes the table after each."""
    parser = argparse.ArgumentParser(description="Two forms of fljax, in interleaved pairs.")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, which is the first form")
    parser.add_argument("--host", action="store_true", help="data on the device beside data on the host")
    parser.add_argument("--devices", choices=("1", "all"), default="all", help="cores of the CPU that are devices")
    parser.add_argument("--workloads", default=",".join(USUAL), help=f"comma-separated, among {', '.join(CHOSEN)}")
    parser.add_argument("--pairs", type=int, default=40, help="of turns, for each workload")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one turn")
    parser.add_argument("--rounds", type=int, help="of one turn, instead of as many as take the seconds")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    if options.against is not None and not (options.against / "fljax" / "__init__.py").is_file():
        raise SystemExit(f"expected a checkout of fljax, got {str(options.against)!r}")
    asked = question(options.against, options.devices, options.host)
    out = options.out or RESULTS / f"{datetime.date.today()}-{asked.file}.md"
    names = options.workloads.split(",")
    unknown = [name for name in names if name not in CHOSEN]
    if unknown:
        raise SystemExit(f"expected a known workload, got {unknown[0]!r}; valid names are {', '.join(CHOSEN)}")
    machine, rows, versions = hardware(), list[str](), dict[str, str]()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="fljax-pairs-") as scratch:
            try:
                row, found = measure(asked, CHOSEN[name], options, Path(scratch))
                versions |= found
            except WorkerError as reason:
                row = f"| {name} | skipped: {reason} | | | | | | | | |"
        rows.append(row)
        print(row, flush=True)
        write(out, asked, rows, versions, machine, options)
    print(f"saved: {out.name} in {out.parent.name}/")


class Turns(NamedTuple):
    """What both forms took, pair by pair."""

    seconds: list[tuple[float, float]]
    processor: list[tuple[float, float]]  # CPU-seconds


def measure(
    asked: Question, workload: Workload, options: argparse.Namespace, scratch: Path
) -> tuple[str, dict[str, str]]:
    """One row of the table, and the versions of packages."""
    file = export(workload, scratch)
    entrants: list[Entrant] = []
    versions: dict[str, str] = {}
    try:
        for contestant in asked.contestants:
            found, versions = enter(contestant, sys.executable, workload, file, scratch, options.seconds, print)
            entrants.append(found)
        rounds = options.rounds or min(each.rounds for each in entrants)
        before = [each.worker.resident() for each in entrants]
        if options.rounds is not None:  # programs may depend on the number
            turns(entrants, rounds, 1)
        spent = turns(entrants, rounds, options.pairs)
        grown = [(each.worker.resident() - had) / 2**20 for each, had in zip(entrants, before, strict=True)]
    finally:
        for each in entrants:
            each.worker.close()
    times = [statistics.median(column) / rounds * 1e3 for column in zip(*spent.seconds, strict=True)]
    cells = [workload.name, workload.title, f"{times[0]:.2f}", f"{times[1]:.2f}"]
    cells += [ratio(spent.seconds), ratio(spent.processor)]
    steps = workload.client_steps * rounds * options.pairs
    cells += [f"{entrants[0].first_round:.1f} / {entrants[1].first_round:.1f}"]
    cells += [f"{grown[0]:+.0f}", f"{grown[1]:+.0f}", f"{steps:,}"]
    return "| " + " | ".join(cells) + " |", versions


def turns(entrants: list[Entrant], rounds: int, pairs: int) -> Turns:
    """The seconds of both in each pair; who begins is drawn."""
    order, spent = random.Random(0), Turns([], [])
    for _ in range(pairs):
        seconds, processor = [0.0, 0.0], [0.0, 0.0]
        for place in order.sample((0, 1), 2):
            worker = entrants[place].worker
            before = worker.processor_seconds()
            worker.resume()
            seconds[place] = worker.ask("rounds", count=rounds)["seconds"]
            worker.halt()
            processor[place] = worker.processor_seconds() - before
        spent.seconds.append((seconds[0], seconds[1]))
        spent.processor.append((processor[0], processor[1]))
    return spent


def ratio(pairs: list[tuple[float, float]]) -> str:
    """The median ratio of the second to the first, with its interval."""
    ratios = [second / first for first, second in pairs]
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def interval(ratios: list[float], draws: int = 4000) -> tuple[float, float]:
    """Of the median, with 95 % confidence: percentiles over samples of the pairs with replacement."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[round(0.025 * draws)], medians[round(0.975 * draws) - 1]


def write(
    out: Path, asked: Question, rows: list[str], versions: dict[str, str], machine: dict[str, Any], options: Any
) -> None:
    """The results so far, as Markdown."""
    first, second = asked.names
    against = "--host " if options.host else "" if options.against is None else "--against FOLDER "
    lines = [
        f"# {asked.title}, {datetime.date.today()}",
        "",
        f"`python benchmarks/pairs.py {against}--devices {options.devices} --workloads {options.workloads} "
        f"--pairs {options.pairs} --seconds {options.seconds:g}"
        f"{'' if options.rounds is None else f' --rounds {options.rounds}'}` on {machine['cpu']}, "
        f"{machine['cores']} cores.",
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        "",
        "Each workload ran in two processes that took turns. Times are medians of a round. The ratio is the median",
        f"over pairs of turns of the time {second} divided by the time {first} (above 1: {second} is slower), with a",
        "95 % bootstrap interval. A first round includes compilation. Growth is of resident memory over all turns.",
        "",
        f"| | workload | ms {first} | ms {second} | ratio | of CPU-seconds | first round, s | growth {first}, MiB | "
        f"growth {second}, MiB | client-steps each |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
