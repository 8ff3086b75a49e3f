"""fljax beside its peers, on the same data, in the same run: ``python benchmarks/throughput.py --make-environments``.

See ``benchmarks/README.md`` for what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import environments
import tables
from measuring import Entrant, enter, export, passes, summarise
from products import multiplying, reference
from rich.console import Console
from workers import FAMILIES, LINE_UP, STRATEGIES, Contestant, WorkerError
from workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results"
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def _say(line: str) -> None:
    console.print(line, markup=False)


def _names(text: str, valid: tuple[str, ...], what: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in valid:
            raise SystemExit(f"expected a known {what}, got {name!r}; valid names are {', '.join(valid)}")
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fljax beside its peers, interleaved in one run.")
    parser.add_argument("--workloads", default="W1b,W1a,W2,W3,W3r,W4,W5,W6,W7,BL,PF", help="comma-separated")
    parser.add_argument("--contestants", default=",".join(FAMILIES), help="comma-separated families")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="of fljax; comma-separated")
    parser.add_argument("--make-environments", action="store_true", help="make the peers' virtual environments first")
    parser.add_argument("--environments", type=Path, default=environments.FOLDER, metavar="DIR", help="where they are")
    parser.add_argument("--passes", type=int, default=5, help="interleaved passes per workload")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one contestant's turn in a pass")
    parser.add_argument("--out", type=Path, help="JSON file; a table (.md) and a picture (.png) are put beside it")
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only draw table and picture of an earlier run again")
    return parser.parse_args()


def main() -> None:
    """Measures workload after workload; what has been measured is saved after each."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that no halted contestant is left behind
    if options.draw is not None:
        tables.save(json.loads(options.draw.read_text()), options.draw)
        return
    chosen = _names(options.workloads, tuple(WORKLOADS), "workload")
    families = _names(options.contestants, FAMILIES, "family of contestants")
    strategies = _names(options.strategies, STRATEGIES, "strategy")
    left_out = {f"fljax, {strategy}" for strategy in STRATEGIES} - {f"fljax, {strategy}" for strategy in strategies}
    out = options.out or RESULTS / f"{datetime.date.today()}-throughput.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/throughput.py "
        f"--workloads {','.join(chosen)} --contestants {','.join(families)} "
        + (f'--strategies "{",".join(strategies)}" ' if left_out else "")
        + f"--passes {options.passes} --seconds {options.seconds}",
        "hardware": hardware(),
        "versions": {},
        "workloads": {},
    }
    line_up = [entry for entry in LINE_UP if entry.family in families and entry.name not in left_out]
    missing = _missing(line_up, options.environments, options.make_environments)
    with tempfile.TemporaryDirectory(prefix="fljax-throughput-") as scratch:
        for name in chosen:
            try:
                found = _measure(WORKLOADS[name], line_up, missing, options, Path(scratch), report["versions"])
            except WorkerError as reason:
                found = {"title": WORKLOADS[name].title, "skipped": str(reason)}
                _say(f"{name}: skipped: {reason}")
            report["workloads"][name] = found
            tables.show(console, name, found)
            tables.save(report, out)
    _say(f"saved: {out.name} in {out.parent.name}/, with its table (.md) and picture (.png)")


def _missing(line_up: list[Contestant], folder: Path, make: bool) -> dict[str, str]:
    """Environments that are not to be had, with the reason."""
    missing = {}
    for name in sorted({contestant.environment for contestant in line_up} - {environments.OWN}):
        if make and environments.python_of(folder, name) is None:
            _say(f"making the environment {name}")
            reason = environments.make(folder, name)
        else:
            there = environments.python_of(folder, name) is not None
            reason = None if there else "its environment has not been made; see --make-environments"
        if reason is not None:
            missing[name] = reason
            _say(f"{name}: {reason}")
    return missing


def _measure(
    workload: Workload,
    line_up: list[Contestant],
    missing: dict[str, str],
    options: argparse.Namespace,
    scratch: Path,
    versions: dict[str, Any],
) -> dict[str, Any]:
    """All contestants of one workload."""
    _say(f"\n{workload.name}: {workload.title}")
    file = export(workload, scratch)
    entrants: list[Entrant] = []
    results: dict[str, Any] = {}
    try:
        for contestant in line_up:
            if workload.name not in contestant.workloads:
                continue
            python = environments.python_of(options.environments, contestant.environment)
            if python is None:
                results[contestant.name] = {"skipped": missing[contestant.environment]}
                continue
            try:
                entrant, found = enter(contestant, python, workload, file, scratch, options.seconds, _say)
            except WorkerError as reason:
                results[contestant.name] = {"skipped": str(reason)}
                _say(f"  {contestant.name}: skipped: {reason}")
                continue
            versions.setdefault(contestant.environment, {}).update(found)
            entrants.append(entrant)
        count = max(1, min(options.passes, workload.passes))
        with multiplying(file, options.environments, scratch) as multipliers:
            rates, products, lost = passes(entrants, workload, count, multipliers, _say)
        for entrant in entrants:
            name = entrant.contestant.name
            results[name] = summarise(entrant, rates[name], reference(products).gflops, workload, rates)
            if name in lost:
                results[name]["lost"] = lost[name]
        own = tables.reference({entrant.contestant.name: results[entrant.contestant.name] for entrant in entrants})
        for entrant in entrants:
            if own is not None and workload.steps is not None and entrant.contestant.name == own:
                results[own]["drawing"] = _drawing(entrant, results[own])
    finally:
        for entrant in entrants:
            entrant.worker.close()
        file.unlink(missing_ok=True)
    ordered = {contestant.name: results[contestant.name] for contestant in line_up if contestant.name in results}
    return {
        "title": workload.title,
        "client_steps_per_round": workload.client_steps,
        "flops_per_client_step": workload.flops_per_client_step,
        "flops_per_round": workload.flops_per_round,
        "tolerance": workload.tolerance,
        "products_gflops": products,
        "reference": tables.reference(ordered),
        "contestants": ordered,
    }


def _drawing(entrant: Entrant, result: dict[str, Any]) -> dict[str, float] | None:
    """What drawing all batches takes of a round."""
    entrant.worker.resume()
    try:
        rounds = 100
        seconds = entrant.worker.ask("draw", count=rounds)["seconds"] / rounds
    except WorkerError:
        return None
    finally:
        entrant.worker.halt()
    return {"seconds_per_round": seconds, "share_of_round": seconds / result["seconds_per_round"]}


def hardware() -> dict[str, Any]:
    """CPU model, cores that may be used, memory."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return {"cpu": model, "cores": cores, "memory_gibibytes": round(memory, 1), "system": platform.system()}


if __name__ == "__main__":
    main()
