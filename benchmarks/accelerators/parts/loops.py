"""Part 4: twenty local steps as a loop in several forms."""

from __future__ import annotations

import statistics
from typing import Any

from serving import Job, Row, Server, timed

server = Server()

import jax  # noqa: E402
import steps  # noqa: E402

from benchmarks.accelerators.cells import SMALL  # noqa: E402

server.use_jax()
SECONDS = 0.1 if server.small else 0.3
TURNS = 20


def clients_of(job: Job) -> int:
    """Clients side by side."""
    return SMALL[job["options"]["clients"]] if server.small else job["options"]["clients"]


def prepare(job: Job) -> tuple[Any, Any]:
    """The compiled program and the shapes of its arguments."""
    name = job["options"]["model"]
    shapes = steps.arguments(name, clients_of(job), server.small)
    function = steps.training(name, {"loop": job["options"]["form"]}, TURNS)
    return jax.jit(function).lower(*shapes).compile(), shapes


def measure(job: Job, prepared: tuple[Any, Any]) -> Row:
    """Seconds of one step."""
    program, shapes = prepared
    clients = clients_of(job)
    params, x, y = steps.values(shapes)
    call = lambda: program(params, x, y)  # noqa: E731
    seconds = statistics.median(timed(call, jax.block_until_ready, SECONDS)) / TURNS
    return {"clients": clients, "seconds": seconds, "rate": clients / seconds}


server.serve_compiled(prepare, measure, 8)
