"""Part 5: whole rounds of fljax in several layouts, and of JAX by hand."""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from serving import Job, Row, Server

server = Server()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import parts  # noqa: E402
import prepared  # noqa: E402
import steps  # noqa: E402
from protocol import Work, read  # noqa: E402

import fljax  # noqa: E402
from benchmarks.accelerators.cells import COUNTS, workload  # noqa: E402
from benchmarks.peers.measuring import error_of  # noqa: E402
from benchmarks.peers.workloads import Workload  # noqa: E402
from fljax.core import trees  # noqa: E402
from fljax.engine.programs.program import partition_plan  # noqa: E402
from fljax.engine.programs.shapes import Execution, resolve  # noqa: E402
from fljax.engine.programs.shapes import measure as sizes_of  # noqa: E402

server.use_jax()
DEFAULT_TOLERANCE = 0.05


def rates_of(seconds: float, rounds: int, work: Workload, precision: str, parameters: int) -> Row:
    """Client-steps per second, and the share of the floor if part 1 was measured."""
    rate = work.client_steps * rounds / seconds
    return {"rate": rate, "seconds": seconds / rounds} | server.share_of_floor(work, parameters, rate, precision)


def by_fljax(job: Job, work: Workload, file: Path, packed: Work) -> Row:
    """A run through ``fljax.simulate``: its first round is checked, a second call is timed."""
    options, meta = job["options"], packed.meta
    algorithm = parts.algorithm(meta, parts.task(meta))
    sizes = np.full(len(packed.rows), packed.rows.shape[1])
    federation = parts.federation(meta, packed.x, packed.y, packed.rows, sizes)
    platform = jax.default_backend()
    measured = sizes_of(*partition_plan(algorithm, federation), 1, platform).sizes
    automatic = resolve(Execution(devices=1), measured, platform).clients
    asked = {"auto": automatic, "a quarter": automatic // 4, "a sixteenth": automatic // 16, "all": work.cohort}
    clients = max(1, min(asked[options["clients"]], work.cohort))
    if options["clients"] != "auto" and clients == automatic:
        return {"same_as": f"{options['workload']}, fljax", "clients": clients}
    precision: Any = options.get("precision", "default")
    execution = fljax.Execution(clients=clients, devices=1, precision=precision)
    rounds = 2 if server.small else COUNTS[options["workload"]]
    first: dict[str, Any] = {}

    def keep(done: int, state: Any) -> None:
        if done == 1:
            first.update(parts.model_of(state))

    run = prepared.simulation(meta, algorithm, federation, rounds, execution)
    peak = peak_bytes()
    found = run(evaluate_at=(1,), on_evaluated=keep)
    if float(found.metrics["seconds_train"]) < 2:
        found = run(initial=found.state)
    used = int(found.metrics["execution_clients"])
    if used < clients and options["clients"] != "auto":
        raise MemoryError(f"out of memory with {clients} clients side by side; {used} fit")
    parameters = trees.size(jax.eval_shape(parts.task(meta).init, jax.random.key(0)))
    row = rates_of(float(found.metrics["seconds_train"]), rounds, work, precision, parameters)
    row |= {"clients": used, "asked": clients, "error": error_of(file, first), "lane_bytes": measured.lane}
    row["estimate"] = float(found.metrics["execution_memory"])
    after = peak_bytes()
    if after is not None and after != peak:  # else a run before it took more
        row["peak"] = after
    return row


def peak_bytes() -> int | None:
    """The most memory of the device that this process ever held; None if the device does not tell."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def by_hand(job: Job, work: Workload, file: Path, packed: Work) -> Row:
    """FedAvg as a loop of JAX, all clients under one ``vmap``. It draws nothing: every round has the same batches."""
    meta = packed.meta
    task = parts.task(meta)
    x, y, batches = jnp.asarray(packed.floats()), jnp.asarray(packed.y), jnp.asarray(packed.batches())

    step = steps.local_step(task.logits)

    def client(server: Any, batches: Any, x: Any, y: Any) -> Any:
        return jax.lax.scan(lambda params, batch: (step(params, x[batch], y[batch]), None), server, batches)[0]

    def rounds_of(server: Any, count: Any, batches: Any, x: Any, y: Any) -> Any:
        def one(_: Any, server: Any) -> Any:
            trained = jax.vmap(client, (None, 0, None, None))(server, batches, x, y)
            return jax.tree.map(lambda leaf: leaf.mean(0), trained)

        return jax.lax.fori_loop(0, count, one, server)

    model = parts.nested({name: jnp.asarray(leaf) for name, leaf in packed.parameters.items()})
    program = jax.jit(rounds_of)
    first = jax.block_until_ready(program(model, jnp.int32(1), batches, x, y))
    rounds = jnp.int32(2 if server.small else COUNTS[job["options"]["workload"]])
    began = time.perf_counter()
    jax.block_until_ready(program(model, rounds, batches, x, y))
    seconds = time.perf_counter() - began
    row = rates_of(seconds, int(rounds), work, job["options"].get("precision", "default"), trees.size(model))
    return row | {"clients": work.cohort, "error": error_of(file, parts.named(first))}


def measure(job: Job) -> Row:
    """One contestant on one workload."""
    name = job["options"]["workload"]
    work = workload(name, server.small)
    file = server.place_of(name)
    if not server.has(name):
        return {"failed": "its data are not there yet", "again": True}
    if job["options"]["who"].startswith("fljax"):
        row = by_fljax(job, work, file, read(str(file)))
    else:
        highest = "highest" if job["options"].get("precision") else None
        with jax.default_matmul_precision(highest):
            row = by_hand(job, work, file, read(str(file)))
    # Of a GPU's default products, whose factors have 10 bits.
    rounded = jax.default_backend() != "cpu" and not job["options"].get("precision")
    return row | {"tolerance": max(work.tolerance, DEFAULT_TOLERANCE) if rounded else work.tolerance}


server.serve(measure)
