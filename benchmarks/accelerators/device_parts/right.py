"""Part 2: the accelerator's results beside those of the CPU in the same process."""

from __future__ import annotations

import functools
import threading
from typing import Any

from serving import Job, Row, Server

server = Server()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import fljax  # noqa: E402
from fljax import algorithms, data, engine, models  # noqa: E402

jax.config.update("jax_num_cpu_devices", 2)  # so that where there is no accelerator, one stands for it
server.use_jax()
CLIENTS = 20
FEATURES, CLASSES, ROWS = 64, 10, 1200
LOCAL = fljax.Local(learning_rate=0.05, batch_size=10, steps=10)
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": {"clients_per_round": 10},
    "scaffold": {"clients_per_round": 10},
    "incfl": {"clients_per_round": 10, "threshold": 1.5},
    "iafl": {"contribution": np.linspace(0.2, 1, CLIENTS), "ceiling": 1.0},
    "ipfl": {},
    "fedfomo": {"clients_per_round": 10},
}


def processor() -> Any:
    """The CPU; where JAX has no accelerator and two devices, the second one stands for it."""
    return jax.devices("cpu")[-1]


def on(device: Any, function: Any) -> Any:
    """What a function of nothing gives if its arrays are made on ``device``, as NumPy arrays."""
    with jax.default_device(device):
        return jax.tree.map(np.asarray, function())


def task_of() -> Any:
    """An MLP of 64-64-30-10."""
    return models.mlp((FEATURES,), CLASSES, hidden=(64, 30), dropout=0.0)


def federation_of() -> Any:
    """Twenty clients with unlike shares of Gaussian classes, with rows for validation and for the server."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, CLASSES, ROWS)
    x = generator.standard_normal((CLASSES, FEATURES))[y] + generator.standard_normal((ROWS, FEATURES))
    made = data.Dataset(x.astype(np.float32), y, CLASSES, ROWS)
    return data.federate(made, "dirichlet", clients=CLIENTS, beta=1.0, valid_fraction=0.2, held_fraction=0.1)


def two_rounds(name: str) -> Any:
    """The models after two rounds, and the records."""
    algorithm = getattr(algorithms, name)(task_of(), LOCAL, **OPTIONS[name])
    federation = federation_of()
    state, records = jax.jit(lambda: engine.rollout(algorithm, federation, rounds=2))()
    return [
        leaf for leaf in jax.tree.leaves(state.server) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ], records


def compared(found: Any, expected: Any) -> Row:
    """The largest difference of numbers, relative to their array's largest one; and how many decisions differ.

    Decisions are whole numbers and truth values: cohorts, subsets, clusters, bids, counts.
    """
    worst, differ, decisions = 0.0, 0, 0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(a.dtype, np.inexact):
            known = np.isfinite(b)
            if not np.array_equal(known, np.isfinite(a)):
                return {"failed": "numbers are not finite in other places"}
            scale = float(np.max(np.abs(b[known]), initial=0.0))
            if scale:
                worst = max(worst, float(np.max(np.abs(a[known] - b[known]), initial=0.0)) / scale)
        else:
            decisions += a.size
            differ += int(np.sum(a != b))
    return {"difference": worst, "decisions": decisions, "decisions_that_differ": differ}


def standalone() -> Any:
    """Losses of standalone models."""
    found = fljax.standalone(task_of(), federation_of(), LOCAL, execution=fljax.Execution(devices=1))
    return [found.threshold, found.test_loss]


def swept() -> Any:
    """The metrics of 64 learning rates, two rounds each."""
    rates = np.geomspace(0.001, 0.1, 64)
    plans = [
        engine.Plan(algorithms.fedavg, {"task": task_of(), "local": LOCAL._replace(learning_rate=float(rate))})
        for rate in rates
    ]
    found = engine.sweep(plans, federation_of(), rounds=2, execution=fljax.Execution(devices=1))
    return [np.asarray(each.metrics["average_loss"]) for each in found]


def slope() -> Any:
    """The gradient of the loss after two rounds by INCFL's thresholds."""
    federation, task = federation_of(), task_of()

    def loss(threshold: Any) -> Any:
        incfl = algorithms.incfl(task, LOCAL, threshold=threshold, clients_per_round=None)
        state, _ = engine.rollout(incfl, federation, rounds=2)
        return jnp.mean(engine.evaluate_clients(incfl, federation, state)["test_loss"])

    return jax.jit(jax.grad(loss))(jnp.full(CLIENTS, 1.5))


def from_host() -> Any:
    """The metrics of a run whose examples stay on the host."""
    fedavg = algorithms.fedavg(task_of(), LOCAL, clients_per_round=10)
    execution = fljax.Execution(devices=1, examples="host", client_states="host")
    return np.asarray(fljax.simulate(fedavg, federation_of(), rounds=2, execution=execution).metrics["test_loss"])


TASKS = {
    "standalone": standalone,
    "sweep of 64": swept,
    "gradient through a rollout": slope,
    "examples on the host": from_host,
}


def computation(options: dict[str, Any]) -> Any:
    """What a cell computes, a function of nothing."""
    return TASKS[options["task"]] if "task" in options else functools.partial(two_rounds, options["algorithm"])


@functools.cache
def _lock(name: str) -> threading.Lock:
    return threading.Lock()


def expected(name: str) -> Any:
    """The CPU's results, which are those of every precision; computed once, whoever asks first."""
    with _lock(name):
        return _on_cpu(name)


@functools.cache
def _on_cpu(name: str) -> Any:
    with jax.default_matmul_precision("highest"):
        return on(processor(), computation({"task": name} if name in TASKS else {"algorithm": name}))


def measure(job: Job) -> Row:
    """One cell, at the precision that it asks for."""
    options = job["options"]
    with jax.default_matmul_precision(None if options.get("precision") == "default" else "highest"):
        found = on(jax.devices()[0], computation(options))
    return compared(found, expected(options.get("task") or options["algorithm"]))


server.serve_together(measure)
