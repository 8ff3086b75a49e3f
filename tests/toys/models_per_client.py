"""A toy with one model per client at the server, and a reference model for strangers: the shape of IAFL.

Source: none; it exists to test the protocol.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import training
from fljax.aggregators import mix
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.single_model import normalise_weights, use_received_model
from fljax.core import trees
from fljax.protocol import Algorithm, Judged, Task, along
from fljax.training import Local


class Server(NamedTuple):
    """All models."""

    models: Any  # [N, ...]
    reference: Any


class Up(NamedTuple):
    """What a client sends."""

    update: Any


def recovers(key: Any, population: int, probability: Any) -> Any:
    """``[N]`` who gets the reference model this round, by id."""
    return jax.random.uniform(jax.random.fold_in(key, 1), (population,)) < probability


def models_per_client(
    task: Task,
    local: Local,
    *,
    contribution: Any,
    recovery: float = 0.3,
    clients_per_round: int | None = None,
) -> Algorithm:
    """Client i's model moves by a mean in which others weigh ``contribution_i / max contribution``, itself 1.

    Args:
      task: model and loss.
      local: how clients train.
      contribution: ``[N]`` by id.
      recovery: probability that a client's model is replaced by the reference before a round.
      clients_per_round: who trains in a round; None: all.
    """
    contribution = jnp.asarray(contribution)
    rate = contribution / jnp.max(contribution)
    uniform = select_uniform(clients_per_round)

    def init_server(key: Any, census: Any) -> Server:
        model = task.init(key)
        population = census.train.shape[0]
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population, *leaf.shape)), model)
        return Server(copies, model)

    def send(server: Server, seat: Any) -> Any:
        return trees.take(server.models, seat.id) if seat.known else server.reference

    def select(key: Any, round: Any, server: Server, ballots: Any, available: Any) -> Any:
        population = available.population
        chosen = recovers(key, population, recovery) & jnp.any(available.mask())
        everywhere = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population, *leaf.shape)), server.reference)
        models = trees.where_rows(chosen, everywhere, server.models)
        server, cohort, _ = uniform(key, round, server._replace(models=models), ballots, available)
        return server, cohort, along("client", recovered=chosen)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round)
        return Up(trees.subtract(trained.params, down)), client

    def aggregate(server: Server, up: Up, round: Any) -> Any:
        cohort = round.cohort
        own = cohort.id[None, :] == jnp.arange(rate.shape[0])[:, None]
        weights = jnp.where(own, 1, rate[:, None]) * cohort.present[None, :]
        total = jnp.sum(weights, axis=1, keepdims=True)
        matrix = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 0)
        models = trees.add(server.models, mix(matrix, up.update))
        everyone = normalise_weights(cohort.present.astype(matrix.dtype))[None, :]
        step = trees.take(mix(everyone, up.update), 0)
        return Server(models, trees.add(server.reference, step)), along("client", "row", matrix=matrix)

    return Algorithm(
        task=task,
        init_server=init_server,
        send=send,
        train=train,
        aggregate=aggregate,
        select=select,
        personal=use_received_model,
        models=lambda server: {"server_test": Judged(server.reference, "test")},
    )
