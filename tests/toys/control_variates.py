"""A toy whose clients keep a control variate that corrects their gradients: the shape of SCAFFOLD.

Source: none; it exists to test the protocol.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fljax import training
from fljax.aggregators import mix
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.single_model import normalise_weights
from fljax.core import trees
from fljax.protocol import Algorithm, Task
from fljax.training import Local


class Server(NamedTuple):
    """The model, the mean of all control variates, and the number of clients."""

    model: Any
    control: Any
    population: Any


class Up(NamedTuple):
    """What a client sends: both changes."""

    update: Any
    control: Any


def control_variates(
    task: Task, local: Local, *, server_lr: float = 1.0, clients_per_round: int | None = None
) -> Algorithm:
    """``y <- y - lr (g(y) - c_k + c)``, ``c_k <- c_k - c + (w - y) / (steps lr)``; the server adds the means.

    Args:
      task: model and loss.
      local: how clients train: SGD, with steps.
      server_lr: factor of the mean update.
      clients_per_round: who trains in a round; None: all.
    """

    def init_server(key: Any, census: Any) -> Server:
        model = task.init(key)
        return Server(model, trees.zeros_like(model), jnp.maximum(jnp.sum(census.train > 0, dtype=jnp.int32), 1))

    def train(key: Any, seat: Any, down: Server, client: Any, data: Any) -> Any:
        adjust = training.with_correction(trees.subtract(down.control, client))
        trained = training.train(key, down.model, data.train, task=task, local=local, round=seat.round, adjust=adjust)
        update = trees.subtract(trained.params, down.model)
        length = trained.steps * training.rate(training.of_client(local, data.train), seat.round)
        control = trees.subtract(trees.subtract(client, down.control), trees.scale(update, trees.ratio(1, length)))
        return Up(update, trees.subtract(control, client)), control

    def aggregate(server: Server, up: Up, round: Any) -> Any:
        weights = normalise_weights(round.cohort.present.astype(jnp.result_type(float)))[None, :]
        mean = trees.take(mix(weights, up), 0)
        part = jnp.sum(round.cohort.present) / server.population
        model = trees.add(server.model, trees.scale(mean.update, server_lr))
        control = trees.add(server.control, trees.scale(mean.control, part))
        return server._replace(model=model, control=control), {}

    return Algorithm(
        task=task,
        init_server=init_server,
        send=lambda server, seat: server,
        train=train,
        aggregate=aggregate,
        select=select_uniform(clients_per_round),
        init_client=lambda key, seat, down, data: trees.zeros_like(down.model),
        common=lambda down: down.model,
    )
