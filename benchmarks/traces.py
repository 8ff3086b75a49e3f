"""Traces, equations and kernels of a run's programs: ``python benchmarks/traces.py``.

Each workload is a process of its own. It traces the programs of a run as ``fljax.simulate`` does, on all cores, and
compiles them where kernels are counted; the quick start is the command ``fljax run configs/quickstart.toml``.

- *Local steps* and *inference passes*: how often Python calls the model of the task, in training and elsewhere. Each
  trace of a client calls it, so this counts traces.
- *Traces* and their seconds: JAX's own events. JAX tells of outermost functions alone, also of some that it knows.
- *Equations*: of the traced programs, inner ones included. *Kernels* and *loops*: of the compiled ones, each once,
  however often a loop repeats it. A program that several algorithms share is counted once.

``--source FOLDER`` counts those of another checkout. ``--no-kernels`` compiles nothing but the quick start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

import program_text
from workloads import CLASSES, LEARNING_RATE, SEED, WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
QUICK_START = "quickstart"
USUAL = ("W1a", "W1b", "W3", QUICK_START)
TRACED = "/jax/core/compile/jaxpr_trace_duration"


class Program(NamedTuple):
    """What a program consists of; kernels and loops are None if it was not compiled."""

    name: str
    equations: int
    kernels: int | None = None
    loops: int | None = None


class Counts(NamedTuple):
    """What one workload took."""

    steps: int
    passes: int
    traces: int
    seconds: float
    programs: list[Program]


def main() -> None:
    """Counts workload after workload, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    valid = (*WORKLOADS, QUICK_START)
    parser.add_argument("--workloads", default=",".join(USUAL), help=f"comma-separated, among {', '.join(valid)}")
    parser.add_argument("--no-kernels", action="store_true", help="only trace")
    parser.add_argument("--source", type=Path, default=ROOT, metavar="FOLDER", help="a checkout of fljax; this one")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the tables are saved, as Markdown")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in options.workloads.split(",") if name]
    unknown = [name for name in names if name not in valid]
    if unknown:
        raise SystemExit(f"expected a known workload, got {unknown[0]!r}; valid names are {', '.join(valid)}")
    if options.inside is not None:
        options.inside.write_text(json.dumps(inside(names[0], not options.no_kernels)), encoding="utf-8")
        return
    counts = {name: of_process(name, options.source.resolve(), options.no_kernels) for name in names}
    print(written(counts))
    if options.out is not None:
        options.out.write_text(f"# Traces, equations and kernels\n\n{written(counts)}", encoding="utf-8")


def of_process(name: str, source: Path, no_kernels: bool) -> Counts:
    """The counts of one workload in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="fljax-traces-") as scratch:
        told = Path(scratch) / "counts.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--workloads", name, "--inside", str(told)]
        environment = os.environ | {"PYTHONPATH": str(source)}
        done = subprocess.run(
            command + ["--no-kernels"] * no_kernels,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=scratch,
        )
        if done.returncode != 0:
            raise SystemExit(f"{name}: {(done.stderr.strip().splitlines() or ['no reason was told'])[-1]}")
        steps, passes, traces, seconds, programs = json.loads(told.read_text(encoding="utf-8"))
    return Counts(steps, passes, traces, seconds, [Program(*program) for program in programs])


def inside(name: str, kernels: bool) -> Counts:
    """In the process of a workload: traces its programs, and compiles them if ``kernels`` are counted."""
    import jax

    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == TRACED:
            seconds.append(duration_secs)

    seen: list[bool] = []
    traced: list[tuple[str, Any]] = []
    if name != QUICK_START:
        begin = of_workload(name)
        note_programs(traced)
        jax.monitoring.register_event_duration_secs_listener(listen)
        begin(seen)
    else:
        note_programs(traced)
        jax.monitoring.register_event_duration_secs_listener(listen)
        quick_start(seen)
    counts = Counts(sum(seen), len(seen) - sum(seen), len(seconds), sum(seconds), [])
    jax.config.update("jax_enable_compilation_cache", False)  # what is read from the disk may have no text
    different = {id(program.jaxpr.jaxpr): (title, program) for title, program in traced}
    return counts._replace(programs=[content(title, program, kernels) for title, program in different.values()])


def of_workload(name: str) -> Callable[[list[bool]], None]:
    """Makes the data and gives the function that traces a run's programs, with a model that notes its calls."""
    import fljax

    fljax.use_cores()
    sys.path.insert(0, str(Path(__file__).parent / "contestants"))
    import numpy as np
    import parts  # pyright: ignore[reportMissingImports]

    from fljax import engine

    work = WORKLOADS[name]
    meta = work._asdict() | {"classes": CLASSES, "learning_rate": LEARNING_RATE, "seed": SEED}
    x = np.zeros((work.distinct, *work.shape), np.uint8 if work.pixels else np.float32)
    rows = np.arange(work.clients * work.samples, dtype=np.int32).reshape(work.clients, -1) % work.distinct
    federation = parts.federation(meta, x, np.zeros(work.distinct, np.int32), rows)

    def begin(seen: list[bool]) -> None:
        algorithm = parts.algorithm(meta, counted(parts.task(meta), seen))
        engine.compile_ahead(Idle(), algorithm, federation, engine.Schedule(1, [SEED]))

    return begin


class Idle(Executor):
    """Threads that do nothing: what they are given is not compiled."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that never has a result."""
        return Future()


def quick_start(seen: list[bool]) -> None:
    """Runs the command, with a model that notes its calls."""
    from fljax import cli
    from fljax.experiments import run as experiment

    resolve = experiment.resolve_setup

    def resolve_setup(*arguments: Any, **named: Any) -> Any:
        setup = resolve(*arguments, **named)
        return setup._replace(task=counted(setup.task, seen))

    experiment.resolve_setup = resolve_setup
    with tempfile.TemporaryDirectory(prefix="fljax-traces-") as folder:
        config = str(ROOT / "configs" / "quickstart.toml")
        try:
            cli.main(["run", config, "--out", str(Path(folder) / "run"), "--quiet"])
        except SystemExit as end:
            if end.code:
                raise


def counted(task: Any, seen: list[bool]) -> Any:
    """The task; ``seen`` gets an entry for each call of its model: whether it is one of training, with a key."""

    def logits(params: Any, x: Any, key: Any = None) -> Any:
        seen.append(key is not None)
        return task.logits(params, x) if key is None else task.logits(params, x, key)

    return task._replace(logits=logits)


def note_programs(traced: list[tuple[str, Any]]) -> None:
    """Notes each program that the engine traces from now on and may compile."""
    from fljax.engine.programs import jit

    trace = jit.Program.trace

    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        program = trace(self, *arguments, **named)
        if self._store is jit.STORE:  # others are traced for their shapes
            traced.append((self.__name__.strip("_"), program))
        return program

    jit.Program.trace = noted


def content(name: str, traced: Any, kernels: bool) -> Program:
    """What a traced program consists of; it is compiled if ``kernels`` are counted."""
    size = equations(traced.jaxpr)
    if not kernels:
        return Program(name, size)
    return Program(name, size, *pieces(program_text.read(traced.lower().compile().as_text())))


def equations(program: Any) -> int:
    """The number of equations of a jaxpr, those of inner ones included."""
    total = 0
    for equation in getattr(program, "jaxpr", program).eqns:
        total += 1
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                total += equations(part) if hasattr(getattr(part, "jaxpr", part), "eqns") else 0
    return total


def pieces(loop: program_text.Loop) -> tuple[int, int]:
    """Kernels and loops of a compiled program, each once."""
    kernels, loops = loop.kernels, len(loop.inner)
    for inner in loop.inner:
        more = pieces(inner)
        kernels, loops = kernels + more[0], loops + more[1]
    return kernels, loops


def written(counts: dict[str, Counts]) -> str:
    """Both tables, as Markdown."""
    lines = ["| | local steps | inference passes | traces | seconds of tracing |", "|---|---|---|---|---|"]
    for name, count in counts.items():
        lines.append(f"| {name} | {count.steps} | {count.passes} | {count.traces} | {count.seconds:.2f} |")
    lines += ["", "| | program | equations | kernels | loops |", "|---|---|---|---|---|"]
    for name, count in counts.items():
        for program in count.programs:
            cells = ["-" if number is None else f"{number:,}" for number in program[1:]]
            lines.append(f"| {name} | {program.name} | {' | '.join(cells)} |")
        cells = [_sum([program[column] for program in count.programs]) for column in (1, 2, 3)]
        lines.append(f"| {name} | **all** | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _sum(numbers: list[Any]) -> str:
    return "-" if None in numbers else f"{sum(numbers):,}"


if __name__ == "__main__":
    main()
