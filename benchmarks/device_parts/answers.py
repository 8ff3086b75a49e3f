"""Part 5: the data of each workload, and the answer in float64 that every first round is compared with.

A process of its own, so that the peak memory of the contestants is theirs.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time

from serving import Job, Row, Server

server = Server()

import prepared  # noqa: E402
from accelerator_cells import workload  # noqa: E402

server.use_jax()


def measure(job: Job) -> Row:
    """Writes one file."""
    name = job["options"]["workload"]
    began = time.perf_counter()
    prepared.save(workload(name, server.small), prepared.place_of(server.folder, name))
    return {"seconds": time.perf_counter() - began}


server.serve(measure)
