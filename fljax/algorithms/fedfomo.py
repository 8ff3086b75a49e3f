"""FedFomo: every client mixes in the models of others that lower the loss on its own validation rows.

Source: Zhang et al., "Personalized federated learning with first order model optimization" (ICLR 2021), equations 3 and
4 and section 3.2. The equations leave open which model the candidates are compared with. Here it is the model at the
start of the client's last local training, as in both public implementations (NVlabs/FedFomo with its baseline
``last_model``, PFLlib), so the client's own trained model competes with the others. Deviations: only uploaded models
are sent, so in the first rounds there may be fewer than ``models_sent``; a client without validation rows judges on its
training rows; no epsilon-greedy exploration (the affinity alone decides).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.aggregators import weighted_mean
from fljax.algorithms.clustered import validation
from fljax.algorithms.cohorts import select_after, select_uniform
from fljax.algorithms.entries import Entry
from fljax.algorithms.rewarding import replicate_model
from fljax.algorithms.single_model import learning_by
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import (
    Algorithm,
    Available,
    Census,
    Exchanged,
    Info,
    Judged,
    LocalData,
    Round,
    Seat,
    Task,
    along,
    roles,
)
from fljax.training import Local

# Keeps weights finite if a candidate hardly differs from the model that it is compared with.
CLOSE = 1e-5


class FedFomoServer(NamedTuple):
    """What the server keeps by client id, and the mean of all uploaded models."""

    models: Exchanged  # [N, ...], the last ones
    mean: PyTree  # by size; before the first upload, the initial model
    uploaded: Bool[Array, " N"]
    affinity: Float[Array, "N N"]  # P
    size: Int[Array, " N"]


class FedFomoClient(NamedTuple):
    """What a client keeps: the model at the start of its last local training; at first the initial model."""

    before: PyTree
    optimizer: PyTree = ()  # the kept state of local training


class FedFomoDown(NamedTuple):
    """What a client receives: the model that it uploaded last, and M models, among which its own may be."""

    own: PyTree
    others: PyTree  # [M, ...]
    id: Int[Array, " M"]
    real: Bool[Array, " M"]  # padding where False


class FedFomoUp(NamedTuple):
    """What a client sends: its new model minus its last uploaded one, and the weights of the candidates."""

    update: PyTree
    weight: Float[Array, " candidates"]
    id: Int[Array, " candidates"]  # first the client's own model, then the M received ones; none if M is 0


@checked
def fedfomo(
    task: Task, local: Local, *, models_sent: CountOrZero = 5, clients_per_round: Count | None = 10
) -> Algorithm:
    """``theta_k <- before_k + sum_n a_n (theta_n - before_k)``, then local training; no global model.

    ``before_k`` is the model at the start of the client's last local training. The candidates n are the received models
    and the client's own trained model. ``a`` is the positive part, normalised, of
    ``(L_k(before_k) - L_k(theta_n)) / (||theta_n - before_k|| + 1e-5)`` with L_k the loss on validation rows. If no
    candidate is better than ``before_k``, the client continues from its own trained model. The weights (before their
    positive part is taken) add up in the affinity P (at first the identity). The server sends client k the M models
    with the largest ``P[k, n]``; ties go to the lower id. The client's own model may be among them, but counts once;
    PFLlib leaves it out if M others have a larger affinity.

    Args:
      task: model and loss.
      local: how clients train.
      models_sent: M, the number of models sent to each client in each round; at most the population. 0: every client
        trains alone.
      clients_per_round: drawn uniformly without replacement; None: all.

    Returns:
      The algorithm. All clients start from the same model. The server keeps each client's last uploaded model, which
      the client uses. An unseen client uses the mean, by size, of all uploaded models; the mean is also judged as the
      server's own model. Info: ``better`` [row], the number of candidates that are better than ``before_k``.

    Raises:
      ValueError: if ``models_sent`` is negative or ``clients_per_round`` is not positive.
    """

    def init_server(key: Key[Array, ""], census: Census) -> FedFomoServer:
        population = census.train.shape[0]
        model = task.init(key)
        models = Exchanged(replicate_model(model, population))
        return FedFomoServer(models, model, jnp.zeros(population, bool), jnp.eye(population), census.train)

    learning = learning_by(task, local)

    def of_members(server: FedFomoServer, available: Available) -> FedFomoServer:
        if available.members is None:
            return server
        # The model of a client that left is neither sent nor in the mean.
        return server._replace(uploaded=server.uploaded & available.members)

    def peers(server: FedFomoServer, seat: Seat) -> Int[Array, " M"]:
        score = jnp.where(server.uploaded, server.affinity[seat.id], -jnp.inf)
        _, id = jax.lax.top_k(score, min(models_sent, score.shape[0]))
        return id.astype(jnp.int32)

    def send(server: FedFomoServer, seat: Seat) -> FedFomoDown:
        models: Any = server.models  # WithPeers
        model = models.own if seat.known else server.mean
        return FedFomoDown(model, models.peers, models.id, server.uploaded[models.id])

    def weigh(
        down: FedFomoDown, before: PyTree, id: Int[Array, ""], data: LocalData
    ) -> tuple[Float[Array, " candidates"], PyTree]:
        """The weights of the candidates, and ``theta_n - before_k``."""

        def stack(before: Array, model: Array, others: Array) -> Array:
            return jnp.concatenate([before[None], model[None], others])

        models = jax.tree.map(stack, before, down.own, down.others)
        loss, _ = training.evaluate_each(task, models, validation(data), ragged=True)
        away = jax.tree.map(lambda leaf: leaf[1:] - leaf[:1], models)
        squares = [
            jnp.sum(jnp.square(trees.wide(leaf)), axis=tuple(range(1, leaf.ndim)))
            for leaf in jax.tree.leaves(roles.trained_leaves(task, away))
        ]
        square = jnp.sum(jnp.stack(squares), axis=0)
        # Equal models have equal losses; a root and a quotient at 0 would make the gradient NaN.
        apart = square > 0
        distance = jnp.sqrt(jnp.where(apart, square, 1)).astype(loss.dtype)
        weight = jnp.where(apart, (loss[0] - loss[1:]) / (distance + CLOSE), 0)
        # The client's own model counts once. Before the first training it equals ``before_k``, so its weight is 0.
        real = jnp.concatenate([jnp.ones(1, bool), down.real & (down.id != id)])
        # The weight is 0 if one of the two models has diverged.
        return jnp.where(real & jnp.isfinite(weight), weight, 0), away

    def train(
        key: Key[Array, ""], seat: Seat, down: FedFomoDown, client: FedFomoClient, data: LocalData
    ) -> tuple[FedFomoUp, FedFomoClient]:
        start, weight, id = down.own, jnp.zeros(0), down.id
        if down.id.shape[0]:
            weight, away = weigh(down, client.before, seat.id, data)
            mixed = trees.add(client.before, weighted_mean(away, jnp.maximum(weight, 0)))
            start = trees.where(jnp.any(weight > 0), mixed, down.own)
            id = jnp.concatenate([seat.id[None], down.id])
        trained = learning.train(key, seat, start, data, client.optimizer)
        after = FedFomoClient(start, trained.state)
        return FedFomoUp(trees.subtract(trained.params, down.own), weight, id), after

    def aggregate(server: FedFomoServer, up: FedFomoUp, round: Round) -> tuple[FedFomoServer, Info]:
        id, present = round.cohort.id, round.cohort.present
        models = trees.add_rows(server.models.values, id, present, up.update)
        weight = up.weight.astype(server.affinity.dtype)
        affinity = trees.add_rows(server.affinity, (id[:, None], up.id), present[:, None], weight)
        uploaded = trees.set_rows(server.uploaded, id, present, True)
        mass = jnp.where(uploaded, server.size, 0).astype(affinity.dtype)
        share = trees.ratio(mass, jnp.sum(mass))
        # Without ``weighted_mean``, which masks rows of weight 0 in a copy of the table. Here such rows are finite.
        mean = jax.tree.map(lambda leaf: _mean(share, leaf), models)
        mean = trees.where(jnp.any(uploaded), mean, server.mean)
        better = jnp.sum((weight > 0) & present[:, None], axis=1, dtype=jnp.int32)
        new = FedFomoServer(Exchanged(models), mean, uploaded, affinity, server.size)
        return new, along("row", better=better)

    return Algorithm(
        task=task,
        init_server=init_server,
        send=send,
        train=train,
        aggregate=aggregate,
        select=select_after(of_members, select_uniform(clients_per_round)),
        personal=lambda key, seat, down, client, data: down.own,
        init_client=lambda key, seat, down, data: FedFomoClient(down.own, learning.first(down.own)),
        models=lambda server: {"server_test": Judged(server.mean, "test")},
        peers=peers,
    )


def _mean(share: Float[Array, " N"], leaf: Float[Array, "N ..."]) -> Array:
    """``sum_k share[k] * leaf[k]``."""
    return jnp.tensordot(share, leaf, axes=1, precision=jax.lax.Precision.HIGHEST).astype(leaf.dtype)


ENTRY = Entry(
    fedfomo,
    "clients take from others' models what lowers their validation loss",
    ("zhang2021personalized",),
    {"models_sent": 3},
    reads="updates, of which it sends each client some of others",
)
