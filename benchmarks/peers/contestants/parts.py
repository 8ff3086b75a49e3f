"""What every program that uses fljax here needs: a workload's task, federation and algorithm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax
from fljax import aggregators, algorithms, models
from fljax.protocol import ClientData, Examples, Rows
from fljax.testing import federation as testing_federation


def task(meta: dict[str, Any], dtype: Any = jnp.float32) -> fljax.Task:
    """The model of a workload; pixels are read as ``x / 255``."""
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in meta["options"].items()}
    return models.MODELS[meta["model"]](tuple(meta["shape"]), meta["classes"], dtype=dtype, **options)


def local(meta: dict[str, Any]) -> fljax.Local:
    """How clients train: plain SGD, some epochs or a number of steps."""
    epochs = meta["epochs"] if meta["steps"] is None else None
    return fljax.Local(meta["learning_rate"], meta["batch"], steps=meta["steps"], epochs=epochs)


def federation(
    meta: dict[str, Any], x: np.ndarray, y: np.ndarray, rows: np.ndarray, sizes: np.ndarray | None = None
) -> fljax.Federation:
    """Clients with the first ``sizes`` of their training rows (None: all); one test row each, whose cost is nothing.

    Where all models are evaluated every client has the same test rows, and one unseen client stands for the reference
    model.
    """
    clients = len(rows)
    tested = meta["evaluated"] or 1

    def table(index: np.ndarray, sizes: np.ndarray | None = None) -> Rows:
        sizes = np.full(len(index), index.shape[1]) if sizes is None else sizes
        return Rows(jnp.asarray(index, jnp.int32), jnp.asarray(sizes, jnp.int32))

    def population(index: np.ndarray, sizes: np.ndarray | None = None) -> ClientData:
        nothing = Rows(jnp.zeros((len(index), 1), jnp.int32), jnp.zeros(len(index), jnp.int32))
        tests = np.broadcast_to(np.arange(len(y) - tested, len(y)), (len(index), tested))
        return ClientData(jnp.arange(len(index), dtype=jnp.int32), table(index, sizes), nothing, table(tests))

    unseen = population(rows[:1]) if meta["evaluated"] else None
    assert clients == meta["clients"]
    examples = Examples(jnp.asarray(x), jnp.asarray(y, jnp.int32))
    made = fljax.Federation(examples, population(rows, sizes), unseen)
    # As data.federate stores clients; earlier checkouts (pairs.py --against) have tables only.
    with_lists = getattr(testing_federation, "with_lists", None)
    return made if with_lists is None else with_lists(made, 0)


def algorithm(meta: dict[str, Any], task: fljax.Task) -> fljax.Algorithm:
    """FedAvg, or IAFL where all models are evaluated."""
    if meta["evaluated"]:
        return algorithms.iafl(task, local(meta), contribution=rates(meta["clients"]), ceiling=1.0)
    everybody = meta["cohort"] == meta["clients"]
    return algorithms.fedavg(task, local(meta), clients_per_round=None if everybody else meta["cohort"])


def rates(clients: int) -> jax.Array:
    """Everybody is rewarded with the updates of half of the others."""
    return jnp.full(clients, 0.5)


def subsets(key: Any, clients: int) -> jax.Array:
    """``[N, N]``: each row averages a client's own update with those of a random half of the others."""
    return aggregators.iafl_subsets(key, rates(clients))


def named(tree: Any) -> dict[str, np.ndarray]:
    """A pytree of arrays as a dictionary by path, e.g. ``dense_0/kernel``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def nested(named: dict[str, Any]) -> dict[str, Any]:
    """``{"dense_0/kernel": ...}`` as the model holds it, ``{"dense_0": {"kernel": ...}}``."""
    found: dict[str, Any] = {}
    for path, leaf in named.items():
        *folders, last = path.split("/")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = leaf
    return found


def model_of(state: Any) -> dict[str, np.ndarray]:
    """The model (or all models) in the state of a run with one seed."""
    server = state.server
    model = getattr(server, "models", None)
    model = server.model if model is None else model
    model = model.values if "values" in getattr(model, "_fields", ()) else model  # by client
    return {name: leaf[0] for name, leaf in named(model).items()}
