"""Where the seconds of the tests go, by file and phase: ``python benchmarks/suite.py [pytest's arguments]``.

The tests run with ``-n 2``, and this module is a plugin of pytest in each worker. *Seconds* and *CPU* are those of a
file's tests with their fixtures; CPU has all threads. JAX reports tracing, lowering and compiling, in which reading a
compiled program from the disk is included. What is left of the seconds is running; it may be below zero, since threads
that compile at the same time count each. Importing is that of the file and of
what nobody imported before. Other work on the machine lengthens all of them: compare CPU, in pairs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parent / "results"
FOLDER = "FLJAX_SUITE_PHASES"  # where each process writes its numbers
PHASES = ("importing", "collecting", "tracing", "lowering", "compiling", "running")
COLUMNS = ("tests", "seconds", "cpu", *PHASES, "programs")
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
Numbers = collections.defaultdict[str, collections.defaultdict[str, float]]


def nothing() -> Numbers:
    """Zero seconds of every file."""
    return collections.defaultdict(lambda: collections.defaultdict(float))


class Phases:
    """The plugin: adds up seconds of each file."""

    def __init__(self) -> None:
        self.numbers = nothing()
        self.file = ""
        self._here = threading.local()

    def listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """JAX reports a phase when it ends, so what was inside of it is known and is not counted twice."""
        phase, end = EVENTS.get(event), time.monotonic()
        if phase is None or not self.file:
            return
        spans: list[tuple[float, float]] = self._here.__dict__.setdefault("spans", [])
        inner, start = 0.0, end - duration_secs
        while spans and spans[-1][0] >= start:
            first, last = spans.pop()
            inner += last - first
        spans.append((start, end))
        self.numbers[self.file][phase] += max(duration_secs - inner, 0)
        self.numbers[self.file]["programs"] += phase == "compiling"

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        """Imports the file first, so that both phases are apart."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        found, start = self.numbers[collector.nodeid], time.monotonic()
        with contextlib.suppress(BaseException):  # pytest meets the same error again and reports it
            _ = collector.obj
        found["importing"] += (imported := time.monotonic()) - start
        report = yield
        found["collecting"] += time.monotonic() - imported
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Seconds of one test with its fixtures."""
        self.file = item.nodeid.split("::")[0]
        start, cpu = time.monotonic(), _cpu()
        done = yield
        found = self.numbers[self.file]
        found["tests"] += 1
        found["seconds"] += time.monotonic() - start
        found["cpu"] += _cpu() - cpu
        self.file = ""
        return done

    def pytest_sessionfinish(self) -> None:
        """Each process writes its own file."""
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        Path(os.environ[FOLDER], f"{name}.json").write_text(json.dumps(self.numbers))


def _cpu() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin. fljax must not be imported here: the tests install an import hook first."""
    import jax

    phases = Phases()
    config.pluginmanager.register(phases)
    jax.monitoring.register_event_duration_secs_listener(phases.listen)


def main() -> None:
    """Runs the tests and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-suite.md")
    parser.add_argument("--rows", type=int, default=40, help="files in the table, the longest first")
    options, arguments = parser.parse_known_args()
    command = ["-q", "-n", "2", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {FOLDER: folder, "PYTHONPATH": path.rstrip(os.pathsep)}
        start, cpu, load = time.monotonic(), _cpu(), os.getloadavg()[0]
        words = [sys.executable, "-m", "pytest", "-p", "suite", *command]
        code = subprocess.run(words, check=False, env=environment).returncode
        whole = f"{time.monotonic() - start:.0f} s, {_cpu() - cpu:.0f} s of CPU"
        numbers = nothing()
        for each in Path(folder).glob("*.json"):
            for file, found in json.loads(each.read_text()).items():
                for name, value in found.items():
                    numbers[file][name] += value
    title = f"`pytest {' '.join(command)}`: {whole}; exit code {code}; load average before {load:.1f}."
    options.out.write_text(table(numbers, title, options.rows))
    print(f"{title}\n{options.out}")


def table(numbers: Numbers, title: str, rows: int) -> str:
    """The files with the largest CPU, and the sum of all."""
    total: dict[str, float] = dict.fromkeys(COLUMNS, 0)
    for found in numbers.values():
        found["running"] = found["seconds"] - sum(found[each] for each in ("tracing", "lowering", "compiling"))
        total = {name: total[name] + found[name] for name in COLUMNS}
    order = sorted(numbers, key=lambda file: -numbers[file]["cpu"])[:rows]
    lines = [("all files", total), *((file, numbers[file]) for file in order)]
    head = f"| file | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}\n"
    body = "\n".join(f"| {file} | {' | '.join(f'{found[each]:.0f}' for each in COLUMNS)} |" for file, found in lines)
    return f"# Seconds of the tests, by file and phase\n\n{title}\n\n{head}{body}\n"


if __name__ == "__main__":
    main()
