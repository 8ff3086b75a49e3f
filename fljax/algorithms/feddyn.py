"""FedDyn: every client's objective gets a linear and a quadratic term, so that all minima together are the global one.

Source: Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), Algorithm 1. The paper's stored
gradient of client k is ``-alpha g_k`` here, and h is a mean over all clients that have data. Deviations: the authors'
code divides alpha by the client's relative size (``alpha_scale="size"``), clips the gradient with ``alpha (g_k - w)``
to a norm of 10 (``clip_norm=10`` of ``local`` clips the client's own gradient with the whole term), and reports the
mean of the trained models as well.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax.algorithms.cohorts import mass_of_members, select_and_weigh
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import contribute_update, learning_by, normalise_weights, single_model
from fljax.core import trees
from fljax.core.values import Count, Positive, checked
from fljax.protocol import Algorithm, Census, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import Sent
from fljax.protocol.sums import Streamed, Total, divided, mean
from fljax.training import Local


class FedDynServer(NamedTuple):
    """The model, its correction h, the number of clients with data, and that of their samples if alpha needs it."""

    model: PyTree
    correction: PyTree
    mass: tuple[Array, ...]
    weights: tuple[Array | None, ...]  # [N] each; None unless clients may leave: then ``mass`` is of members


class FedDynDown(NamedTuple):
    """What a client receives: the model, and the mean size of clients if alpha depends on it."""

    model: PyTree
    size: Array | None


class FedDynClient(NamedTuple):
    """A client's correction g_k, the sum of its updates, and the kept state of its optimizer."""

    correction: PyTree
    optimizer: PyTree = ()


@checked
def feddyn(
    task: Task,
    local: Local,
    *,
    alpha: Positive = 0.01,
    alpha_scale: Literal["none", "size"] = "none",
    clients_per_round: Count | None = 10,
) -> Algorithm:
    """Client k descends ``F_k(y) + alpha <y, g_k> + alpha/2 ||y - w||^2`` from w, then ``g_k <- g_k + Delta_k``.

    The server: ``h <- h + (1/N) sum_k Delta_k`` and ``w <- w + (1/|S|) sum_k Delta_k + h``, over the cohort S, where N
    counts all clients with data. So h is the mean of all ``g_k``. Where local training is exact, the model comes to
    rest at the minimum of ``sum_k F_k``.

    Args:
      task: model and loss.
      local: how clients train; the terms add ``alpha (y - w + g_k)`` to every gradient. The paper has plain SGD with
        weight decay.
      alpha: weight of both terms. The paper's grid is 0.001, 0.01, 0.1.
      alpha_scale: "none": alpha for all; "size": ``alpha n / n_k`` with the client's number of training samples
        ``n_k`` and their mean n, so that a small client stays nearer to w.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep their ``g_k``.

    Returns:
      The algorithm. Clients keep ``g_k``. The server never receives ``g_k``, so it cannot take that of a client that
      left out of h; from then on N counts the members. Info: ``weight`` [row].

    Raises:
      ValueError: if ``alpha_scale`` is not a valid name, or ``alpha`` is not positive.
    """
    learning = learning_by(task, local)

    def init_server(key: Key[Array, ""], census: Census) -> FedDynServer:
        model = task.init(key)
        correction = trees.widened(trees.zeros_like(model))  # changes of many rounds add up
        kinds = ("uniform", "size") if alpha_scale == "size" else ("uniform",)
        mass, weights = zip(*(mass_of_members(census, kind) for kind in kinds), strict=True)
        return FedDynServer(model, correction, mass, weights)

    def send(server: FedDynServer, seat: Seat) -> FedDynDown:
        clients, *samples = server.mass
        return FedDynDown(server.model, trees.ratio(samples[0], clients) if samples else None)

    def train(
        key: Key[Array, ""], seat: Seat, down: FedDynDown, client: FedDynClient, data: LocalData
    ) -> tuple[Sent, FedDynClient]:
        own = alpha if down.size is None else alpha * trees.ratio(down.size, trees.floating(data.train.rows.size))

        def adjust(slope: PyTree, params: PyTree) -> PyTree:
            pull = trees.add(trees.subtract(params, down.model), client.correction)
            return trees.like(trees.add(slope, trees.scale(pull, own)), slope)

        trained = learning.train(key, seat, down.model, data, client.optimizer, adjust=adjust)
        update = trees.subtract(trained.params, down.model)
        correction = trees.add_scaled(client.correction, roles.zero_statistics(task, update))
        return Sent(update), FedDynClient(correction, trained.state)

    def init_client(key: Key[Array, ""], seat: Seat, down: FedDynDown, data: LocalData) -> FedDynClient:
        correction = trees.widened(trees.zeros_like(down.model))
        return FedDynClient(correction, learning.first(down.model))

    def finish(server: FedDynServer, total: Total, rows: Float[Array, " S"], round: Round) -> tuple[FedDynServer, Info]:
        change = divided(roles.zero_statistics(task, total.value), server.mass[0])
        correction = trees.add_scaled(server.correction, change)
        model = trees.add_scaled(server.model, trees.add(mean(total), correction))
        moved = trees.where(jnp.any(round.cohort.present), (model, correction), (server.model, server.correction))
        return server._replace(model=moved[0], correction=moved[1]), along("row", weight=normalise_weights(rows))

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        aggregate=Streamed(contribute_update, finish),
        init_server=init_server,
        select=select_and_weigh(clients_per_round),
        send=send,
        init_client=init_client,
        common=lambda down: down.model,
    )


ENTRY = Entry(
    feddyn,
    "moves every client's objective so that all minima together are the global one",
    ("acar2021federated",),
    # With less, the model of the laws learns its few rows by heart.
    {"alpha": 1.0, "alpha_scale": "size"},
    differentiable=("alpha",),
)
