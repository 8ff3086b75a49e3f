"""AFL: the model that is best for the worst mixture of clients.

Source: Mohri et al., "Agnostic federated learning" (ICML 2019), Algorithm 1 (Stochastic-AFL), with the stochastic
gradient over all clients of section 4.2. Deviations: absent clients keep their share of lambda, and the shares of
present clients are projected onto the remaining mass; the share of a client that left goes to the members; gradients
are averaged over present clients with weights lambda.
Local steps and cohorts (``updates="model"``) are as in agnostic federated averaging: Deng et al., "Distributionally
robust federated averaging" (NeurIPS 2020), and Ro et al., "Communication-efficient agnostic federated averaging"
(Interspeech 2021). Deviations from both: one cohort, drawn uniformly, gives updates and losses, and losses are those of
the received model on the first batch of its training.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import aggregators, training
from fljax.algorithms.cohorts import select_after, select_uniform, shares_of_members
from fljax.algorithms.entries import Entry, require_plain_sgd
from fljax.algorithms.single_model import keeping, learning_by, normalise_weights, single_model
from fljax.algorithms.single_model import server_optimizer as optimizer
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Available, Census, Info, LocalData, Round, Seat, Task, along
from fljax.protocol.messages import Report, Sent
from fljax.protocol.sums import Part, Streamed, Total, mean
from fljax.training import Local, Optimizer, Stream

LARGEST_LOSS = 1e6


class AflServer(NamedTuple):
    """The model w, the state of the server's optimizer, the mixture lambda, and the mean of w over rounds."""

    model: PyTree
    optimizer: PyTree
    mixture: Float[Array, " N"]
    average: PyTree
    averaged: Int[Array, ""]  # rounds


class AflDown(NamedTuple):
    """What a client receives: the model w for the gradient, and the mean of w, which it would use."""

    model: PyTree
    average: PyTree


class AflRow(NamedTuple):
    """A client's record: its loss, and its weight lambda."""

    loss: Float[Array, ""]
    weight: Float[Array, ""]


@checked
def afl(
    task: Task,
    local: Local,
    *,
    updates: Literal["gradient", "model"] = "gradient",
    mixture_learning_rate: NonNegative = 0.1,
    clients_per_round: Count | None = None,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w - eta sum_k lambda_k g_k(w)``; ``lambda <- Proj(lambda + eta_lambda loss)``; clients use the mean of w.

    Args:
      task: model and loss.
      local: its learning rate is eta; its batch size is that of the single batch per round. Its steps are ignored,
        unless ``updates`` is "model".
      updates: what a client sends: "gradient", that of one batch, as in the paper; or "model", the update of a whole
        local training, with the steps or epochs and the optimizer of ``local``. The server takes the mean of updates
        with weights lambda. Without dropout or augmentation, "model" with one step of plain SGD is "gradient".
      mixture_learning_rate: eta_lambda; 0 keeps lambda uniform. Losses are of the same batch at the old w.
      clients_per_round: None, or the number of clients: AFL needs all clients in every round. If ``updates`` is
        "model" it may be less: clients are drawn uniformly without replacement, the others keep their lambda, and
        weights are divided by the mass of those who take part. If this mass is 0 the mean update is 0. Lambda
        stays as it is if one client takes part, since nobody can take its share.
      server_lr: factor of the step; the paper has 1.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Info: ``mixture`` [client] after the round, ``weight`` [row] and ``loss`` [row].

    Raises:
      ValueError: if ``updates`` is not a valid name; or if ``updates`` is "gradient" and ``clients_per_round`` is less
        than the population, or the local optimizer is not plain SGD.
    """
    if updates == "gradient":
        require_plain_sgd(local, "afl")
    server_side = optimizer(server_lr, server_optimizer, task)
    one_batch = local._replace(steps=1, epochs=None)

    def init_server(key: Key[Array, ""], census: Census) -> AflServer:
        population = census.train.shape[0]
        if updates == "gradient" and clients_per_round is not None and clients_per_round < population:
            raise ValueError(
                f"expected clients_per_round to be all {population} clients for afl, got {clients_per_round}"
            )
        model = task.init(key)
        mixture = normalise_weights((census.train > 0).astype(jnp.result_type(float)))
        return AflServer(model, server_side.init(model), mixture, trees.widened(model), jnp.zeros((), jnp.int32))

    def train(key: Key[Array, ""], seat: Seat, down: AflDown, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        how = one_batch if updates == "gradient" else local
        batch = training.draw(training.stream(key, Stream.BATCHES), data.train, how)
        own_key = training.stream(key, Stream.STEPS)
        loss, slope = training.value_and_gradient(
            task, down.model, data.train, batch.position[0], batch.mask[0], own_key
        )
        if updates == "model":
            # It draws the same batches, so the loss is of the first one.
            trained = learning_by(task, local).train(key, seat, down.model, data, client)
            return Sent(trees.subtract(trained.params, down.model), Report(loss=loss)), trained.state
        own = training.of_client(local, data.train)
        return Sent(training.one_step(task, own, down.model, slope, seat.round), Report(loss=loss)), client

    def of_members(server: AflServer, available: Available) -> AflServer:
        mixture = shares_of_members(server.mixture, available)
        if available.members is not None:
            # Those that left may have had all of lambda.
            able, mass = available.mask(), jnp.sum(jnp.where(available.members, mixture, 0))
            uniform_mixture = normalise_weights(able.astype(mixture.dtype))
            mixture = jnp.where((mass > 0) | ~jnp.any(able), mixture, uniform_mixture)
        return server._replace(mixture=mixture)

    def contribute(server: AflServer, seat: Seat, up: Sent) -> tuple[Part, AflRow]:
        weight = server.mixture[seat.id]
        return Part(up.update, weight), AflRow(up.report.loss, weight)

    def finish(server: AflServer, total: Total, rows: AflRow, round: Round) -> tuple[AflServer, Info]:
        cohort = round.cohort
        model, state = server_side.move(server.model, server.optimizer, mean(total), cohort.present)
        present = trees.set_rows(jnp.zeros(server.mixture.shape, bool), cohort.id, cohort.present, True)
        # Reported losses may be infinite. The bound keeps lambda finite, and an infinite loss still takes all the mass.
        loss = jnp.minimum(rows.loss, LARGEST_LOSS).astype(server.mixture.dtype)
        raised = trees.add_rows(server.mixture, cohort.id, cohort.present, mixture_learning_rate * loss)
        left = jnp.sum(jnp.where(present, server.mixture, 0))
        projected = aggregators.simplex_projection(raised, mass=left, mask=present)
        mixture = jnp.where(present, projected, server.mixture).astype(server.mixture.dtype)
        anybody = jnp.any(cohort.present)
        done = server.averaged.astype(server.mixture.dtype)
        average = jax.tree.map(lambda old, new: old + (new - old) / (done + 1).astype(old.dtype), server.average, model)
        after = AflServer(model, state, mixture, trees.where(anybody, average, server.average), server.averaged)
        after = after._replace(averaged=server.averaged + anybody.astype(jnp.int32))
        loss = trees.or_nan(cohort.present, rows.loss)
        return after, along("client", mixture=mixture) | along("row", weight=normalise_weights(rows.weight), loss=loss)

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local, lambda down: down.model),
        aggregate=Streamed(contribute, finish),
        init_server=init_server,
        select=select_after(of_members, select_uniform(clients_per_round)),
        send=lambda server, seat: AflDown(server.model, trees.like(server.average, server.model)),
        common=lambda down: down.average,
    )


ENTRY = Entry(
    afl,
    "minimises the loss of the worst mixture of clients; asks all of them",
    ("mohri2019agnostic",),
    {"clients_per_round": None},
    needs_all=True,
    needs_all_unless={"updates": "model"},
    differentiable=("mixture_learning_rate", "server_lr"),
    reads="losses, with which it moves the mixture",
)
