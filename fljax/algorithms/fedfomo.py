"""FedFomo: every client takes from others' models what lowers the loss on its own validation rows.

Source: Zhang et al., "Personalized federated learning with first order model optimization" (ICLR 2021), equations 3 and
4 and section 3.2. Deviations: only models that were once uploaded are sent, so in the first rounds there may be fewer
than asked for; a client without validation rows judges on its training rows; no epsilon-greedy exploration (the
affinity alone decides).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import local as training
from fljax import trees
from fljax.aggregators import weighted_mean
from fljax.algorithms.clustered import validation
from fljax.algorithms.common import Entry, select_uniform
from fljax.algorithms.rewarding import everywhere
from fljax.local import Local
from fljax.types import Algorithm, Census, Task

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from fljax.types import Info

REFERENCE = """@inproceedings{zhang2021personalized,
  title = {Personalized Federated Learning with First Order Model Optimization},
  author = {Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and Alvarez, Jose M.},
  booktitle = {ICLR},
  year = {2021}
}"""

# Keeps the weight of a model finite that hardly differs from one's own.
CLOSE = 1e-5


class FedFomoServer(NamedTuple):
    """Every client's last model, who uploaded one, the affinity P, and the clients' numbers of samples; all by id."""

    models: PyTree  # [N, ...]
    uploaded: Bool[Array, " N"]
    affinity: Float[Array, "N N"]
    size: Int[Array, " N"]


class FedFomoDown(NamedTuple):
    """What a client is shown: its own last model, and M others' with their ids, of which some may mean nothing."""

    own: PyTree
    others: PyTree  # [M, ...]
    id: Int[Array, " M"]
    real: Bool[Array, " M"]


class FedFomoUp(NamedTuple):
    """What a client sends: new minus old model, and the weights that it gave to the models it was sent."""

    update: PyTree
    weight: Float[Array, " M"]
    id: Int[Array, " M"]


def fedfomo(
    task: Task,
    local: Local,
    *,
    models_sent: int = 5,
    clients_per_round: int | None = 10,
) -> Algorithm:
    """``theta_k <- theta_k + sum_n a_n (theta_n - theta_k)``, then local training; no global model.

    ``a`` is the positive part, normalised, of ``(L_k(theta_k) - L_k(theta_n)) / (||theta_n - theta_k|| + 1e-5)`` with
    L_k the loss on validation rows; these weights add up in the affinity P (at first the identity), and client k is
    sent the models with the largest ``P[k, n]`` (ties go to the lower id). Its own may be among them and has weight 0.

    Args:
      task: model and loss.
      local: how clients train.
      models_sent: M, to each client in each round; at most the population. 0: every client trains alone.
      clients_per_round: drawn uniformly without replacement; None: all.

    Returns:
      The algorithm. All start from the same model, and the server keeps what each client uploaded last, so that clients
      keep nothing. An unseen client uses the mean, by size, of all models that were uploaded, which is also judged as
      the server's own. Info: ``better`` [row], how many of the models it was sent a client preferred to its own.

    Raises:
      ValueError: if ``models_sent`` is negative or ``clients_per_round`` is not positive.
    """
    if isinstance(models_sent, bool) or not isinstance(models_sent, int) or models_sent < 0:
        raise ValueError(f"expected models_sent to be a whole number, zero or more, got {models_sent!r}")

    def init_server(key: Any, census: Census) -> FedFomoServer:
        population = census.train.shape[0]
        models = everywhere(task.init(key), population)
        return FedFomoServer(models, jnp.zeros(population, bool), jnp.eye(population), census.train)

    def mean(server: FedFomoServer) -> PyTree:
        mass = jnp.where(server.uploaded, server.size, 0).astype(server.affinity.dtype)
        # Before anybody has uploaded all models are the same.
        return trees.where(jnp.any(server.uploaded), weighted_mean(server.models, mass), trees.take(server.models, 0))

    def send(server: FedFomoServer, seat: Any) -> FedFomoDown:
        if not seat.known:
            nobody = jax.tree.map(lambda leaf: leaf[:0], server.models)
            return FedFomoDown(mean(server), nobody, jnp.zeros(0, jnp.int32), jnp.zeros(0, bool))
        score = jnp.where(server.uploaded, server.affinity[seat.id], -jnp.inf)
        _, id = jax.lax.top_k(score, min(models_sent, score.shape[0]))
        id = id.astype(jnp.int32)
        return FedFomoDown(trees.take(server.models, seat.id), trees.take(server.models, id), id, server.uploaded[id])

    def weigh(down: FedFomoDown, data: Any) -> tuple[Float[Array, " M"], PyTree]:
        """The weights of the models, and ``theta_n - theta_k``."""
        candidates = jax.tree.map(lambda own, others: jnp.concatenate([own[None], others]), down.own, down.others)
        loss, _ = training.evaluate_each(task, candidates, validation(data), ragged=True)
        away = jax.tree.map(lambda own, others: others - own[None], down.own, down.others)
        squares = [jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(away)]
        distance = jnp.sqrt(jnp.sum(jnp.stack(squares), axis=0)).astype(loss.dtype)
        weight = (loss[0] - loss[1:]) / (distance + CLOSE)
        # What cannot be compared, since one of the models has diverged, counts for nothing.
        return jnp.where(down.real & jnp.isfinite(weight), weight, 0), away

    def train(key: Any, seat: Any, down: FedFomoDown, client: Any, data: Any) -> tuple[FedFomoUp, Any]:
        start, weight = down.own, jnp.zeros(0)
        if down.id.shape[0]:
            weight, away = weigh(down, data)
            # weighted_mean: nothing where no model is better.
            start = trees.add(start, weighted_mean(away, jnp.maximum(weight, 0)))
        trained = training.train(key, start, data.train, task=task, local=local, round=seat.round)
        return FedFomoUp(trees.subtract(trained.params, down.own), weight, down.id), client

    def aggregate(
        key: Any, round: Any, server: FedFomoServer, up: FedFomoUp, cohort: Any, held: Any
    ) -> tuple[FedFomoServer, Info]:
        place = jnp.where(cohort.present, cohort.id, server.size.shape[0])  # rows beyond the end are dropped
        models = jax.tree.map(lambda leaf, new: leaf.at[place].add(new, mode="drop"), server.models, up.update)
        weight = up.weight.astype(server.affinity.dtype)
        affinity = server.affinity.at[place[:, None], up.id].add(weight, mode="drop")
        uploaded = server.uploaded.at[place].set(True, mode="drop")
        better = jnp.sum((weight > 0) & cohort.present[:, None], axis=1, dtype=jnp.int32)
        return FedFomoServer(models, uploaded, affinity, server.size), {"better": better}

    return Algorithm(
        task=task,
        init_server=init_server,
        send=send,
        train=train,
        aggregate=aggregate,
        select=select_uniform(clients_per_round),
        deploy=lambda key, seat, down, client, data: down.own,
        predict=task.logits,
        served=mean,
        dimensions=(("better", ("row",)),),
    )


ENTRY = Entry(
    fedfomo,
    "clients take from others' models what lowers their validation loss",
    REFERENCE,
    {"models_sent": 3},
)
