"""IFCA: a model for each cluster; every client trains the model that fits its data best.

Source: Ghosh et al., "An efficient framework for clustered federated learning" (NeurIPS 2020), Algorithm 1. Deviations:
updates are averaged, with a server learning rate (1 gives the original); a cluster's gradients are averaged over the
clients that chose it (the paper divides by the number of all participants); weights by size or uniform, by flag; one
random initialisation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.clustered import Clusters, cluster_models, initial_models, row_losses
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.entries import Entry, require_plain_sgd
from fljax.algorithms.single_model import keeping, reported_size
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import Report
from fljax.protocol.sums import Part, Streamed, Total, divided, mean
from fljax.training import Local, Stream


class IfcaUp(NamedTuple):
    """What a client sends: its update (new minus old), the cluster that it chose, and its size if weights need it."""

    update: PyTree
    cluster: Int[Array, ""]
    report: Report


class IfcaRow(NamedTuple):
    """A client's record: the cluster that it chose, and its weight in that cluster's sum."""

    cluster: Int[Array, ""]
    mass: Float[Array, ""]


@checked
def ifca(
    task: Task,
    local: Local,
    *,
    clusters: Count = 2,
    averaging: Literal["model", "gradient"] = "model",
    weights: Literal["uniform", "size"] = "uniform",
    clients_per_round: Count | None = 10,
    server_lr: NonNegative = 1.0,
) -> Algorithm:
    """``w_c <- w_c + server_lr mean_k Delta_k`` over the clients k that chose c, with ``c_k = argmin_c F_k(w_c)``.

    "model": ``Delta_k = LocalSGD(w_c, k) - w_c``. "gradient": ``Delta_k = -eta grad F_k(w_c)``, one gradient on all of
    the client's training rows; the server's step has length ``server_lr * eta``.

    Args:
      task: model and loss.
      local: how clients train; "gradient" uses only its learning rate, its decay and its weight decay. With ``keep``
        a client has one state of its optimizer, whichever cluster's model it trains.
      clusters: C. Cluster models start from different initial parameters, the first one from those of ``fedavg``.
      averaging: "model" or "gradient".
      weights: weights of a cluster's clients: "uniform", or "size", their numbers of training samples.
      clients_per_round: drawn uniformly without replacement; None: all.
      server_lr: server learning rate.

    Returns:
      The algorithm. F_k is the loss on all training rows; ties go to the lower cluster. A cluster that no client chose
      keeps its model. Every client, seen or unseen, uses the model that fits its training rows best. Info:
      ``chosen_cluster`` [row], -1 in an empty row, and ``weight`` [row] within its cluster.

    Raises:
      ValueError: if a name is not valid, ``clusters`` or ``clients_per_round`` is not positive, or gradients are
        averaged and the local optimizer is not plain SGD.
    """
    if averaging == "gradient":
        require_plain_sgd(local, "averaging gradients")

    def best(key: Key[Array, ""], models: PyTree, data: LocalData) -> Int[Array, ""]:
        loss = jnp.sum(row_losses(task, models, data.train, training.stream(key, Stream.LOSS)), axis=1)
        return jnp.argmin(jnp.where(jnp.isnan(loss), jnp.inf, loss)).astype(jnp.int32)

    def change(
        key: Key[Array, ""], model: PyTree, round: Int[Array, ""], client: PyTree, data: LocalData
    ) -> tuple[PyTree, PyTree]:
        if averaging == "model":
            trained = training.train(key, model, data.train, task=task, local=local, round=round, state=client)
            return trees.subtract(trained.params, model), trained.state
        slope = training.full_gradient(task, model, data.train, training.stream(key, Stream.STEPS))
        return training.one_step(task, training.of_client(local, data.train), model, slope, round), client

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[IfcaUp, PyTree]:
        cluster = best(key, down, data)
        update, client = change(key, trees.take(down, cluster), seat.round, client, data)
        return IfcaUp(update, cluster, reported_size(weights, data)), client

    def contribute(server: Clusters, seat: Seat, up: IfcaUp) -> tuple[Part, IfcaRow]:
        mass = trees.wide(up.report.size if weights == "size" else 1.0)
        return Part(up.update, jnp.where(jnp.arange(clusters) == up.cluster, mass, 0)), IfcaRow(up.cluster, mass)

    def finish(server: Clusters, total: Total, rows: IfcaRow, round: Round) -> tuple[Clusters, Info]:
        models = roles.add_scaled(task, server.models, mean(total), server_lr)
        weight = divided(rows.mass, total.weight[rows.cluster])
        chosen = jnp.where(round.cohort.present, rows.cluster, -1)
        return Clusters(models), along("row", chosen_cluster=chosen, weight=weight)

    return Algorithm(
        task=task,
        init_server=lambda key, census: Clusters(initial_models(task, key, clusters)),
        send=lambda server, seat: server.models,
        train=train,
        init_client=keeping(task, local, lambda down: trees.take(down, 0)),
        aggregate=Streamed(contribute, finish),
        select=select_uniform(clients_per_round),
        personal=lambda key, seat, down, client, data: trees.take(down, best(key, down, data)),
        models=cluster_models,
    )


ENTRY = Entry(
    ifca,
    "a model for each cluster; clients train the one that fits them best (IFCA)",
    ("ghosh2020efficient",),
    differentiable=("server_lr",),
)
