"""Functions of sorted columns: at each entry, the values of all clients in ascending order.

XLA's sort of columns is 40 times slower than NumPy's on CPUs. There a bitonic network sorts, of minima and maxima of
blocks of columns that fit the cache. A trimmed mean of 100 rows of 52500 entries takes up to twice as long as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fljax.core import platforms

BLOCK = 256  # columns that are sorted at a time: for 100 rows, 128 to 320 are best of 128 to 2048; for 1000 rows, 256
Reduce = Callable[..., Any]  # of sorted rows ``[S, columns]`` and some counts: ``[columns]``


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def of_sorted(reduce: Reduce, rows: jax.Array, counts: tuple[jax.Array, ...]) -> jax.Array:
    """``reduce(sorted rows, *counts)``; ``rows [S, columns]`` hold no NaN."""
    by_sort = lambda rows, counts: reduce(jnp.sort(rows, axis=0), *counts)  # noqa: E731
    return platforms.choose(rows, counts, cpu=partial(_by_network, reduce), default=by_sort)


@of_sorted.defjvp
def _of_sorted_jvp(reduce: Reduce, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    rows, counts = primals
    _, slope = jax.jvp(lambda rows: reduce(jnp.sort(rows, axis=0), *counts), (rows,), (tangents[0],))
    return of_sorted(reduce, rows, counts), slope


def _by_network(reduce: Reduce, rows: jax.Array, counts: tuple[jax.Array, ...]) -> jax.Array:
    columns = rows.shape[1]
    width = min(BLOCK, columns)

    def one(block: jax.Array, found: jax.Array) -> jax.Array:
        start = jnp.minimum(block * width, columns - width)  # the last block may overlap the one before
        part = jax.lax.dynamic_slice_in_dim(rows, start, width, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(found, reduce(_network(part), *counts), start, axis=0)

    return jax.lax.fori_loop(0, -(-columns // max(width, 1)), one, jnp.zeros(columns, rows.dtype))


def _network(rows: jax.Array) -> jax.Array:
    """A bitonic network. The first step of a stage mirrors the second half, so that all comparisons ascend."""
    height, width = rows.shape
    full = 1 << (height - 1).bit_length()
    rows = jnp.concatenate([rows, jnp.full((full - height, width), jnp.inf, rows.dtype)])
    for stage in range(1, full.bit_length()):
        for half in (1 << step for step in reversed(range(stage))):
            mirrored = slice(None, None, -1 if 2 * half == 1 << stage else 1)
            pairs = rows.reshape(full // (2 * half), 2, half, width)
            first, second = pairs[:, 0], pairs[:, 1, mirrored]
            least, most = jnp.minimum(first, second), jnp.maximum(first, second)[:, mirrored]
            rows = jnp.concatenate([least, most], axis=1).reshape(full, width)
    return rows[:height]
