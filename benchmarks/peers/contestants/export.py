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
from fljax import training
from fljax.algorithms.cohorts import sample_uniform
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.protocol import Available, Rows, Subset


def data(meta: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``x``, ``y``, the training rows ``[N, n]`` and how many of them are a client's, ``[N]``.

    Pixels are random, most of them dark, and labelled by a linear teacher.
    """
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
    sizes = np.full(meta["clients"], meta["samples"])
    if meta["spread"]:  # whole batches, so that all have the same weight in a client's pass
        share = generator.dirichlet(np.full(meta["clients"], meta["spread"]))
        total = sizes.sum() // meta["batch"]
        batches = np.maximum(1, np.round(share * total)).astype(int)
        while batches.sum() != total:  # rounding; the table counts this many steps
            batches[batches.argmax()] += np.sign(total - batches.sum())
        sizes = batches * meta["batch"]
    rows = order[np.arange(meta["clients"] * sizes.max()) % meta["distinct"]]
    return x, y, rows.reshape(meta["clients"], -1).astype(np.int32), sizes.astype(np.int32)


def round_zero(meta: dict[str, Any], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the cohort ``[S]`` and batch positions ``[S, T, b]``, from the keys that the engine uses."""
    available = Available(meta["clients"])
    cohort, _ = sample_uniform(round_key(meta["seed"], Purpose.SELECT, 0), available, meta["cohort"])
    key = round_key(meta["seed"], Purpose.TRAIN, 0)
    index = jnp.zeros(int(sizes.max()), jnp.int32)

    def one(client: Any) -> Any:
        subset = Subset(None, Rows(index, jnp.asarray(sizes)[client]))  # type: ignore[arg-type]  # only the size is read
        own = jax.random.fold_in(client_key(key, client, 0), 0)
        return training.draw(own, subset, parts.local(meta)).position

    return np.asarray(cohort), np.asarray(jax.jit(jax.vmap(one))(cohort))


def answer(meta: dict[str, Any], x: Any, y: Any, rows: Any, position: Any, sizes: Any, model: Any, matrix: Any) -> Any:
    """Parameters after round 0 in float64; ``[N, ...]`` models if a matrix says how updates are mixed."""
    task = parts.task(meta, jnp.float64)
    steps = position.shape[1]
    counts = meta["epochs"] * (sizes // meta["batch"]) if meta["steps"] is None else np.full(len(sizes), steps)

    @jax.jit
    def train(x: Any, y: Any, batches: Any, model: Any) -> Any:
        def step(params: Any, place: Any) -> tuple[Any, None]:
            batch, real = place
            pixels = task.prepare(x[batch]) if task.prepare is not None else x[batch]
            slope = jax.grad(lambda p: jnp.mean(task.loss(task.logits(p, pixels), y[batch])))(params)
            return jax.tree.map(lambda p, g: p - jnp.where(real, meta["learning_rate"], 0) * g, params, slope), None

        def one(own: Any) -> Any:
            batches, count = own
            trained = jax.lax.scan(step, model, (batches, jnp.arange(steps) < count))[0]
            return jax.tree.map(jnp.subtract, trained, model)

        if matrix is None:  # adds up, so that many clients need no memory
            zero = jax.tree.map(jnp.zeros_like, model)
            add = lambda s, own: (jax.tree.map(lambda a, u: a + own[1] * u, s, one(own[0])), None)  # noqa: E731
            total = jax.lax.scan(add, zero, ((batches, jnp.asarray(counts)), jnp.asarray(sizes / sizes.sum())))[0]
            return jax.tree.map(jnp.add, model, total)
        updates = jax.lax.map(one, (batches, jnp.asarray(counts)))
        return jax.tree.map(lambda p, u: p + jnp.tensordot(matrix, u, 1), model, updates)

    batches = np.take_along_axis(rows[:, None, :], position, axis=2)
    model = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), model)
    return train(jnp.asarray(x), jnp.asarray(y), jnp.asarray(batches), model)


def packed(meta: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """All arrays of the file but the answer, and the initial model."""
    x, y, rows, sizes = data(meta)
    cohort, position = round_zero(meta, sizes)
    algorithm, federation = parts.algorithm(meta, parts.task(meta)), parts.federation(meta, x, y, rows, sizes)
    server: Any = jax.jit(lambda: fljax.rollout(algorithm, federation, rounds=0, seed=meta["seed"])[0].server)()
    model = jax.tree.map(np.asarray, getattr(server, "reference", getattr(server, "model", None)))
    arrays: dict[str, Any] = {"x": x, "y": y, "rows": rows, "sizes": sizes, "cohort": cohort, "position": position}
    if meta["evaluated"]:
        arrays["matrix"] = np.asarray(parts.subsets(round_key(meta["seed"], Purpose.AGGREGATE, 0), meta["clients"]))
    return arrays | {f"parameter:{name}": leaf for name, leaf in parts.named(model).items()}, model


def main() -> None:
    """Reads ``--meta JSON --out FILE``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--meta", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    meta = json.loads(options.meta)
    arrays, model = packed(meta)
    x, y, rows, sizes, cohort, position = (arrays[name] for name in ("x", "y", "rows", "sizes", "cohort", "position"))
    # Rows by id and rows of the cohort differ in order; the matrix speaks of ids.
    matrix = arrays["matrix"][:, cohort] if meta["evaluated"] else None
    with jax.enable_x64(True):
        after = parts.named(answer(meta, x, y, rows[cohort], position, sizes[cohort], model, matrix))
    arrays |= {f"after:{name}": leaf for name, leaf in after.items()}
    np.savez(options.out, meta=json.dumps(meta), **arrays)


if __name__ == "__main__":
    main()
