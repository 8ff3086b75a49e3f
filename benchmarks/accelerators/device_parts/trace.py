"""Part 6: a trace of some rounds as text: the kernels that take most time, and the time without a kernel."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from serving import Job, Row, Server

server = Server()

import jax  # noqa: E402
import numpy as np  # noqa: E402
import prepared  # noqa: E402

import fljax  # noqa: E402
from benchmarks.accelerators.cells import COUNTS, workload  # noqa: E402

server.use_jax()


def spans_of(data: Any) -> list[tuple[float, float, str]]:
    """Begin and end in nanoseconds, and the name, of everything that ran on the device.

    Of a GPU these are the kernels and copies of all its streams; of a CPU, XLA's operations on all threads.
    """
    planes = [plane for plane in data.planes if plane.name.startswith("/device:")]
    if planes:
        lines = [line for plane in planes for line in plane.lines if line.name.startswith("Stream")]
        found = [event for line in lines for event in line.events]
    else:
        lines = [line for plane in data.planes if plane.name.startswith("/host:CPU") for line in plane.lines]
        found = [event for line in lines for event in line.events if "hlo_op" in dict(event.stats)]
    return sorted((event.start_ns, event.end_ns, event.name) for event in found)


def summary(spans: list[tuple[float, float, str]]) -> Row:
    """The ten heaviest names with their share of the busy time, and the share of time in which nothing ran."""
    spent: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    covered, until = 0.0, spans[0][0]
    for begin, end, name in spans:
        spent[name] += end - begin
        calls[name] += 1
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    whole = until - spans[0][0]
    busy = sum(spent.values())
    heaviest = sorted(spent, key=lambda name: -spent[name])[:10]
    top = [[name[:60], spent[name] / busy, calls[name]] for name in heaviest]
    return {"top": top, "idle_share": 1 - covered / whole, "kernels": len(spans), "seconds": whole / 1e9}


def measure(job: Job) -> Row:
    """Traces the two rounds between two evaluations, of a run that was compiled before.

    XLA switches its command buffers off while a trace is taken, so the kernels are those of the timed program and the
    gaps between them are not.
    """
    name = job["options"]["workload"]
    work = workload(name, server.small)
    meta, algorithm, federation = prepared.run_of(work)
    rounds = 6 if server.small else max(6, COUNTS[name])
    run = prepared.simulation(meta, algorithm, federation, rounds, fljax.Execution(devices=1))
    state = run(evaluate_at=(2, 4)).state
    begun = int(np.max(state.round))
    with tempfile.TemporaryDirectory() as folder:

        def watch(done: int, state: Any) -> None:
            if done == begun + 2:
                jax.block_until_ready(state)
                jax.profiler.start_trace(folder)
            if done == begun + 4:
                jax.block_until_ready(state)
                jax.profiler.stop_trace()

        run(initial=state, evaluate_at=(begun + 2, begun + 4), on_evaluated=watch)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise LookupError("the profiler wrote no trace")
        spans = spans_of(jax.profiler.ProfileData.from_file(str(files[-1])))
    if not spans:
        raise LookupError("the trace has no operation of the device")
    return summary(spans)


server.serve(measure)
