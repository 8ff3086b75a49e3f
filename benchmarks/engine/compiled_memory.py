"""Memory of programs, as XLA says.

Nothing is run. Each case is a process of its own.

`cohorts`: temporary MB of a round of an MLP (784-64-30-10) with 60 rows for each client, with as many clients side by
side on each device as ``auto`` takes.

`devices`: MiB on each of several devices, where 51 clients have a model each, at the server or at the clients. One
client trains at a time, so that the tables of models are seen.

`gradients`: temporary MB of the gradient of the mean test loss after some rounds of INCFL, by every client's
threshold and the learning rate. Seconds are those of a second call; "-" without ``--run``.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from benchmarks.cases import grid
from benchmarks.reporting import MEBIBYTE, Row

CLIENTS, ROWS, CLASSES, HELD = 51, 8, 10, 64
# How clients are mapped for a gradient.
WAYS: dict[str, dict[str, Any]] = {
    "all side by side": {},
    "one at a time": {"clients": 1},
    "one at a time, recomputed": {"clients": 1, "rematerialise": True},
}


def cohorts(options: Namespace) -> Iterator[Row]:
    """Temporary memory of a round by the size of its cohort."""
    lists = {"algorithm": options.algorithms.split(","), "cohort": list(map(int, options.cohorts.split(",")))}
    return grid(options, "engine.compiled_memory:of_a_round", lists | {"devices": [options.devices]})


def images(clients: int) -> Any:
    """Clients with 60 of 6,000 random images each."""
    import jax.numpy as jnp
    import numpy as np

    from fljax.protocol import ClientData, Examples, Federation, Rows

    random = np.random.default_rng(0)
    examples = Examples(jnp.asarray(random.integers(0, 256, (6000, 28, 28)), jnp.uint8), jnp.arange(6000) % 10)
    owned = Rows(jnp.asarray(random.integers(0, 6000, (clients, 60)), jnp.int32), jnp.full(clients, 60, jnp.int32))
    few = Rows(owned.index[:, :1], jnp.ones(clients, jnp.int32))
    return Federation(examples, ClientData(jnp.arange(clients, dtype=jnp.int32), owned, few, few))


def of_a_round(algorithm: str, cohort: int, devices: int) -> dict[str, float]:
    """Temporary megabytes of the compiled round, and the clients side by side on each device."""
    import jax.numpy as jnp

    import fljax
    from fljax import algorithms, models
    from fljax.engine.programs import program
    from fljax.engine.programs.shapes import measure, resolve

    fljax.use_cores(devices)
    task = models.mlp((28, 28), 10, hidden=(64, 30), dropout=0.0)
    more = {"threshold": 1.0} if algorithm == "incfl" else {}
    made = getattr(algorithms, algorithm)(task, fljax.Local(0.05, 30, epochs=1), clients_per_round=None, **more)
    spec, inputs = program.partition_plan(made, images(cohort))
    layout = resolve(fljax.Execution(devices=devices), measure(spec, inputs, 1).sizes)
    traced = list(program.trace_all(spec, layout, 1, inputs, jnp.zeros(1, jnp.uint32)))[1]
    return {"temporary": traced.lower().compile().memory_analysis().temp_size_in_bytes / 1e6, "lanes": layout.clients}


def devices(options: Namespace) -> Iterator[Row]:
    """Memory of a round on each of several devices."""
    lists = {"algorithm": options.algorithms.split(","), "devices": list(map(int, options.devices.split(",")))}
    return grid(options, "engine.compiled_memory:on_devices", lists, model=options.model)


def on_devices(algorithm: str, model: str, devices: int) -> dict[str, float]:
    """Mebibytes on each device: of the state between rounds, and while each program runs."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import jax.numpy as jnp
    import numpy as np

    import fljax
    from fljax import algorithms, data, models
    from fljax.engine.devices.layout import replicate
    from fljax.engine.loop.compilation import compile_all
    from fljax.engine.programs.program import partition_plan
    from fljax.engine.programs.shapes import measure, resolve
    from fljax.engine.rounds.states import by_id

    random = np.random.default_rng(0)
    shape = (32, 32, 3) if model == "resnet18" else (784,)
    count = CLIENTS * ROWS + HELD
    x, y = random.normal(size=(count, *shape)).astype(np.float32), random.integers(0, CLASSES, count)
    own = {k: (x[ROWS * k : ROWS * (k + 1)], y[ROWS * k : ROWS * (k + 1)]) for k in range(CLIENTS)}
    held = fljax.protocol.Rows(jnp.arange(HELD, dtype=jnp.int32), jnp.int32(HELD))
    federation = data.from_clients(own)._replace(held={"validation": held, "test": held})
    task = models.resnet18(shape, CLASSES) if model == "resnet18" else models.mlp(shape, CLASSES, hidden=[512])
    arguments: dict[str, Any] = {"task": task, "local": fljax.Local(0.05, 4, steps=1)}
    if algorithm == "iafl":
        arguments["contribution"] = jnp.linspace(0.2, 1, CLIENTS)
    spec, inputs = partition_plan(fljax.Plan(getattr(algorithms, algorithm), arguments), by_id(federation))
    layout = resolve(fljax.Execution(clients=1, evaluation=1, devices=devices), measure(spec, inputs, 1).sizes)
    programs = compile_all(spec, layout, 1, replicate(inputs, devices), jnp.zeros(1, jnp.uint32), quick=True)
    analyses: list[Any] = [program.memory_analysis() for program in programs]
    found = {"state": analyses[0].output_size_in_bytes / MEBIBYTE}
    for name, told in zip(("start", "round", "evaluation"), analyses, strict=True):
        held_bytes = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
        found[name] = (held_bytes + told.temp_size_in_bytes) / MEBIBYTE
    return found


def gradients(options: Namespace) -> Iterator[Row]:
    """Memory of a gradient through rounds, with and without recomputation."""
    lists = {"way": list(WAYS), "clients": list(map(int, options.clients.split(",")))}
    return grid(options, "engine.compiled_memory:of_a_gradient", lists, rounds=options.rounds, run=options.run)


def of_a_gradient(way: str, clients: int, rounds: int, run: bool) -> dict[str, float | None]:
    """Temporary megabytes of the compiled gradient, and the seconds of its second call."""
    import jax
    import jax.numpy as jnp

    import fljax
    from fljax import algorithms, models

    data, layout = images(clients), WAYS[way]
    task = models.mlp((28, 28), 10, hidden=(64, 30), dropout=0.0)

    def loss(values: dict[str, Any]) -> Any:
        local = fljax.Local(values["learning_rate"], 30, epochs=1)
        algorithm = algorithms.incfl(task, local, threshold=values["threshold"], clients_per_round=None)
        state, _ = fljax.rollout(algorithm, data, rounds=rounds, **layout)
        return fljax.evaluate_clients(algorithm, data, state, clients=1)["test_loss"].mean()

    values = {"threshold": jnp.full(clients, 2.0), "learning_rate": jnp.asarray(0.05)}
    compiled: Any = jax.jit(jax.grad(loss)).lower(values).compile()
    seconds = None
    for _ in range(2 * run):
        began = time.perf_counter()
        jax.block_until_ready(compiled(values))
        seconds = time.perf_counter() - began
    return {"temporary": compiled.memory_analysis().temp_size_in_bytes / 1e6, "seconds": seconds}
