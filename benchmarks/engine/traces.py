"""Traces, equations and kernels of a run's programs.

Each workload is a process of its own. It traces the programs of a run as ``fljax.simulate`` does, on all cores, and
compiles them where kernels are counted; the quick start is the command ``fljax run configs/quickstart.toml``.

- *Local steps* and *inference passes*: how often Python calls the model of the task, in training and elsewhere. Each
  trace of a client calls it, so this counts traces.
- *Traces* and their seconds: JAX's own events. JAX tells of outermost functions alone, also of some that it knows.
- *Equations*: of the traced programs, inner ones included. *Kernels* and *loops*: of the compiled ones, each once,
  however often a loop repeats it. A program that several algorithms share is counted once.
"""

from __future__ import annotations

import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import apart
from benchmarks.engine.memory import in_turn
from benchmarks.peers.workloads import SEED, WORKLOADS, meta_of
from benchmarks.reporting import ROOT, Row, names_in

QUICK_START = "quickstart"
TRACED = "/jax/core/compile/jaxpr_trace_duration"
# Instructions that launch nothing.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "opt-barrier",
    "partition-id",
    "copy-done",
    "async-done",
    "all-reduce-done",
}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|branch_computations)=\{?%?([\w.\-]+)")


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


def measure(options: Namespace) -> Iterator[Row]:
    """The programs of workload after workload; the last row of each has its traces, too."""
    for name in names_in(options.workloads, (*WORKLOADS, QUICK_START), "workload"):
        for title, source in options.sources.items():
            found = apart("engine.traces:inside", source, name=name, kernels=not options.no_kernels)
            if "failed" in found:
                raise SystemExit(f"{name}: {found['failed']}")
            programs: Any = [Program(*program) for program in found["programs"]]
            yield from rows_of(title, name, Counts(**found | {"programs": programs}))


def rows_of(title: str, name: str, counts: Counts) -> Iterator[Row]:
    """A row for each program, and one for all."""
    for program in counts.programs:
        yield title, name, *program
    columns = list(zip(*counts.programs, strict=True))[1:]
    sums = [None if None in column else sum(map(int, column)) for column in columns]
    yield title, name, "**all**", *sums, counts.steps, counts.passes, counts.traces, f"{counts.seconds:.2f}"


def inside(name: str, kernels: bool) -> dict[str, Any]:
    """In the process of a workload: traces its programs, and compiles them if ``kernels`` are counted."""
    import jax

    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == TRACED:
            seconds.append(duration_secs)

    seen: list[bool] = []
    traced: list[tuple[str, Any]] = []
    begin = quick_start if name == QUICK_START else of_workload(name)
    note_programs(traced)
    jax.monitoring.register_event_duration_secs_listener(listen)
    begin(seen)
    counts = Counts(sum(seen), len(seen) - sum(seen), len(seconds), sum(seconds), [])
    jax.config.update("jax_enable_compilation_cache", False)  # what is read from the disk may have no text
    different = {id(program.jaxpr.jaxpr): (title, program) for title, program in traced}
    programs = [content(title, program, kernels) for title, program in different.values()]
    return counts._replace(programs=programs)._asdict()


def of_workload(name: str) -> Callable[[list[bool]], None]:
    """Makes the data and gives the function that traces a run's programs, with a model that notes its calls."""
    import fljax

    fljax.use_cores()
    from benchmarks.peers.contestants import parts
    from fljax import engine

    meta = meta_of(WORKLOADS[name])
    federation = in_turn(meta)

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
    return Program(name, size, *pieces(traced.lower().compile().as_text()))


def equations(program: Any) -> int:
    """The number of equations of a jaxpr, those of inner ones included."""
    total = 0
    for equation in getattr(program, "jaxpr", program).eqns:
        total += 1
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                total += equations(part) if hasattr(getattr(part, "jaxpr", part), "eqns") else 0
    return total


def pieces(text: str) -> tuple[int, int]:
    """Kernels and loops of a compiled module (``Compiled.as_text()``), each once; of a condition, the first branch."""
    computations: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        if line.rstrip().endswith("{") and not line.startswith((" ", "HloModule")):
            name = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0].split("(")[0]
            computations[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            computations[name].append(line)

    def inside(name: str) -> tuple[int, int]:
        kernels = loops = 0
        for line in computations.get(name, []):
            found = _INSTRUCTION.match(line)
            kind = found.group(1) if found else "parameter"
            kernels, loops = kernels + (kind not in _FREE), loops + (kind == "while")
            called = _CALLED.search(line) if kind in ("while", "call", "conditional") else None
            if called:
                more = inside(called.group(1))
                kernels, loops = kernels + more[0], loops + more[1]
        return kernels, loops

    return inside(entry)
