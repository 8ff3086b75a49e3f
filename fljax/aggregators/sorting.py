"""Functions of sorted columns: at each entry, the values of all clients in ascending order.

XLA's sort of columns is 40 times slower than NumPy's on CPUs. There a bitonic network sorts, of minima and maxima of
blocks of columns that fit the cache. A trimmed mean of 100 rows of 52500 entries takes 23 ms, and 16 ms in NumPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax.core import platforms

# Columns that are sorted at a time. For 100 rows, of 128 to 2048 columns 128 to 320 are best; for 1000, 256.
BLOCK = 256

Reduce = Callable[..., Any]  # maps sorted rows ``[S, columns]`` and some counts to ``[columns]``


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def of_sorted(reduce: Reduce, leaves: list[jax.Array], counts: tuple[jax.Array, ...]) -> list[jax.Array]:
    """``reduce(sorted leaf, *counts)`` for each leaf ``[S, columns]``: ``[columns]``. Leaves have one dtype, no NaN."""
    cpu, default = (functools.partial(form, reduce) for form in (_by_network, _by_sort))
    return platforms.choose(leaves, counts, cpu=cpu, default=default)


@of_sorted.defjvp
def _of_sorted_jvp(reduce: Reduce, primals: Any, tangents: Any) -> tuple[list[jax.Array], list[jax.Array]]:
    leaves, counts = primals
    _, slopes = jax.jvp(lambda leaves: _by_sort(reduce, leaves, counts), (leaves,), (tangents[0],))
    return of_sorted(reduce, leaves, counts), slopes


def _by_sort(reduce: Reduce, leaves: list[jax.Array], counts: tuple[jax.Array, ...]) -> list[jax.Array]:
    return [reduce(jnp.sort(leaf, axis=0), *counts) for leaf in leaves]


def _by_network(reduce: Reduce, leaves: list[jax.Array], counts: tuple[jax.Array, ...]) -> list[jax.Array]:
    """All leaves side by side, so that there is one network to compile."""
    rows = jnp.concatenate(leaves, axis=1)
    columns = rows.shape[1]
    width = min(BLOCK, columns)
    if not rows.size:
        return _by_sort(reduce, leaves, counts)

    def one(block: jax.Array, found: jax.Array) -> jax.Array:
        # The last block may overlap the one before.
        start = jnp.minimum(block * width, columns - width)
        part = jax.lax.dynamic_slice_in_dim(rows, start, width, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(found, reduce(_network(part), *counts), start, axis=0)

    found = jax.lax.fori_loop(0, -(-columns // width), one, jnp.zeros(columns, rows.dtype))
    ends = [sum(leaf.shape[1] for leaf in leaves[:place]) for place in range(1, len(leaves))]
    return jnp.split(found, ends)


def _network(rows: jax.Array) -> jax.Array:
    """A bitonic network. The first step of a stage mirrors the second half, so that all comparisons ascend."""
    height, width = rows.shape
    full = 1 << (height - 1).bit_length()
    rows = jnp.concatenate([rows, jnp.full((full - height, width), jnp.inf, rows.dtype)])
    for stage in range(1, full.bit_length()):
        for half in (1 << step for step in reversed(range(stage))):
            mirrored = slice(None, None, -1 if 2 * half == 1 << stage else 1)
            pairs = rows.reshape(-1, 2, half, width)
            first, second = pairs[:, 0], pairs[:, 1, mirrored]
            least, most = jnp.minimum(first, second), jnp.maximum(first, second)[:, mirrored]
            rows = jnp.concatenate([least, most], axis=1).reshape(full, width)
    return rows[:height]
