"""What processes hold.

Each case is a process of its own. Memory is in MiB.

`memory`: IAFL with 50 clients, 51 models at the server for each seed, 2 rounds, one device. *Estimate*: what ``fljax
run`` says before anything runs. *Peak*: the largest resident memory of the process. *Floor*: what a process holds
that has compiled the same programs for arrays that do not exist; arrays of small models may lie in what compiling
freed. *Compiler*: how much more than the floor that process held while it compiled. *Second run*: by how much a
further run in the same process, which compiles nothing, makes the resident memory grow; it is the estimate without
data.

`populations`: logistic regression, 100 clients in each round, 5 steps of 4 rows. Clients are even (7 rows each) or
ragged (4 to 10 rows, and one client with 2,000). *Peak* is beyond what the process held before the data were made.

`long_runs`: INCFL with all of many clients in every round, so that a record has an entry for each client and round.
After checkpoints long records stay on the disk. *Read*: seconds for one client's weights of the last hundred rounds.
"""

from __future__ import annotations

import gc
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import apart, forget_peak, grid, resident
from benchmarks.peers.workloads import CLASSES, WORKLOADS, Workload, meta_of
from benchmarks.reporting import MEBIBYTE, Row, names_in

ROUNDS = 2
# One local step on two images, so that two cores are done in minutes; what is held is models. 51 CNN-A are 9 MiB, too
# little to be told from what else a process does, so they have ten seeds.
MODELS: dict[str, tuple[Workload, int]] = {
    "cnn_a": (WORKLOADS["W6"], 10),
    "resnet18": (
        WORKLOADS["W4"]._replace(
            clients=50, cohort=50, samples=2, distinct=102, batch=2, evaluated=2, multiplications=()
        ),
        1,
    ),
    "small": (WORKLOADS["W6"]._replace(clients=4, cohort=4, samples=50, distinct=200, evaluated=10), 1),
}
POOL, FEATURES, COHORT = 20_000, 60, 100
# Arrays of a mebibyte and more are given back to the system as soon as they are free.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(MEBIBYTE)}


def estimates(options: Namespace) -> Iterator[Row]:
    """The estimate of memory beside what a process held."""
    for name in names_in(options.models, tuple(MODELS), "model"):
        work, seeds = MODELS[name]
        asked: dict[str, Any] = {"meta": meta_of(work), "seeds": seeds}
        found = apart("engine.memory:of_programs", given=GIVEN_BACK, **asked)
        found |= apart("engine.memory:of_a_run", given=GIVEN_BACK, **asked)
        if "failed" in found:
            yield name, found["failed"]
            continue
        low, peak, told = found["floor"], found["peak"], found["estimate"]
        sizes = (told["server"], told["data"], told["peak"], low, peak, peak - low)
        yield (
            name,
            seeds,
            *(size / MEBIBYTE for size in sizes),
            told["peak"] / (peak - low),
            (found["compiler"] - low) / MEBIBYTE,
            found["growth"] / MEBIBYTE,
            (told["peak"] - told["data"]) / found["growth"],
        )


def in_turn(meta: dict[str, Any]) -> Any:
    """Random examples, of which clients take their rows in turn; nothing large is made on the way."""
    import jax
    import numpy as np

    from benchmarks.peers.contestants import parts

    generator = np.random.default_rng(0)
    shape = (meta["distinct"], *meta["shape"])
    x = generator.integers(0, 256, shape, np.uint8) if meta["pixels"] else generator.standard_normal(shape, np.float32)
    y = generator.integers(0, meta["classes"], len(x)).astype(np.int32)
    rows = np.arange(meta["clients"] * meta["samples"], dtype=np.int32)
    rows %= np.int32(len(x))
    return jax.block_until_ready(parts.federation(meta, x, y, rows.reshape(meta["clients"], -1)))


def of_a_run(meta: dict[str, Any], seeds: int) -> dict[str, Any]:
    """The estimate, and what two runs held."""
    import jax

    import fljax
    from benchmarks.peers.contestants import parts

    fljax.use_cores(1)
    algorithm, data, told = parts.algorithm(meta, parts.task(meta)), in_turn(meta), list[Any]()

    def train() -> None:
        how = fljax.Execution(devices=1)
        found = fljax.simulate(
            algorithm, data, rounds=ROUNDS, evaluate_every=ROUNDS, seeds=range(seeds), execution=how,
            on_memory=told.append,
        )  # fmt: skip
        jax.block_until_ready(found.state)

    train()
    whole = resident("VmHWM")
    gc.collect()
    before = resident()
    forget_peak()
    train()
    return {"peak": whole, "growth": resident("VmHWM") - before, "estimate": told[0]._asdict()}


def of_programs(meta: dict[str, Any], seeds: int) -> dict[str, Any]:
    """What the same process holds without the arrays: at its end, and at most while it compiled."""
    import jax
    import jax.numpy as jnp

    import fljax
    from benchmarks.peers.contestants import parts
    from fljax.engine.loop.compilation import compile_all
    from fljax.engine.programs import program
    from fljax.engine.programs.shapes import measure, resolve

    fljax.use_cores(1)
    spec, inputs = program.partition_plan(parts.algorithm(meta, parts.task(meta)), in_turn(meta))
    layout = resolve(fljax.Execution(devices=1), measure(spec, inputs, seeds).sizes)
    inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), inputs)
    gc.collect()
    forget_peak()
    compile_all(spec, layout, ROUNDS, inputs, jnp.zeros(seeds, jnp.uint32))
    gc.collect()
    return {"floor": resident(), "compiler": resident("VmHWM")}


def populations(options: Namespace) -> Iterator[Row]:
    """Time and memory of a round by the size of the population."""
    lists = {
        "algorithm": options.algorithms.split(","),
        "clients": list(map(int, options.clients.split(","))),
        "form": options.forms.split(","),
        "place": options.places.split(","),
    }
    return grid(options, "engine.memory:of_a_population", lists, rounds=options.rounds)


def of_a_population(clients: int, algorithm: str, form: str, place: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a round and mebibytes: of the data, and of the peak beyond the process before it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fljax
    from fljax import algorithms, models
    from fljax.core import trees

    jax.block_until_ready(jnp.zeros(1))
    before = resident()
    data = spread_out(clients, form)
    held, tables = trees.bytes_of(data), trees.bytes_of(data) - trees.bytes_of(data.examples)
    how: dict[str, Any] = {}
    if place == "host":
        data = data._replace(examples=jax.tree.map(np.asarray, data.examples))
        how = {"execution": fljax.Execution(examples="host", client_states="host")}
    task = models.logistic_regression((FEATURES,), CLASSES)
    more: dict[str, Any] = {"threshold": 1.0} if algorithm == "incfl" else {}
    chosen = getattr(algorithms, algorithm)(task, fljax.Local(0.05, 4, steps=5), clients_per_round=COHORT, **more)
    seconds, state = [], None
    for _ in range(3):  # the cores are shared, so the quickest of three blocks of rounds counts
        result = fljax.simulate(chosen, data, rounds=rounds, evaluate_every=rounds, initial=state, **how)
        seconds.append(float(result.metrics["seconds_train"]) / rounds)
        state = result.state
    peak = (resident("VmHWM") - before) / MEBIBYTE
    return {"ms": 1e3 * min(seconds), "tables": tables / MEBIBYTE, "data": held / MEBIBYTE, "peak": peak}


def spread_out(clients: int, form: str) -> Any:
    """Clients with some rows each, out of one pool; each is tested on one row."""
    import jax.numpy as jnp
    import numpy as np

    from fljax import protocol

    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(POOL, FEATURES)), jnp.float32)
    examples = protocol.Examples(x, jnp.asarray(random.integers(0, CLASSES, POOL), jnp.int32))
    size = np.full(clients, 7) if form == "even" else random.integers(4, 11, clients)
    size[0] = 7 if form == "even" else 2_000
    lists = jnp.asarray(random.integers(0, POOL, int(size.sum())), jnp.int32)
    start = jnp.asarray(np.cumsum(size) - size, jnp.int32)
    train = protocol.Rows(protocol.Spans(start, int(size.max())), jnp.asarray(size, jnp.int32))
    few = protocol.Rows(protocol.Spans(start, 1), jnp.ones(clients, jnp.int32))
    owned = protocol.ClientData(jnp.arange(clients, dtype=jnp.int32), train, few, few)
    return protocol.Federation(examples, owned, lists=lists)


def long_runs(options: Namespace) -> Iterator[Row]:
    """Memory of runs with many records, with and without checkpoints."""
    for rounds in map(int, options.rounds.split(",")):
        lists = {"rounds": [rounds], "saves": [False, True] if rounds <= options.without else [True]}
        yield from grid(options, "engine.memory:of_records", lists, clients=options.clients)


def of_records(rounds: int, clients: int, saves: bool) -> dict[str, float]:
    """Mebibytes of the process, of its records and of the folder, and seconds."""
    import numpy as np

    import fljax
    from fljax import algorithms, data, models

    x = np.random.default_rng(0).normal(size=(4 * clients, 8)).astype(np.float32)
    federation = data.from_arrays(x, (x[:, 0] > 0).astype(np.int32), np.arange(len(x)) % clients)
    task, local = models.logistic_regression((8,), 2), fljax.Local(learning_rate=0.05, batch_size=2, steps=1)
    incfl = algorithms.incfl(task, local, threshold=0.3, clients_per_round=clients)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        where: Any = folder if saves else None
        result = fljax.simulate(incfl, federation, rounds=rounds, evaluate_every=max(rounds // 10, 1), checkpoint=where)
        spent, began = time.perf_counter() - began, time.perf_counter()
        picked = float(result.records["weight"].isel(row=3).sel(round=slice(rounds - 100, None)).mean())
        read = time.perf_counter() - began
        on_disk = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
        records = result.records.nbytes
    assert picked == picked
    sizes = {"peak": resident("VmHWM"), "records": records, "folder": on_disk}
    return {name: size / MEBIBYTE for name, size in sizes.items()} | {"run": spent, "read": read}
