"""The inputs of one client's model, from data and states that are on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.engine.offload.host_data import HostData
from fljax.engine.programs.program import Inputs
from fljax.engine.rounds.states import State
from fljax.protocol import ClientData, Federation


def only_client(inputs: Inputs, state: State, seed: int, client: int, unseen: bool) -> tuple[Inputs, State]:
    """The inputs and the states with this client alone, as client 0; the axis of seeds stays.

    Args:
      inputs: of one plan.
      state: of all seeds.
      seed: the position of the seed whose data are taken.
      client: the id of a seen client, or the place of an unseen one.
      unseen: whether it is an unseen client.
    """
    federation = inputs.federation
    if isinstance(federation.examples.x, np.ndarray):
        found = _moved(federation, seed, client, unseen)
    else:
        axis = federation.clients.id.ndim - 1
        take = lambda leaf: jax.lax.slice_in_dim(jnp.asarray(leaf), client, client + 1, axis=axis)  # noqa: E731
        population: Any = federation.unseen if unseen else federation.clients
        found = _alone(federation, jax.tree.map(take, population), unseen)
    if unseen:
        return inputs._replace(federation=found), state._replace(clients=())
    own = jax.tree.map(lambda leaf: leaf[:, client : client + 1], state.clients)
    return inputs._replace(federation=found), state._replace(clients=own)


def _moved(federation: Federation, seed: int, client: int, unseen: bool) -> Federation:
    data = HostData.of(federation)
    population = data.unseen if unseen else data.seen
    assert population is not None
    place = np.array([client])
    parts = population.lists.keys()
    block = data.block(population, seed % len(population.id), place, parts, population.most(parts, 1))
    return _alone(block, block.clients, unseen)


def _alone(federation: Federation, clients: ClientData, unseen: bool) -> Federation:
    return federation._replace(clients=clients, unseen=clients if unseen else None, held={})
