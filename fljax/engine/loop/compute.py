"""What local training computes: gradients and inference passes of clients, counted while they train once more.

It is measured, since algorithms take several gradients a step, train two models, or judge the models of others. A
count that differs between rounds is that of one round. Ballots, and code without ``fljax.training``, do not count.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fljax.core import processes, trees
from fljax.engine.programs.program import Inputs, Spec, algorithm_of
from fljax.engine.rounds.federations import as_vectors
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import State
from fljax.training import KINDS, counting


def check_counted(offloaded: bool) -> None:
    """Raises a ValueError if clients cannot be counted: several processes share the run, or data stay on the host."""
    got = (
        "examples or client states on the host" if offloaded else "several processes" if processes.are_several() else ""
    )
    if got:
        raise ValueError(f"expected one process, with all data on its devices, to count gradient steps, got {got}")


def of_one_training(
    spec: Spec, inputs: Inputs, state: State, seeds: int, apart: bool = False
) -> dict[str, Int[np.ndarray, "seeds N"]]:
    """Gradients and inference passes by client of one local training; 0 for clients without training rows."""
    # ``apart``: whether scenarios may tell clients with as many training rows apart (effort, drift).
    inputs, state = jax.device_put((inputs, state), jax.local_devices()[0])
    size = np.asarray(inputs.federation.clients.train.size)
    size = np.broadcast_to(size, (seeds, size.shape[-1]))
    found = {kind: np.zeros(size.shape, np.int64) for kind in KINDS}
    clients = size.shape[-1]
    kind_of_client = size.astype(np.int64) * clients + (np.arange(clients) if apart else 0)

    def train(inputs: Inputs, state: State, seed: Array, client: Array) -> PyTree:
        algorithm, mine = algorithm_of(spec, inputs, seed, state.seed[seed])
        data, own = as_vectors(mine), trees.take(state, seed)
        chosen, kept = trees.take((data.clients, own.clients), client)
        zero = jnp.zeros((), jnp.int32)
        return train_one(algorithm, data, own.seed, own.round, own.server, chosen, zero, kept)

    with counting() as counts:
        run: Any = jax.jit(train)
        for alike in np.unique(kind_of_client[size > 0]):
            seed, client = np.argwhere(kind_of_client == alike)[0]
            counts.update(dict.fromkeys(KINDS, 0))
            jax.block_until_ready(run(inputs, state, jnp.int32(seed), jnp.int32(client)))
            jax.effects_barrier()
            for kind in KINDS:
                found[kind][kind_of_client == alike] = counts[kind]
    return found
