"""A toy with cluster models, ballots, tokens, and a client that trains two models in a round: the shape of IP-FL.

Source: none; it exists to test the protocol.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import training
from fljax.aggregators import mix
from fljax.algorithms.clustered import validation
from fljax.core import trees
from fljax.protocol import Algorithm, Cohort, Poll, Task, along
from fljax.training import Local


class Server(NamedTuple):
    """Cluster models and the clients' tokens."""

    models: Any  # [C, ...]
    tokens: Any  # [N]


class Ballot(NamedTuple):
    """How good every cluster model is on the client's validation rows."""

    loss: Any  # [C]
    accuracy: Any  # [C]


class Up(NamedTuple):
    """What a row of the cohort sends."""

    update: Any
    size: Any


def clusters(
    task: Task, local: Local, *, clusters: int = 2, price: float = 1.0, server_lr: float = 1.0, poll_every: int = 1
) -> Algorithm:
    """Clients train the model that is best for them; the richest available client trains the next one as well.

    Args:
      task: model and loss.
      local: how clients train.
      clusters: C.
      price: tokens paid per unit of accuracy of the best model, in every round in which the client is available.
      server_lr: factor of the mean update.
      poll_every: rounds between two polls.
    """

    def judge(models: Any, subset: Any) -> Ballot:
        one = lambda model: training.evaluate(task, lambda x: task.logits(model, x), subset)  # noqa: E731
        return Ballot(*jax.vmap(one)(models))

    def init_server(key: Any, census: Any) -> Server:
        models = jax.vmap(task.init)(jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(clusters)))
        return Server(models, jnp.zeros(census.train.shape))

    def poll(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Ballot:
        return judge(down, validation(data))

    def select(key: Any, round: Any, server: Server, ballots: Ballot, available: Any) -> Any:
        able = available.mask()
        best = jnp.argmin(ballots.loss, axis=1)
        gained = jnp.take_along_axis(ballots.accuracy, best[:, None], axis=1)[:, 0]
        tokens = server.tokens + price * jnp.where(able, gained, 0).astype(server.tokens.dtype)
        richest = jnp.argmax(jnp.where(able, tokens, -1))
        id = jnp.append(jnp.arange(available.population), richest).astype(jnp.int32)
        slot = jnp.append(best, (best[richest] + 1) % clusters).astype(jnp.int32)
        return (
            server._replace(tokens=tokens),
            Cohort(id, slot, able[id]),
            along("client", tokens=tokens, best=best),
        )

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        start = trees.take(down, seat.slot)
        trained = training.train(key, start, data.train, task=task, local=local, round=seat.round)
        return Up(trees.subtract(trained.params, start), data.train.rows.size), client

    def aggregate(server: Server, up: Up, round: Any) -> Any:
        mine = round.cohort.slot[None, :] == jnp.arange(clusters)[:, None]
        weights = (mine * (up.size * round.cohort.present)[None, :]).astype(jnp.result_type(float))
        total = jnp.sum(weights, axis=1, keepdims=True)
        matrix = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 0)
        return server._replace(models=trees.add(server.models, trees.scale(mix(matrix, up.update), server_lr))), {}

    def deploy(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        return trees.take(down, jnp.argmin(judge(down, validation(data)).loss))

    return Algorithm(
        task=task,
        init_server=init_server,
        send=lambda server, seat: server.models,
        train=train,
        aggregate=aggregate,
        select=select,
        personal=deploy,
        poll=Poll(poll, poll_every),
    )
