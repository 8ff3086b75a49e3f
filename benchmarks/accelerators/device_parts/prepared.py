"""The data of part 5 and 6, and what all contestants need to know of a workload."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import export
import jax
import jax.numpy as jnp
import numpy as np
import parts
import steps

import fljax
from benchmarks.peers.workloads import Workload, meta_of

AT_ONCE = 2 * 2**30  # bytes of parameters in float64 of the clients that are trained side by side for the answer


def run_of(work: Workload) -> tuple[dict[str, Any], Any, Any]:
    """The numbers, the algorithm and the federation of a workload."""
    meta = meta_of(work)
    x, y, rows, sizes = export.data(meta)
    return meta, parts.algorithm(meta, parts.task(meta)), parts.federation(meta, x, y, rows, sizes)


def simulation(
    meta: dict[str, Any], algorithm: Any, federation: Any, rounds: int, execution: fljax.Execution
) -> functools.partial[Any]:
    """So many rounds by ``fljax.simulate``, which takes further arguments."""
    how: dict[str, Any] = {"rounds": rounds, "evaluate_every": rounds, "seeds": [meta["seed"]], "execution": execution}
    return functools.partial(fljax.simulate, algorithm, federation, **how)


def save(work: Workload, file: Path, *, with_answer: bool) -> None:
    """Writes the file, with the answer in float64 if it is wanted.

    If the answer cannot be computed, the file is written without it, and the error is raised.
    """
    meta = meta_of(work)
    arrays, model = export.packed(meta)
    batches = np.take_along_axis(arrays["rows"][arrays["cohort"]][:, None, :], arrays["position"], axis=2)
    try:
        if with_answer:
            with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
                after = parts.named(answer(meta, arrays["x"], arrays["y"], batches, model))
            arrays |= {f"after:{each}": leaf for each, leaf in after.items()}
    finally:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, meta=json.dumps(meta), **arrays)
        partial.replace(file)


def answer(meta: dict[str, Any], x: Any, y: Any, batches: Any, model: Any) -> Any:
    """The mean of the clients' parameters after round 0, in float64. Clients are of equal size.

    Convolutions are products of tiles, which are fast on a CPU, too.
    """
    task = parts.task(meta, jnp.float64)
    name = {"cnn_b": "lenet", "resnet18": "resnet18"}.get(meta["model"])
    logits = task.logits if name is None else steps.logits_of(name, {"convolution": "tiles"})

    step, prepare = steps.local_step(logits), task.prepare or (lambda pixels: pixels)

    @jax.jit
    def total(x: Any, y: Any, batches: Any, model: Any) -> Any:
        turn = lambda params, batch: (step(params, prepare(x[batch]), y[batch]), None)  # noqa: E731
        one = lambda own: jax.lax.scan(turn, model, own)[0]  # noqa: E731
        return jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(one)(batches))

    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), model)
    each = 8 * sum(leaf.size for leaf in jax.tree.leaves(wide))
    count = len(batches)
    at_once = max(k for k in range(1, count + 1) if count % k == 0 and (k == 1 or k * each * 8 <= AT_ONCE))
    x, y = jnp.asarray(x), jnp.asarray(y)
    sums = [total(x, y, jnp.asarray(batches[at : at + at_once]), wide) for at in range(0, count, at_once)]
    return jax.tree.map(lambda *leaves: np.asarray(sum(leaves) / count), *sums)
