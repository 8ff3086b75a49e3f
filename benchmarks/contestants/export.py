"""Writes a workload to one file that all contestants read: data, initial parameters, and round 0 as fljax draws it.

The answer to be compared with, the parameters after round 0, is computed here in float64 (``after:`` entries): clients
one after another, the same batches, plain SGD, the mean of the updates.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import parts

import fljax
from fljax import local as training
from fljax.algorithms.common import sample_uniform
from fljax.engine.keys import Purpose, client_key, round_key
from fljax.types import Available, Rows, Subset


def data(meta: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``x``, ``y`` and the training rows ``[N, n]``: random pixels, most of them dark, labelled by a linear teacher."""
    generator = np.random.default_rng(0)
    examples = meta["distinct"] + meta["evaluated"]
    shape = (examples, *meta["shape"])
    if meta["pixels"]:
        x = generator.integers(0, 256, shape, np.uint8)
        x *= generator.random(shape, np.float32) < 0.4
    else:
        x = generator.standard_normal(shape, np.float32)
    flat = x.reshape(examples, -1)
    teacher = generator.standard_normal((flat.shape[1], meta["classes"]), np.float32)
    teacher -= teacher.mean(axis=0)
    y = np.argmax(flat.astype(np.float32) @ teacher, axis=1).astype(np.int32)
    order = generator.permutation(meta["distinct"])
    rows = order[np.arange(meta["clients"] * meta["samples"]) % meta["distinct"]]
    return x, y, rows.reshape(meta["clients"], meta["samples"]).astype(np.int32)


def round_zero(meta: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the cohort ``[S]`` and batch positions ``[S, T, b]``, from the keys that the engine uses."""
    available = Available(meta["clients"])
    cohort, _ = sample_uniform(round_key(meta["seed"], Purpose.SELECT, 0), available, meta["cohort"])
    key = round_key(meta["seed"], Purpose.TRAIN, 0)
    index, size = jnp.zeros(meta["samples"], jnp.int32), jnp.asarray(meta["samples"], jnp.int32)
    subset = Subset(None, Rows(index, size))  # type: ignore[arg-type]  # only the size is read

    def one(client: Any) -> Any:
        own = jax.random.fold_in(client_key(key, client, 0), 0)
        return training.draw(own, subset, parts.local(meta)).position

    return np.asarray(cohort), np.asarray(jax.jit(jax.vmap(one))(cohort))


def answer(meta: dict[str, Any], x: Any, y: Any, rows: Any, position: Any, model: Any, matrix: Any) -> Any:
    """Parameters after round 0 in float64; ``[N, ...]`` models if a matrix says how updates are mixed."""
    task = parts.task(meta, jnp.float64)

    @jax.jit
    def train(x: Any, y: Any, batches: Any, model: Any) -> Any:
        def step(params: Any, batch: Any) -> tuple[Any, None]:
            pixels = task.prepare(x[batch]) if task.prepare is not None else x[batch]
            slope = jax.grad(lambda p: jnp.mean(task.loss(task.logits(p, pixels), y[batch])))(params)
            return jax.tree.map(lambda p, g: p - meta["learning_rate"] * g, params, slope), None

        def one(batches: Any) -> Any:
            trained = jax.lax.scan(step, model, batches)[0]
            return jax.tree.map(jnp.subtract, trained, model)

        if matrix is None:  # adds up, so that many clients need no memory
            zero = jax.tree.map(jnp.zeros_like, model)
            total = jax.lax.scan(lambda s, b: (jax.tree.map(jnp.add, s, one(b)), None), zero, batches)[0]
            return jax.tree.map(lambda p, s: p + s / len(batches), model, total)
        updates = jax.lax.map(one, batches)
        return jax.tree.map(lambda p, u: p + jnp.tensordot(matrix, u, 1), model, updates)

    batches = np.take_along_axis(rows[:, None, :], position, axis=2)
    model = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), model)
    return train(jnp.asarray(x), jnp.asarray(y), jnp.asarray(batches), model)


def main() -> None:
    """Reads ``--meta JSON --out FILE``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--meta", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    meta = json.loads(options.meta)
    x, y, rows = data(meta)
    cohort, position = round_zero(meta)
    algorithm = parts.algorithm(meta, parts.task(meta))
    state = fljax.simulate(algorithm, parts.federation(meta, x, y, rows), rounds=0, seeds=[meta["seed"]]).state
    server = state.server
    model = jax.tree.map(lambda leaf: np.asarray(leaf[0]), getattr(server, "reference", getattr(server, "model", None)))
    extra = {}
    matrix = None
    if meta["evaluated"]:
        matrix = np.asarray(parts.subsets(round_key(meta["seed"], Purpose.AGGREGATE, 0), meta["clients"]))
        extra["matrix"] = matrix
        # Rows by id and rows of the cohort differ in order; the matrix speaks of ids.
        matrix = matrix[:, cohort]
    with jax.enable_x64(True):
        after = parts.named(answer(meta, x, y, rows[cohort], position, model, matrix))
    parameters = {f"parameter:{name}": leaf for name, leaf in parts.named(model).items()}
    arrays = {"x": x, "y": y, "rows": rows, "cohort": cohort, "position": position, **parameters, **extra}
    everything: dict[str, Any] = {**arrays, **{f"after:{name}": leaf for name, leaf in after.items()}}
    np.savez(options.out, meta=json.dumps(meta), **everything)


if __name__ == "__main__":
    main()
