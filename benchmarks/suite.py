"""Where the seconds of the tests go, by file and phase: ``python benchmarks/suite.py [pytest's arguments]``.

The tests run with ``-n 2``, and this module is a plugin of pytest in each worker. *Seconds* and *CPU* are those of a
file's tests with their fixtures; CPU has all threads. JAX reports tracing, lowering and compiling, in which reading a
compiled program from the disk is included. What is left of the seconds is running; it may be below zero, since threads
that compile at the same time count each. Importing is that of the file and of
what nobody imported before. Other work on the machine lengthens all of them: compare CPU, in pairs.

    python benchmarks/suite.py --levers 2 tests/engine tests/aggregators

runs these tests as they are and without each of the levers that make them quick, in an order drawn anew for each of two
turns, and prints the ratios of CPU-seconds. Every run begins without programs on the disk, but the one that is called
again. Processes that tests start keep their few optimisations.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

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
# What makes the tests quick: by its name how they run without it: a word for the plugin ``Without``, variables of the
# environment, and arguments.
LEVERS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "programs on the disk": ("", {"JAX_ENABLE_COMPILATION_CACHE": "false"}, []),
    "programs in memory are kept from file to file": ("forget", {}, []),
    "few optimisations": ("optimise", {}, []),
    "few garbage collections": ("collect", {}, []),
    "one device": ("devices", {}, []),
    "annotations are checked in some tests": ("", {"FLJAX_CHECK_TYPES": "1"}, []),
    "few drawn examples": ("", {}, ["--hypothesis-profile=ci"]),
}
WITHOUT = "FLJAX_SUITE_WITHOUT"
THRESHOLDS = gc.get_threshold()  # Python's own: the tests have not begun
USUAL = {"FLJAX_CHECK_TYPES": "", "JAX_ENABLE_COMPILATION_CACHE": "true"}
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


class Without:
    """The plugin that takes a lever away from all tests."""

    def __init__(self, name: str) -> None:
        self.name = name

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests' own modules can be imported by now."""
        import jax

        from tests import compiled

        conftest: Any = session.config.pluginmanager.get_plugin(str(session.config.rootpath / "tests" / "conftest.py"))

        def forget(limit: int) -> int:
            jax.clear_caches()
            gc.collect()
            return limit

        def unchanged(_: bool = True) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        if self.name == "forget":
            compiled.forget_if_many = forget
        if self.name == "optimise":
            compiled.quickly = unchanged
        if self.name == "collect":
            gc.unfreeze()
            gc.set_threshold(*THRESHOLDS)
        if self.name == "devices":
            conftest.on_one_device = unchanged


def _cpu() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin. fljax must not be imported here: the tests install an import hook first."""
    import jax

    phases = Phases()
    config.pluginmanager.register(phases)
    config.pluginmanager.register(Without(os.environ.get(WITHOUT, "")))
    jax.monitoring.register_event_duration_secs_listener(phases.listen)


def levers(turns: int, arguments: list[str]) -> str:
    """A table: CPU-seconds without each lever, by those with all, in the same turn."""
    forms = {"with all": ("", {}, []), **{f"without: {name}": form for name, form in LEVERS.items()}}
    spent: dict[str, list[float]] = {name: [] for name in (*forms, "with all, called again")}
    for turn in range(turns):
        for name in random.Random(turn).sample(list(forms), len(forms)):
            plugin, environment, further = forms[name]
            with tempfile.TemporaryDirectory() as cache:
                added = {WITHOUT: plugin, "JAX_COMPILATION_CACHE_DIR": cache, **USUAL, **environment}
                for each in [name, *(["with all, called again"] if name == "with all" else [])]:
                    _, code, cpu, _ = measured([*arguments, *further, "--ignore=tests/test_kinds.py"], added)
                    if code:
                        raise SystemExit(f"expected tests that pass, got exit code {code}, {each}: {spent}")
                    spent[each].append(cpu)
                    print(f"turn {turn}: {each}: {cpu:.0f} s of CPU", flush=True)
    lines: list[str] = []
    for name, found in spent.items():
        ratios = [f"{without / usual:.2f}" for without, usual in zip(found, spent["with all"], strict=True)]
        lines.append(f"| {name} | {statistics.median(found):.0f} | {' '.join(ratios)} |")
    return "\n".join(["| | s of CPU (median) | ratio, each turn |", "|---|---:|---|", *lines])


def measured(arguments: list[str], added: dict[str, str]) -> tuple[Numbers, int, float, float]:
    """Numbers by file, the exit code, and seconds of the CPU and by the clock of one call of the tests."""
    numbers = nothing()
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {FOLDER: folder, "PYTHONPATH": path.rstrip(os.pathsep)} | added
        start, cpu = time.monotonic(), _cpu()
        words = [sys.executable, "-m", "pytest", "-p", "suite", "-q", "-n", "2", *arguments]
        code = subprocess.run(words, check=False, env=environment).returncode
        spent = _cpu() - cpu, time.monotonic() - start
        for each in Path(folder).glob("*.json"):
            for file, found in json.loads(each.read_text()).items():
                for name, value in found.items():
                    numbers[file][name] += value
    return numbers, code, *spent


def main() -> None:
    """Runs the tests and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-suite.md")
    parser.add_argument("--rows", type=int, default=40, help="files in the table, the longest first")
    parser.add_argument("--levers", type=int, default=0, metavar="TURNS", help="measure what makes the tests quick")
    options, arguments = parser.parse_known_args()
    if options.levers:
        print(levers(options.levers, arguments))
        return
    load = os.getloadavg()[0]
    numbers, code, cpu, seconds = measured(arguments, {})
    title = (
        f"`pytest {' '.join(['-q', '-n', '2', *arguments])}`: {seconds:.0f} s, {cpu:.0f} s of CPU; exit code {code}; "
        f"load average before {load:.1f}."
    )
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
