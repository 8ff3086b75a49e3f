"""Mapping a function written for one client over many: lanes side by side, chunks one after another, devices apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fljax import trees

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PyTree

AXIS = "clients"


@functools.lru_cache(maxsize=8)
def mesh(devices: int) -> Mesh:
    """The first ``devices`` devices along the axis "clients"."""
    return Mesh(np.asarray(jax.devices()[:devices]), (AXIS,))


def on_devices(function: Callable[..., PyTree], devices: int) -> Callable[..., PyTree]:
    """Runs ``function`` on every device with the same arguments; ``map_lanes`` inside it parts the clients.

    What is not mapped over clients (selection, aggregation) every device computes for itself, so that all of them
    hold the same state and a result does not depend on their number.
    """
    if devices == 1:
        return function
    everywhere = PartitionSpec()
    # Trip counts differ between devices on purpose, which the check of varying axes would refuse.
    return jax.shard_map(function, mesh=mesh(devices), in_specs=everywhere, out_specs=everywhere, check_vma=False)


def sharding(devices: int) -> NamedSharding | None:
    """Of what every device holds whole; None where there is one device."""
    return None if devices == 1 else NamedSharding(mesh(devices), PartitionSpec())


def replicated(tree: PyTree, devices: int) -> PyTree:
    """The arrays of ``tree`` on every device, where there are several."""
    return tree if devices == 1 else jax.device_put(tree, sharding(devices))


def map_lanes(
    function: Callable[[Any], Any],
    xs: PyTree,
    lanes: int,
    devices: int = 1,
    cost: Int[Array, " count"] | None = None,
) -> PyTree:
    """Maps over the leading axis of ``xs``, ``lanes`` at a time on each device.

    Args:
      function: of one row.
      xs: ``[count, ...]``.
      lanes: 1 is a scan, all of them one ``vmap``; in between: chunks.
      devices: over how many the rows are spread; above 1 only inside ``on_devices``.
      cost: ``[count]``, what each row costs (its samples, say). Rows of like cost then share a chunk and devices get
        like sums, since a chunk takes as many steps as its longest row; a chunk in which all rows cost nothing is
        not computed (unless seeds are batched), and its results are zeros. None: all alike.

    Returns:
      Results in the order of ``xs``; where the rows do not divide into chunks, padding costs nothing.
    """
    count = jax.tree.leaves(xs)[0].shape[0]
    lanes = max(1, min(lanes, -(-count // devices)))
    if count == 0:
        return jax.vmap(function)(xs)
    if devices == 1 and (cost is None or lanes == 1):
        return _in_turn(function, xs, lanes, cost)
    chunks = -(-count // (lanes * devices))
    order = jnp.arange(count) if cost is None else jnp.argsort(-cost, stable=True)
    place = _deal(chunks, devices, lanes)  # [devices, chunks, lanes]: which row, counted in order of cost
    mine = jnp.asarray(place)[jax.lax.axis_index(AXIS)] if devices > 1 else jnp.asarray(place[0])
    row = order[jnp.minimum(mine, count - 1)].reshape(-1)
    worth = jnp.ones(count, jnp.int32) if cost is None else cost
    worth = jnp.where(mine.reshape(-1) < count, worth[row], 0)
    found = _in_turn(function, trees.take(xs, row), lanes, worth)
    if devices > 1:
        found = jax.lax.all_gather(found, AXIS, tiled=True)
    back = np.argsort(place.reshape(-1))[:count]
    back = jnp.asarray(back) if cost is None else jnp.asarray(back)[jnp.argsort(order)]
    return trees.take(found, back)


def _in_turn(function: Callable[[Any], Any], xs: PyTree, lanes: int, cost: Array | None) -> PyTree:
    """Chunks one after another; those that cost nothing are skipped."""
    count = jax.tree.leaves(xs)[0].shape[0]
    if cost is None:
        if lanes >= count and count > 1:
            return jax.vmap(function)(xs)
        return jax.lax.map(function, xs, batch_size=None if lanes == 1 else lanes)
    whole, worth = function if lanes == 1 else jax.vmap(function), cost
    if lanes > 1:
        xs = jax.tree.map(lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:]), xs)
        worth = jnp.max(cost.reshape(-1, lanes), axis=1)

    def one(row: tuple[PyTree, Array]) -> PyTree:
        x, worth = row
        nothing = lambda x: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(whole, x))  # noqa: E731
        return jax.lax.cond(worth > 0, whole, nothing, x)

    found = jax.lax.map(one, (xs, worth))
    return found if lanes == 1 else jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


def _deal(chunks: int, devices: int, lanes: int) -> np.ndarray:
    """``[devices, chunks, lanes]``: rows in order of cost, dealt to and fro, so that sums of costs come out alike."""
    chunk = np.arange(chunks)[None, :] * devices
    device = np.arange(devices)[:, None]
    dealt = chunk + np.where(np.arange(chunks)[None, :] % 2 == 0, device, devices - 1 - device)
    return dealt[:, :, None] * lanes + np.arange(lanes)
