"""MOON: local training holds representations near those of the received model, and away from those of before.

Source: Li, He and Song, "Model-contrastive federated learning" (CVPR 2021), Algorithm 1. Deviations: a client that
never trained compares with the received model itself, which makes the term constant, as it is in the first round of the
authors' code (in later rounds that code compares with another random network for each such client); representations are
those of evaluation mode. With ``buffer > 1`` they are of different rounds; in that code an absent client's last model
enters again. The paper takes representations behind a projection head, a dense layer, ReLU, and a dense layer without
one: a model of your own can have these in front of its head, while those of ``fljax.models`` end in ReLU.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import learning_by, reported_size
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Positive, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task, TrainingKey, roles
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer

# The least product of two lengths: a representation of zeros has the cosine 0 with all others.
SHORTEST = 1e-8


class MoonClient(NamedTuple):
    """The client's last trained models, the newest first, in how many rounds it trained, and its optimizer's state."""

    earlier: tuple[PyTree, ...]
    rounds: Int[Array, ""]
    optimizer: PyTree = ()


@checked
def moon(
    task: Task,
    local: Local,
    *,
    mu: NonNegative = 1.0,
    temperature: Positive = 0.5,
    buffer: Count = 1,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """FedAvg with the loss ``CE - mu log(exp(s_g / T) / (exp(s_g / T) + sum_b exp(s_b / T)))`` of each sample.

    ``s_g`` is the cosine of the representations of the sample by the trained model y and by the received model w, and
    ``s_b`` that by y and by the client's b-th last trained model. T is ``temperature``. w and earlier models
    are constants. In the client's first round w takes the place of an earlier model.

    Args:
      task: model and loss, with ``features``.
      local: how clients train.
      mu: weight of the term; 0 is FedAvg. The paper's grid is 0.1, 1, 5, 10.
      temperature: T.
      buffer: how many of its trained models a client keeps and compares with.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: as for ``fedavg``.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. A client keeps ``buffer`` models, and computes ``2 + buffer`` representations in each step. Info:
      ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``, or if the task has no ``features``.
    """
    if task.features is None:
        raise ValueError("expected a task with features for moon, got one without")
    features, learning = task.features, learning_by(task, local)
    is_plain = isinstance(mu, int | float) and mu == 0

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: MoonClient, data: LocalData
    ) -> tuple[Sent, MoonClient]:
        others = (down, trees.where(client.rounds > 0, client.earlier[0], down), *client.earlier[1:])
        # Others than the newest count only if they exist.
        exists = jnp.arange(-1, buffer) < jnp.maximum(client.rounds, 1)

        def loss(params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
            usual = training.task_loss(task)(params, x, y, position, key)
            # The loss moves no statistics through representations.
            own = trees.wide(features(roles.hold_statistics(task, params), x))
            theirs = jnp.stack([trees.wide(features(other, x)) for other in others])
            term = contrastive_loss(own, theirs, exists, temperature)
            return usual + jnp.asarray(mu).astype(usual.dtype) * term.astype(usual.dtype)

        trained = learning.train(key, seat, down, data, client.optimizer, loss=None if is_plain else loss)
        kept = MoonClient((trained.params, *client.earlier[: buffer - 1]), client.rounds + 1, trained.state)
        return Sent(trees.subtract(trained.params, down), reported_size(weights, data)), kept

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> MoonClient:
        return MoonClient((down,) * buffer, jnp.zeros((), jnp.int32), learning.first(down))

    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return inner._replace(train=train, init_client=init_client)


def contrastive_loss(
    own: Float[Array, "b z"], others: Float[Array, "M b z"], exists: Bool[Array, " M"], temperature: float | Array
) -> Float[Array, " b"]:
    """``-log(exp(s_0 / T) / sum_m exp(s_m / T))`` with the cosines ``s_m`` of ``own`` and the others that exist."""
    own = own[None]
    lengths = trees.root(jnp.sum(jnp.square(own), axis=2)) * trees.root(jnp.sum(jnp.square(others), axis=2))
    cosines = jnp.sum(own * others, axis=2) / jnp.maximum(lengths, SHORTEST)
    nearness = jnp.where(exists[:, None], cosines / temperature, -jnp.inf)
    return jax.nn.logsumexp(nearness, axis=0) - nearness[0]


ENTRY = Entry(
    moon,
    "holds representations near those of the received model, and away from those of before",
    ("li2021model",),
    {"buffer": 2},
    differentiable=("mu", "temperature", "server_lr"),
)
