"""Where devices hold the arrays of a run: tables with one row per client are divided, all else is replicated.

Before clients are computed, their rows move to the device that computes them, block by block; their results move back.
Of several processes, each holds all of a state between programs, since each of them reads it.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from fljax.engine.devices.layout import Layout, division, mesh, replicate, sharding
from fljax.protocol import is_per_client


def shardings(state: Any, devices: int, lead: int) -> Any:
    """How devices hold a state: tables with one row per client are divided (``division``), all else is replicated.

    Args:
      state: a State of arrays or shapes, with ``lead - 1`` axes in front.
      devices: more than one.
      lead: the number of axes in front of one client's arrays: 1, or 2 with an axis of runs.
    """
    put = lambda spec: NamedSharding(mesh(devices), spec)  # noqa: E731
    divided = lambda tree: jax.tree.map(lambda leaf: put(division(leaf, devices, lead)), tree)  # noqa: E731
    whole = jax.tree.map(lambda leaf: put(PartitionSpec()), state)
    server = jax.tree.map(
        lambda part: divided(part) if is_per_client(part) else put(PartitionSpec()), state.server, is_leaf=is_per_client
    )
    return whole._replace(clients=divided(state.clients), server=server)


def state_shardings(states: PyTree, layout: Layout, lead: int = 2) -> Any:
    """Where devices hold the states of runs between programs: ``shardings``; None for each leaf with one device.

    The devices of several processes all hold all of it then, since each process reads the state. Devices that share
    whole runs do, too.
    """
    if layout.devices == 1 or layout.runs_apart or mesh(layout.devices).is_multi_process:
        return jax.tree.map(lambda leaf: sharding(layout.devices), states)
    return shardings(states, layout.devices, lead)


def place_state(states: PyTree, layout: Layout) -> PyTree:
    """States as ``state_shardings`` says, while tracing."""
    if layout.devices == 1:
        return states
    return jax.lax.with_sharding_constraint(states, state_shardings(states, layout))


def put_state(states: PyTree, layout: Layout) -> PyTree:
    """States as ``state_shardings`` says, before a program gets them."""
    if layout.devices == 1 or mesh(layout.devices).is_multi_process:
        return replicate(states, layout.devices)
    return jax.device_put(states, state_shardings(states, layout))


def keep_everywhere(tree: PyTree, layout: Layout) -> PyTree:
    """Arrays that every device holds, while tracing."""
    return tree if layout.devices == 1 else jax.lax.with_sharding_constraint(tree, sharding(layout.devices))
