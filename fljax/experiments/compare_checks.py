"""What ``fljax.compare`` asks before it runs: enough clients, a folder of its own, one task for all checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import filelock
import jax
import numpy as np

from fljax import training
from fljax.algorithms import REGISTRY
from fljax.contributions.tables import is_named
from fljax.core import processes
from fljax.core.names import describe, shown
from fljax.experiments.inputs.setup import OptOut, Setup
from fljax.protocol import Federation, Task
from fljax.results import folders
from fljax.results.folders import COMPARISON, CONFIG, RESULTS


def check_cohorts(setup: Setup) -> None:
    """Raises a ValueError if an algorithm that asks all clients gets some of them, as a config does."""
    clients = setup.federation.clients.id.shape[-1]
    known = {entry.build: entry for entry in REGISTRY.values()}
    for entry in setup.algorithms:
        rows = entry.options.get("clients_per_round", setup.clients_per_round)
        asks_all = entry.plan is None and entry.build in known and known[entry.build].asks_all(entry.options)
        if asks_all and rows is not None and rows < clients:
            raise ValueError(
                f"{entry.label}: expected all {clients} clients in every round, which this algorithm asks, got {rows}"
            )


def opt_out_threshold_of(given: Any, clients: int) -> OptOut:
    """IP-FL's delta as a number, or as one for each client; raises a ValueError if it is neither."""
    labelled = is_named(given)  # labels would be passed over
    try:
        found = np.asarray(None if labelled or isinstance(given, str | bool) else given)
    except ValueError:  # a ragged list
        found = np.empty((), object)
    if found.dtype.kind not in "iuf" or found.shape not in ((), (clients,)) or not np.isfinite(found).all():
        raise ValueError(
            f"expected opt_out_threshold to be one finite number, or one for each of {clients} clients by id, got "
            f"{describe(given) if labelled else shown(given)}"
        )
    return tuple(map(float, found)) if found.ndim else float(found)


def check_folder(directory: pathlib.Path) -> None:
    """Raises a ValueError if a folder for checkpoints is that of a run or of a saved comparison."""
    taken = [name for name in (CONFIG, COMPARISON, RESULTS, folders.MODELS) if (directory / name).exists()]
    if taken:
        raise ValueError(
            f"expected a folder of its own for checkpoints, got {str(directory)!r}, which holds {taken[0]}"
        )


@contextlib.contextmanager
def locked(directory: pathlib.Path | None) -> Iterator[None]:
    """Holds the lock of a folder for checkpoints; raises a ValueError if another run has it.

    Of several processes that run together, process 0 holds it.
    """
    with contextlib.ExitStack() as held:
        processes.agreed(lambda: None if directory is None else held.enter_context(_locked(directory)))
        yield


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(directory / folders.LOCK)
    try:
        lock.acquire(timeout=0.2, poll_interval=0.02)
    except filelock.Timeout:
        raise ValueError(
            f"expected a folder that no other process writes to, got {str(directory)!r}, in which another run goes on"
        ) from None
    try:
        yield
    finally:
        lock.release()


def fingerprint(task: Task, federation: Federation) -> str:
    """What two tasks must have in common: the shapes of their parameters, and how they compute a loss of one row."""
    key = jax.random.key(0)
    model = jax.eval_shape(task.init, key)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), federation.examples)

    def loss(model: Any, one: Any) -> Any:
        return task.loss(task.logits(model, training.prepare(task, one.x)), one.y)

    computed = jax.make_jaxpr(loss)(model, one)
    return hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(computed)).encode()).hexdigest()[:16]
