"""FedSoft: personal models, pulled towards the models of the clusters that a client's data belong to.

Source: Ruan and Joe-Wong, "FedSoft: soft clustered federated learning with proximal local updating" (AAAI 2022),
Algorithm 1. Deviations: personal models are sent as differences from the mean of the cluster models; with K clients
per cluster, a cluster without present clients keeps its model; without K, means are over present clients only. So
scenarios that clip updates, or scale noise by them, act on a client's whole distance from the mean of the cluster
models, not on its change in one round.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import aggregators, training
from fljax.algorithms.clustered import cluster_models, initial_models, least_loss_shares, row_losses
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import learning_by
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Share, checked
from fljax.protocol import Algorithm, Available, Census, Cohort, Info, LocalData, Poll, Round, Seat, Task, along
from fljax.protocol.messages import Sent
from fljax.protocol.sums import Part, Streamed, Total, mean
from fljax.training import Local


class FedSoftServer(NamedTuple):
    """The cluster models; by client, its size, its last estimate u and the clusters that chose it."""

    models: PyTree  # [C, ...]
    size: Int[Array, " N"]
    importance: Float[Array, "N C"]
    membership: Bool[Array, "N C"]


class FedSoftDown(NamedTuple):
    """What a client receives: the cluster models, and its last estimate u_k (zeros before the first estimate)."""

    models: PyTree  # [C, ...]
    importance: Float[Array, " C"]


class FedSoftBallot(NamedTuple):
    """A client's estimate u_k."""

    importance: Float[Array, " C"]


class FedSoftClient(NamedTuple):
    """A client's personal model theta_k, kept between rounds, and whether the client ever trained."""

    personal: PyTree
    trained: Bool[Array, ""]
    optimizer: PyTree = ()  # its kept state


@checked
def fedsoft(
    task: Task,
    local: Local,
    *,
    clusters: Count = 2,
    regularisation: NonNegative = 0.1,
    clients_per_cluster: Count | None = 5,
    estimate_every: Count = 2,
    smoother: Share = 1e-4,
) -> Algorithm:
    """``theta_k ~ argmin F_k(theta) + lambda/2 sum_s u_ks ||theta - c_s||^2``, then ``c_s <- mean_k theta_k``.

    ``u_ks = max(share of k's rows whose loss is least under c_s, smoother)``. Cluster s chooses clients without
    replacement, with probabilities ``v_sk = u_ks N_k / sum_j u_js N_j``; its mean is over the chosen clients.

    Args:
      task: model and loss.
      local: how clients minimise, from their last personal model.
      clusters: C. Cluster models start from different initial parameters, the first one from those of ``fedavg``.
        Personal models start from the first cluster model.
      regularisation: lambda. Steps are stable where ``eta lambda sum_s u_ks`` is well below 2.
      clients_per_cluster: K, the number of clients that each cluster chooses; a client chosen by several clusters
        trains once. None: all clients take part, and the mean has weights v_sk.
      estimate_every: rounds between two estimates of u; rounds between reuse the last estimate. A client without any
        estimate so far is not chosen.
      smoother: the least u_ks.

    Returns:
      The algorithm. Ties between clusters go to the lower one. A client uses theta_k; an unseen client, or one that
      never trained, uses ``sum_s u_ks c_s / sum_s u_ks`` with the u_k of its training rows. Info: ``importance``
      [client, cluster], and ``membership`` [client, cluster], whether the cluster chose the client.

    Raises:
      ValueError: if ``clusters``, ``clients_per_cluster`` or ``estimate_every`` is not positive, or ``smoother`` is a
        number outside [0, 1].
    """
    learning = learning_by(task, local)

    def estimate(key: Key[Array, ""], models: PyTree, data: LocalData) -> Float[Array, " C"]:
        losses = row_losses(task, models, data.train, key)
        shares = least_loss_shares(losses, data.train.rows.size)
        return jnp.maximum(shares, jnp.asarray(smoother).astype(shares.dtype))

    def init_server(key: Key[Array, ""], census: Census) -> FedSoftServer:
        shape = (census.train.shape[0], clusters)
        models = initial_models(task, key, clusters)
        return FedSoftServer(models, census.train, jnp.zeros(shape), jnp.zeros(shape, bool))

    def send(server: FedSoftServer, seat: Seat) -> FedSoftDown:
        unknown = jnp.zeros(clusters, server.importance.dtype)
        return FedSoftDown(server.models, server.importance[seat.id] if seat.known else unknown)

    def init_client(key: Key[Array, ""], seat: Seat, down: FedSoftDown, data: LocalData) -> FedSoftClient:
        personal = trees.take(down.models, 0)
        return FedSoftClient(personal, jnp.asarray(False), learning.first(personal))

    def poll(key: Key[Array, ""], seat: Seat, down: FedSoftDown, client: PyTree, data: LocalData) -> FedSoftBallot:
        return FedSoftBallot(estimate(key, down.models, data))

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: FedSoftServer, ballots: FedSoftBallot, available: Available
    ) -> tuple[FedSoftServer, Cohort, Info]:
        mass = ballots.importance * server.size.astype(ballots.importance.dtype)[:, None]
        population = available.population
        able = available.mask()[:, None] & (mass > 0)
        if clients_per_cluster is None:
            membership, rows = jnp.broadcast_to(jnp.any(able, axis=1, keepdims=True), able.shape), population
        else:
            membership = _draw(key, mass, able, min(clients_per_cluster, population))
            rows = min(clusters * clients_per_cluster, population)
        chosen = jnp.any(membership, axis=1)
        _, id = jax.lax.top_k(chosen.astype(jnp.int32), rows)  # ties go to the lower id
        id = id.astype(jnp.int32)
        server = server._replace(importance=ballots.importance, membership=membership)
        info = along("client", "cluster", importance=ballots.importance, membership=membership)
        return server, Cohort(id, jnp.zeros_like(id), chosen[id]), info

    def train(
        key: Key[Array, ""], seat: Seat, down: FedSoftDown, client: FedSoftClient, data: LocalData
    ) -> tuple[Sent, FedSoftClient]:
        # The sum of the pulls is one pull towards the weighted mean.
        centre = aggregators.weighted_mean(down.models, down.importance)
        pull = training.proximal(centre, regularisation * jnp.sum(down.importance))
        trained = learning.train(key, seat, client.personal, data, client.optimizer, adjust=pull)
        update = trees.subtract(trained.params, middle(down.models))
        return Sent(update), FedSoftClient(trained.params, jnp.asarray(True), trained.state)

    def contribute(server: FedSoftServer, seat: Seat, up: Sent) -> tuple[Part, tuple[()]]:
        importance = server.importance[seat.id]
        mass = importance * server.size[seat.id].astype(importance.dtype)
        mass = jnp.ones_like(mass) if clients_per_cluster is not None else mass
        return Part(up.update, jnp.where(server.membership[seat.id], mass, 0)), ()

    def finish(server: FedSoftServer, total: Total, rows: PyTree, round: Round) -> tuple[FedSoftServer, Info]:
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clusters, *leaf.shape)), middle(server.models))
        moved = trees.add_scaled(start, mean(total))
        return server._replace(models=trees.where_rows(total.weight != 0, moved, server.models)), {}

    def deploy(key: Key[Array, ""], seat: Seat, down: FedSoftDown, client: FedSoftClient, data: LocalData) -> PyTree:
        # No lax.cond: with one condition per client it would copy all captured arrays, including the examples.
        centre = aggregators.weighted_mean(down.models, estimate(key, down.models, data))
        return trees.where(client.trained, client.personal, centre)

    return Algorithm(
        task=task,
        init_server=init_server,
        init_client=init_client,
        send=send,
        train=train,
        aggregate=Streamed(contribute, finish),
        select=select,
        personal=deploy,
        poll=Poll(poll, estimate_every),
        models=cluster_models,
    )


def middle(models: PyTree) -> PyTree:
    """The plain mean of the cluster models; clients send personal models as differences from this mean."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), models)


def _draw(key: Key[Array, ""], mass: Float[Array, "N C"], able: Bool[Array, "N C"], count: int) -> Bool[Array, "N C"]:
    """Draws ``count`` clients for each column without replacement, with probabilities in proportion to ``mass``."""
    population, clusters = mass.shape

    def one(cluster: Array, mass: Array, able: Array) -> Array:
        cluster_key = jax.random.fold_in(key, cluster)
        noise = jax.vmap(lambda id: jax.random.gumbel(jax.random.fold_in(cluster_key, id), dtype=jnp.float32))
        # The largest log mass + Gumbel noise, which is keyed by cluster and id.
        score = jnp.log(jnp.where(able, mass, 1)) + noise(jnp.arange(population))
        _, best = jax.lax.top_k(jnp.where(able, score, -jnp.inf), count)
        return jnp.zeros(population, bool).at[best].set(True) & able

    return jax.vmap(one, in_axes=(0, 1, 1), out_axes=1)(jnp.arange(clusters), mass, able)


ENTRY = Entry(
    fedsoft,
    "personal models, pulled towards the models of several clusters (FedSoft)",
    ("ruan2022fedsoft",),
    {"clients_per_cluster": 2, "smoother": 0.55},
    differentiable=("regularisation", "smoother"),
    reads="how much the clusters matter to a client, by which it selects",
)
