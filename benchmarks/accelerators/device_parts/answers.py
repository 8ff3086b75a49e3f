"""Part 5: the data of each workload, and the answer in float64 that the first rounds are compared with.

A process of its own, so that the peak memory of the contestants is theirs. It computes on some of the CPU's cores,
while other parts measure the device.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import os
import time

from serving import Job, Row, Server

server = Server()
with contextlib.suppress(AttributeError, OSError):  # before JAX counts the cores
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: -(-len(cores) // 2)])

import prepared  # noqa: E402

from benchmarks.accelerators.cells import workload  # noqa: E402

server.use_jax()


def measure(job: Job) -> Row:
    """Writes one file."""
    name = job["options"]["workload"]
    began = time.perf_counter()
    prepared.save(workload(name, server.small), server.place_of(name), with_answer=job["options"]["answer"])
    return {"seconds": time.perf_counter() - began}


server.serve(measure)
