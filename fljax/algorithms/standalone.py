"""Standalone training: every client trains alone; the baseline for incentives.

Source: the solo models of INCFL (section 2) and the standalone models of IAFL (section 6). Deviation: none; a constant
learning rate is the default of ``Local``. For thresholds computed once, before a run, see ``fljax.standalone``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import learning_by, single_model
from fljax.core.values import checked
from fljax.protocol import Algorithm, LocalData, Seat, Task
from fljax.training import Local


class StandaloneClient(NamedTuple):
    """A client's own model, kept between rounds."""

    model: PyTree
    optimizer: PyTree = ()  # its kept state


@checked
def standalone(task: Task, local: Local) -> Algorithm:
    """``theta_k <- LocalSGD(theta_k, k)``: no update is sent, nothing is aggregated.

    Args:
      task: model and loss.
      local: how clients train.

    Returns:
      The algorithm. All clients start from the same model. An unseen client uses a model trained alone on its own
      training rows for the same number of rounds. Metrics that compare with standalone models are NaN, and there are
      none of a global model.
    """
    learning = learning_by(task, local)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: StandaloneClient, data: LocalData
    ) -> tuple[tuple[()], StandaloneClient]:
        trained = learning.train(key, seat, client.model, data, client.optimizer)
        return (), StandaloneClient(trained.params, trained.state)

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: StandaloneClient, data: LocalData) -> PyTree:
        if seat.known:
            return client.model

        def one(round: int | Int[Array, ""], own: StandaloneClient) -> StandaloneClient:
            return train(jax.random.fold_in(key, round), seat._replace(round=round), (), own, data)[1]

        return jax.lax.fori_loop(jnp.zeros((), jnp.int32), seat.round, one, client).model

    return single_model(
        task,
        clients_per_round=None,  # all clients, whatever the other algorithms' cohorts
        train=train,
        send=lambda server, seat: server.model if seat.first else (),
        init_client=lambda key, seat, down, data: StandaloneClient(down, learning.first(down)),
        personal=deploy,
        common=None,  # there is no shared model
    )


ENTRY = Entry(standalone, "every client trains alone", ("cho2022federate", "wu2024incentive"))
