"""pFedMe: personal models near the global model, by Moreau envelopes.

Source: Dinh et al., "Personalized federated learning with Moreau envelopes" (NeurIPS 2020), Algorithm 1. Deviations:
only the cohort trains (in the paper all clients train and some are aggregated); the authors' code has a hidden weight
decay of 0.001 on the personal model, here ``personal_weight_decay``, off by default.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, require_plain_sgd
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import reported_size
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task, roles
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer, Stream


class PFedMeClient(NamedTuple):
    """A client's personal model theta_k, kept between rounds, and whether the client ever trained."""

    personal: PyTree
    trained: Bool[Array, ""]


@checked
def pfedme(
    task: Task,
    local: Local,
    *,
    regularisation: NonNegative = 15.0,
    personal_learning_rate: NonNegative = 0.09,
    personal_steps: Count = 5,
    personal_weight_decay: NonNegative = 0.0,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "uniform",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``theta ~ argmin F_k(theta) + lambda/2 ||theta - y||^2`` per batch, then ``y <- y - eta lambda (y - theta)``.

    The server: ``w <- (1 - beta) w + beta mean_k y_k``, that is ``w + beta mean_k (y_k - w)``.

    Args:
      task: model and loss.
      local: its steps are the paper's R, its learning rate is eta. If ``eta lambda <= 1``, a step of y does not pass
        theta. Above 1, y oscillates around theta; below 2, it still converges on quadratics of any curvature (the
        authors' defaults give ``eta lambda = 0.075``).
      regularisation: lambda.
      personal_learning_rate: learning rate of the inner problem.
      personal_steps: K gradient steps for each batch. They start from the received model in the first step of a round
        and from the last personal model afterwards.
      personal_weight_decay: factor of theta in the inner gradient; the authors' code has 0.001.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: of clients in ``mean_k``: "uniform" as in the paper, or "size", their numbers of training samples, as in
        the authors' code.
      server_lr: beta.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. A client uses theta_k; an unseen client, or one that never trained, uses the global model.
      ``common`` is the global model. Info: ``weight`` [row].

    Raises:
      ValueError: if ``personal_steps`` is not positive, ``weights`` is not a valid name, the local optimizer is not
        plain SGD, or gradients are clipped.
    """
    require_plain_sgd(local, "pfedme")
    if local.clip_norm is not None or local.decay_of == "weights":
        raise ValueError(
            f"expected local training without clip_norm and decay_of for pfedme, whose steps are its own, got "
            f"clip_norm = {local.clip_norm} and decay_of = {local.decay_of!r}"
        )

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: PFedMeClient, data: LocalData
    ) -> tuple[Sent, PFedMeClient]:
        own = training.of_client(local, data.train)
        eta = trees.wide(training.rate(own, seat.round, jax.tree.leaves(down)[0].dtype))

        def step(carry: PyTree, position: Array, mask: Array, key: Key[Array, ""]) -> PyTree:
            model, personal = carry

            def inner(theta: PyTree, index: Int[Array, ""]) -> tuple[PyTree, None]:
                own_key = jax.random.fold_in(key, index)
                slope = training.gradient(task, trees.like(theta, down), data.train, position, mask, own_key)
                slope = trees.widened(slope)
                pulled = training.proximal(model, regularisation)(slope, theta)
                pulled = trees.add(pulled, trees.scale(theta, personal_weight_decay))
                move = roles.replace_statistics(task, trees.scale(pulled, personal_learning_rate), slope)
                return trees.subtract(theta, move), None

            personal, _ = jax.lax.scan(inner, personal, jnp.arange(personal_steps))
            pull = trees.scale(trees.subtract(model, personal), regularisation)
            if local.weight_decay is not None:
                pull = trees.add(pull, trees.scale(model, local.weight_decay))
            return roles.replace_statistics(task, trees.subtract(model, trees.scale(pull, eta)), personal), personal

        batches = training.draw(training.stream(key, Stream.BATCHES), data.train, local)
        start = trees.widened(down)  # a single pull is less than half precision resolves
        (model, personal), _ = training.descend(step, (start, start), batches, training.stream(key, Stream.STEPS))
        update, personal = trees.like(trees.subtract(model, start), down), trees.like(personal, down)
        return Sent(update, reported_size(weights, data)), PFedMeClient(personal, jnp.asarray(True))

    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return inner._replace(
        train=train,
        init_client=lambda key, seat, down, data: PFedMeClient(down, jnp.asarray(False)),
        personal=lambda key, seat, down, client, data: trees.where(client.trained, client.personal, down),
    )


ENTRY = Entry(
    pfedme,
    "personal models that are pulled towards a global one",
    ("dinh2020personalized",),
    {"personal_learning_rate": 0.03, "regularisation": 4.0},
    differentiable=("regularisation", "personal_learning_rate", "personal_weight_decay", "server_lr"),
)
