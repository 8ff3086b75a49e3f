"""One round of FedPer, FedRep and FedBABU, written out in NumPy without fljax.

Parameters and clients are those of ``numpy_round``; ``b`` is the head and ``w`` the body. ``heads`` has the heads of
all clients by id. What a round changes goes in and comes out, and nothing is changed in place. Everything is in double
precision.

Sources: FedPer, Algorithms 1 and 2; FedRep, Algorithm 1; FedBABU, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tests.oracles.numpy_baselines import Clients, mixed, shares
from tests.oracles.numpy_round import Client, Params, gradient


class Heads(NamedTuple):
    """The body, which all share, and each client's own head by id."""

    body: np.ndarray
    heads: Mapping[int, np.ndarray]

    def model(self, id: int) -> Params:
        """The whole model of one client."""
        return {"w": self.body, "b": self.heads[id]}


def descended(model: Params, client: Client, rate: float, moving: tuple[str, ...]) -> Params:
    """One step of plain SGD per batch, of the ``moving`` tensors alone."""
    for rows in client.batches:
        slope = gradient(model, client.x[rows], client.y[rows])
        model = {name: leaf - rate * slope[name] if name in moving else leaf for name, leaf in model.items()}
    return model


def joined(state: Heads, ends: Mapping[int, Params], weights: list[float]) -> Heads:
    """The mean of the bodies, and each one's own head."""
    body = mixed([{"w": end["w"]} for end in ends.values()], weights)["w"]
    return Heads(body, {**state.heads, **{id: end["b"] for id, end in ends.items()}})


def fedper_round(state: Heads, clients: Clients, rate: float, *, by_size: bool = True) -> Heads:
    """Clients train body and head together."""
    ends = {id: descended(state.model(id), client, rate, ("w", "b")) for id, client in clients.items()}
    return joined(state, ends, shares(clients, by_size))


def fedrep_round(state: Heads, clients: Clients, of_heads: Clients, rate: float, *, by_size: bool = True) -> Heads:
    """The head first, on the batches of ``of_heads``, then the body."""
    ends = {}
    for id, client in clients.items():
        model = descended(state.model(id), of_heads[id], rate, ("b",))
        ends[id] = descended(model, client, rate, ("w",))
    return joined(state, ends, shares(clients, by_size))


def fedbabu_round(state: Heads, clients: Clients, rate: float, *, by_size: bool = False) -> Heads:
    """The body alone."""
    ends = {id: descended(state.model(id), client, rate, ("w",)) for id, client in clients.items()}
    return joined(state, ends, shares(clients, by_size))
