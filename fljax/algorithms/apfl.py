"""APFL: every client mixes the global model with a model of its own, and may adapt its share of the two.

Source: Deng, Kamani and Mahdavi, "Adaptive personalized federated learning" (2020), Algorithm 1 and section 4.3.
Deviations: the global model is that of FedAvg, with a server optimizer. Parameters are mixed, as in the paper (the
authors' FedTorch mixes outputs). A step of v_k sees w_k after its step, as in that code. The gradient of alpha is that
of the mixture by alpha, on a round's first batch before the first step; that code takes it after the step, multiplies
it by ``alpha^2 + (1 - alpha)^2``, and adds 0.02 alpha.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, require_fresh
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import reported_size
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Share, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task, roles
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer, Stream


class APFLClient(NamedTuple):
    """A client's own model v_k and its share alpha_k, kept between rounds, and whether the client ever trained."""

    own: PyTree
    alpha: Float[Array, ""]
    trained: Bool[Array, ""]


@checked
def apfl(
    task: Task,
    local: Local,
    *,
    alpha: Share = 0.25,
    adaptive: bool = False,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "uniform",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``v_k <- v_k - eta alpha_k g(alpha_k v_k + (1 - alpha_k) w_k)`` after each step of ``w_k``, on the same batch.

    ``w_k`` starts at the received w and moves as in FedAvg, and so does w. ``adaptive``: at the start of a round,
    ``alpha_k <- clip(alpha_k - eta <g(alpha_k v_k + (1 - alpha_k) w), v_k - w>, 0, 1)``.

    Args:
      task: model and loss.
      local: how clients train both models; each has an optimizer state of its own. The equation is that of plain SGD:
        weight decay acts on v_k itself, and clipping on ``alpha_k g``. The step of alpha is plain SGD.
      alpha: the share of the client's own model, at first if ``adaptive``. 0 is
        FedAvg, but for statistics (BatchNorm); with 1, v_k is trained alone.
      adaptive: whether clients adapt their share, which takes one more gradient in each round.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep v_k and alpha_k.
      weights: as for ``fedavg``.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. v_k starts at the initial model. A client uses ``alpha_k v_k + (1 - alpha_k) w`` with the received
      w; an unseen client, or one that never trained, uses w. Statistics (BatchNorm) of v_k, which the mixture has, are
      those that the mixture measured. ``common`` is the global model. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``; if ``alpha`` is a number outside [0, 1]; or if clients keep their optimizer's state.
    """
    require_fresh(local, "apfl", "whose steps are its own")

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> APFLClient:
        dtype = trees.wide(jax.tree.leaves(down)[0]).dtype
        return APFLClient(down, jnp.asarray(alpha, dtype), jnp.asarray(False))

    def mixture(own: PyTree, other: PyTree, share: Array) -> PyTree:
        mixed = trees.add(trees.scale(own, share), trees.scale(other, 1 - share))
        return roles.replace_statistics(task, mixed, own)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: APFLClient, data: LocalData
    ) -> tuple[Sent, APFLClient]:
        batches = training.draw(training.stream(key, Stream.BATCHES), data.train, local)
        steps_key, share = training.stream(key, Stream.STEPS), client.alpha
        if adaptive:
            at = mixture(client.own, down, share)
            first = batches.position[0], batches.mask[0], jax.random.fold_in(steps_key, 0)
            slope = training.gradient(task, at, data.train, *first)
            away = roles.zero_statistics(task, trees.subtract(client.own, down))
            products = jax.tree.map(lambda a, b: jnp.sum(trees.wide(a) * trees.wide(b)), slope, away)
            eta = training.rate(training.of_client(local, data.train), seat.round, share.dtype)
            share = jnp.clip(share - eta * sum(jax.tree.leaves(products)), 0, 1).astype(share.dtype)
        start, shared_step = training.stepping(down, data.train, task, local, seat.round)

        def step(carry: PyTree, *batch: Any) -> PyTree:
            shared = shared_step(carry[0], *batch)

            def loss(own: PyTree, x: Array, y: Array, position: Array, key: Any) -> Array:
                return task.losses(task.logits(mixture(own, shared[0], share), x, key), y)

            _, own_step = training.stepping(client.own, data.train, task, local, seat.round, loss)
            return shared, own_step(carry[1], *batch)

        own_start, _ = training.stepping(client.own, data.train, task, local, seat.round)
        ((shared, _), (own, _)), _ = training.descend(step, (start, own_start), batches, steps_key)
        up = Sent(trees.subtract(shared, down), reported_size(weights, data))
        return up, APFLClient(own, share, jnp.asarray(True))

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: APFLClient, data: LocalData) -> PyTree:
        return trees.where(client.trained, mixture(client.own, down, client.alpha), down)

    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return inner._replace(train=train, init_client=init_client, personal=deploy)


ENTRY = Entry(
    apfl,
    "FedAvg, and mixtures of the global model with models of the clients (APFL)",
    ("deng2020adaptive",),
    {"adaptive": True},
    differentiable=("alpha", "server_lr"),
)
