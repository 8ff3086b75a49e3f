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
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import mass_of_members, select_and_weigh
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import contribute_update, normalise_weights, single_model
from fljax.core import trees
from fljax.core.values import Count, Positive, checked
from fljax.protocol import Algorithm, Available, Census, Cohort, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import Sent
from fljax.protocol.sums import Streamed, Total, divided, mean
from fljax.training import Local


class FedDynServer(NamedTuple):
    """The model, its correction h, and the number of clients with data."""

    model: PyTree
    correction: PyTree
    size: Array | None  # [], the mean size of clients with data, if alpha depends on sizes
    mass: Array
    weights: Array | None = None  # [N]; None unless clients may leave: then ``mass`` is the number of members
    sizes: Array | None = None  # [N]; None unless clients may leave and alpha depends on sizes


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

    def init_server(key: Key[Array, ""], census: Census) -> FedDynServer:
        model = task.init(key)
        mass, weights = mass_of_members(census, "uniform")
        size = trees.ratio(trees.wide(jnp.sum(census.train)), mass) if alpha_scale == "size" else None
        correction = trees.widened(trees.zeros_like(model))  # changes of many rounds add up
        sizes = None if size is None or weights is None else trees.wide(census.train)
        return FedDynServer(model, correction, size, mass, weights, sizes)

    weigh = select_and_weigh(clients_per_round)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: FedDynServer, ballots: PyTree, available: Available
    ) -> tuple[FedDynServer, Cohort, Info]:
        server, cohort, info = weigh(key, round, server, ballots, available)
        if server.sizes is not None:
            total = jnp.sum(jnp.where(available.member(), server.sizes, 0))
            server = server._replace(size=trees.ratio(total, server.mass))
        return server, cohort, info

    def train(
        key: Key[Array, ""], seat: Seat, down: FedDynDown, client: FedDynClient, data: LocalData
    ) -> tuple[Sent, FedDynClient]:
        own = alpha if down.size is None else alpha * trees.ratio(down.size, trees.floating(data.train.rows.size))

        def adjust(slope: PyTree, params: PyTree) -> PyTree:
            pull = trees.add(trees.subtract(params, down.model), client.correction)
            return trees.like(trees.add(slope, trees.scale(pull, own)), slope)

        trained = training.train(
            key,
            down.model,
            data.train,
            task=task,
            local=local,
            round=seat.round,
            adjust=adjust,
            state=client.optimizer,
        )
        update = trees.subtract(trained.params, down.model)
        correction = trees.add_scaled(client.correction, roles.zero_statistics(task, update))
        return Sent(update), FedDynClient(correction, trained.state)

    def init_client(key: Key[Array, ""], seat: Seat, down: FedDynDown, data: LocalData) -> FedDynClient:
        correction = trees.widened(trees.zeros_like(down.model))
        return FedDynClient(correction, training.first_state(task, local, down.model))

    def finish(server: FedDynServer, total: Total, rows: Float[Array, " S"], round: Round) -> tuple[FedDynServer, Info]:
        change = divided(roles.zero_statistics(task, total.value), server.mass)
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
        select=select,
        send=lambda server, seat: FedDynDown(server.model, server.size),
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
