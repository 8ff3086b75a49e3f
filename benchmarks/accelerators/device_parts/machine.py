"""Part 1: what the device can do: copies, matrix products, and steps of loops that do nothing."""

from __future__ import annotations

import statistics
from typing import Any

from serving import Job, Row, Server, timed

server = Server()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

server.use_jax()
SECONDS = 0.5
SIDE = 512 if server.small else 8192
ENTRIES = 2**22 if server.small else 2**29  # float32
TURNS = 1000


def seconds_of(function: Any, *arguments: Any) -> float:
    """The median time of a call of a compiled function."""
    program = jax.jit(function).lower(*arguments).compile()
    return statistics.median(timed(lambda: program(*arguments), jax.block_until_ready, SECONDS))


def product(precision: str) -> Row:
    """FLOP per second of a product of two square matrices with random entries."""
    dtype = jnp.bfloat16 if precision == "bfloat16" else jnp.float32
    left, right = (jax.random.normal(jax.random.key(k), (SIDE, SIDE), dtype) for k in range(2))
    wanted = precision if precision in ("highest", "default") else None
    with jax.default_matmul_precision(wanted):
        seconds = seconds_of(lambda left, right: left @ right, left, right)
    return {"seconds": seconds, "flops": 2 * SIDE**3 / seconds, "side": SIDE}


def measure(job: Job) -> Row:
    """One cell."""
    kind = job["options"]["kind"]
    if kind == "memory":
        found = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
        if found is None:
            raise LookupError("the device reports none")
        return {"bytes": found}
    if kind == "copy":
        held = [jnp.full((ENTRIES,), 0.5, jnp.float32)]
        program = jax.jit(lambda x: x * 1.0001, donate_argnums=0).lower(held[0]).compile()

        def call() -> Any:
            held[0] = program(held[0])
            return held[0]

        seconds = statistics.median(timed(call, jax.block_until_ready, SECONDS))
        return {"seconds": seconds, "bandwidth": 2 * 4 * ENTRIES / seconds, "bytes": 4 * ENTRIES}
    if kind.startswith("product"):
        return product(kind.removeprefix("product, "))
    step = lambda x: x * 1.5 + 1  # noqa: E731
    if kind == "empty step of a scan":
        scan = lambda x: jax.lax.scan(lambda c, _: (step(c), None), x, None, length=TURNS)[0]  # noqa: E731
        return {"seconds": seconds_of(scan, jnp.zeros(())) / TURNS}
    if kind == "empty step of a while":
        turns = lambda x, count: jax.lax.fori_loop(0, count, lambda _, c: step(c), x)  # noqa: E731
        return {"seconds": seconds_of(turns, jnp.zeros(()), jnp.int32(TURNS)) / TURNS}
    return {"seconds": seconds_of(step, jnp.zeros(()))}


server.serve(measure)
