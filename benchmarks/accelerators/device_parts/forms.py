"""Part 3: a local step of each model in every form, and the drawing of batches. Part 4: twenty steps in each loop."""

from __future__ import annotations

import math
import statistics
from typing import Any

from serving import Job, Row, Server, timed

server = Server()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import steps  # noqa: E402

from benchmarks.accelerators.cells import SMALL  # noqa: E402
from fljax import training  # noqa: E402
from fljax.protocol import Rows, Subset  # noqa: E402

server.use_jax()
SECONDS = 0.05 if server.small else 0.4


def turns_of(job: Job) -> int:
    """Local steps in one program."""
    if "loop" in job["options"]:
        return 20
    return 2 if server.small or job["options"]["model"] == "resnet18" else 10


def clients_of(job: Job) -> int:
    """Clients side by side."""
    asked = job["options"]["clients"]
    return SMALL[asked] if server.small else asked


def options_of(job: Job) -> dict[str, Any]:
    """The options of a cell, with a chunk that fits few clients."""
    options = dict(job["options"])
    if server.small and "chunk" in options:
        options["chunk"] = max(1, clients_of(job) // 2)
    return options


def drawing(job: Job) -> tuple[Any, Any]:
    """The program that draws the batches of a round, and its arguments."""
    epochs = job["options"]["form"] == "permutation"
    local = training.Local(0.05, 30, epochs=1) if epochs else training.Local(0.05, 32, steps=30)
    index, size = jnp.zeros(600, jnp.int32), jnp.int32(600)
    subset: Any = Subset(None, Rows(index, size))  # type: ignore[arg-type]  # only the size is read
    draw = jax.vmap(lambda key: training.draw(key, subset, local).position)
    keys = jax.random.split(jax.random.key(0), clients_of(job))
    return jax.jit(draw).lower(keys).compile(), (keys,)


def prepare(job: Job) -> tuple[Any, Any]:
    """The compiled program and the shapes of its arguments."""
    name = job["options"]["model"]
    if name == "drawing":
        return drawing(job)
    shapes = steps.arguments(name, clients_of(job), server.small)
    function = steps.training(name, options_of(job), turns_of(job))
    return jax.jit(function, donate_argnums=0).lower(*shapes).compile(), shapes


def measure(job: Job, prepared: tuple[Any, Any]) -> Row:
    """Client-steps per second, memory, and the share of the floor."""
    program, shapes = prepared
    name, clients = job["options"]["model"], clients_of(job)
    if name == "drawing":
        seconds = statistics.median(timed(lambda: program(*shapes), jax.block_until_ready, SECONDS))
        return {"clients": clients, "seconds": seconds}
    params, x, y = steps.values(shapes)
    held = [jax.block_until_ready(params)]
    del params

    def call() -> Any:
        held[0] = program(held[0], x, y)
        return held[0]

    turns = turns_of(job)
    seconds = statistics.median(timed(call, jax.block_until_ready, SECONDS)) / turns
    finite = jax.jit(lambda tree: jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])))
    if not finite(held[0]):
        raise FloatingPointError("the parameters are not finite")
    row: Row = {"clients": clients, "seconds": seconds, "rate": clients / seconds}
    row["temporary"] = program.memory_analysis().temp_size_in_bytes
    parameters = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(shapes[0]))
    return row | server.share_of_floor(steps.work_of(name), parameters, clients / seconds)


# ResNet18 takes long to compile, so it is measured after every two programs.
server.serve_compiled(prepare, measure, 2 if server.jobs[0]["options"]["model"] == "resnet18" else 8)
