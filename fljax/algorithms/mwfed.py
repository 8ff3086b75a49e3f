"""MW-Fed: clients that are not satisfied with the model do more of the work, by multiplicative weights.

Source: Blum et al., "One for one, or all for all: equilibria and optimality of collaboration in federated learning"
(ICML 2021), section 5; INCFL and MaxFL describe it as "more local updates" for unsatisfied clients. Deviations: the
default ``mode="local"`` is a reconstruction of that description (threshold rho_k, factor 2, only the weights of clients
in the cohort rise); ``mode="pooled"`` is the original's single gradient step on samples drawn by weight. A client
reports its loss with its update, so new weights apply from the next round on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real

from fljax import aggregators, training
from fljax.algorithms.cohorts import select_uniform, shares_of_members
from fljax.algorithms.entries import Entry, require_plain_sgd, threshold_of, with_checked_threshold
from fljax.algorithms.single_model import keeping, learning_by, normalise_weights, single_model
from fljax.algorithms.single_model import server_optimizer as optimizer
from fljax.core import trees
from fljax.core.values import LOSSES, Count, NonNegative, Positive, checked
from fljax.protocol import (
    Algorithm,
    AnyArray,
    Available,
    Census,
    Cohort,
    Info,
    LocalData,
    Round,
    Seat,
    Subset,
    Task,
    along,
)
from fljax.protocol.messages import Report
from fljax.protocol.sums import Part, Streamed, Total, mean
from fljax.training import Local, Optimizer, Stream


class MwFedServer(NamedTuple):
    """The model, the server optimizer's state, weights W of sum 1, and each client's effort in this round."""

    model: PyTree
    optimizer: PyTree
    weights: Float[Array, " N"]
    effort: Float[Array, " N"]


class MwFedDown(NamedTuple):
    """What a client receives: the model, and its effort, a multiple of the usual work."""

    model: PyTree
    effort: Float[Array, ""]


class MwFedUp(NamedTuple):
    """What a client sends: its update, the samples behind a pooled step, and its loss and threshold."""

    update: PyTree
    samples: Float[Array, ""]
    report: Report


class MwFedRow(NamedTuple):
    """A client's record: its loss, whether it is unsatisfied, and its weight in the sum."""

    loss: Float[Array, ""]
    unsatisfied: Bool[Array, ""]
    samples: Float[Array, ""]


@checked
def mwfed(
    task: Task,
    local: Local,
    *,
    threshold: Annotated[Real[AnyArray, " N"] | Sequence[float] | float | Float[Array, ""], LOSSES],
    mode: Literal["local", "pooled"] = "local",
    factor: Positive = 2.0,
    most: Count = 10,
    clients_per_round: Count | None = 10,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``W_k <- W_k factor`` where ``F_k(w) >= threshold_k``, normalised; client k does ``W_k`` times the usual work.

    "local": ``tau_k = clip(round(tau |S| W_k / sum_S W_j), 1, most tau)`` local steps; ``w <- w + mean_k Delta_k``.
    "pooled": client k contributes ``round(W_k b N)`` samples, drawn with replacement, to one gradient step of rate eta;
    N counts the clients that have data. Without shuffling the samples are the client's rows in their order.

    Args:
      task: model and loss.
      local: how clients train; its steps (or the steps of its epochs) are tau.
      threshold: ``rho`` by client id ``[N]`` or one number; a client is satisfied if its loss is below its threshold.
        In a comparison it is what all algorithms have, ``fljax.Requirement``, without which it is the standalone
        training loss.
      mode: "local" or "pooled".
      factor: the paper's c; 1 is FedAvg with uniform weights. The authors' code has 4.
      most: the largest number of a client's local steps, as a multiple of tau. Mode "pooled" has no limit.
      clients_per_round: drawn uniformly without replacement; None: all.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Info: ``weight`` [row] in the server's mean, ``loss`` [row], ``effort`` [row], and ``share``
      [client], the weights W after the round.

    Raises:
      ValueError: if ``mode`` is not a valid name, ``most`` is not positive, the length of ``threshold`` differs from
        the population, or the local optimizer of mode "pooled" is not plain SGD.
    """
    if mode == "pooled":
        require_plain_sgd(local, "mwfed in mode pooled")
    rho = jnp.asarray(threshold)
    uniform = select_uniform(clients_per_round)
    server_side = optimizer(server_lr, server_optimizer, task)

    def init_server(key: Key[Array, ""], census: Census) -> MwFedServer:
        model = task.init(key)
        weights = normalise_weights((census.train > 0).astype(jnp.result_type(float)))
        return MwFedServer(model, server_side.init(model), weights, jnp.ones_like(weights))

    def send(server: MwFedServer, seat: Seat) -> MwFedDown:
        return MwFedDown(server.model, server.effort[seat.id] if seat.known else jnp.ones((), server.effort.dtype))

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: MwFedServer, ballots: PyTree, available: Available
    ) -> tuple[MwFedServer, Cohort, Info]:
        server = server._replace(weights=shares_of_members(server.weights, available))
        server, cohort, info = uniform(key, round, server, ballots, available)
        if mode == "local":
            among = jnp.sum(jnp.where(cohort.present, server.weights[cohort.id], 0))
            usual = among / jnp.maximum(jnp.sum(cohort.present), 1)
            effort = trees.ratio(server.weights, usual, 1)
        else:
            effort = server.weights * jnp.sum(server.weights > 0)  # N counts clients with data
        return server._replace(effort=effort.astype(server.effort.dtype)), cohort, info

    def train(
        key: Key[Array, ""], seat: Seat, down: MwFedDown, client: PyTree, data: LocalData
    ) -> tuple[MwFedUp, PyTree]:
        loss_key = training.stream(key, Stream.LOSS)
        loss, _ = training.evaluate(task, lambda x: task.logits(down.model, x), data.train, key=loss_key)
        report = Report(loss=loss, threshold=threshold_of(rho, seat.id).astype(loss.dtype))
        if mode == "pooled":
            update, samples = _pooled(key, down, data.train, task, local, seat.round)
            return MwFedUp(update, samples, report), client
        longest = local._replace(
            steps=None if local.steps is None else most * local.steps,
            epochs=None if local.epochs is None else most * local.epochs,
        )
        batches = -(-data.train.rows.size // min(local.batch_size, data.train.rows.index.shape[-1]))
        usual = local.steps if local.steps is not None else (local.epochs or 1) * batches
        steps = jnp.clip(jnp.round(usual * down.effort), 1, most * usual).astype(jnp.int32)
        trained = learning_by(task, longest).train(key, seat, down.model, data, client, steps=steps)
        return MwFedUp(trees.subtract(trained.params, down.model), jnp.ones_like(loss), report), trained.state

    def contribute(server: MwFedServer, seat: Seat, up: MwFedUp) -> tuple[Part, MwFedRow]:
        unsatisfied = up.report.loss >= up.report.threshold
        return Part(up.update, up.samples), MwFedRow(up.report.loss, unsatisfied, up.samples)

    def finish(server: MwFedServer, total: Total, rows: MwFedRow, round: Round) -> tuple[MwFedServer, Info]:
        cohort = round.cohort
        model, state = server_side.move(server.model, server.optimizer, mean(total), cohort.present)
        complains = cohort.present & rows.unsatisfied
        unsatisfied = trees.set_rows(jnp.zeros(server.weights.shape, bool), cohort.id, complains, True)
        raised = aggregators.mw_weights(server.weights, unsatisfied, factor=factor).astype(server.weights.dtype)
        weights = jnp.where(jnp.any(unsatisfied), raised, server.weights)
        loss = trees.or_nan(cohort.present, rows.loss)
        effort = jnp.where(cohort.present, server.effort[cohort.id], 0)
        info = along("row", weight=normalise_weights(rows.samples), loss=loss, effort=effort) | along(
            "client", share=weights
        )
        return MwFedServer(model, state, weights, server.effort), info

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local, lambda down: down.model),
        aggregate=Streamed(contribute, finish),
        init_server=with_checked_threshold(rho, init_server),
        send=send,
        select=select,
        common=lambda down: down.model,
    )


def _pooled(
    key: Key[Array, ""], down: MwFedDown, subset: Subset, task: Task, local: Local, round: Int[Array, ""]
) -> tuple[PyTree, Array]:
    """One step of SGD on ``round(effort * b)`` samples drawn with replacement, and the number of samples."""
    batch = local.batch_size
    size = jnp.maximum(subset.rows.size, 1)
    count = jnp.round(down.effort * batch).astype(jnp.int32)

    def one(index: int | Int[Array, ""], total: PyTree) -> PyTree:
        own_key = jax.random.fold_in(training.stream(key, Stream.STEPS), index)
        place = index * batch + jnp.arange(batch)
        if training.shuffles(local):
            position = jax.random.randint(training.stream(own_key, Stream.BATCHES), (batch,), 0, size, jnp.int32)
        else:
            position = place % size
        mask = place < count
        slope = training.gradient(task, down.model, subset, position, mask, training.stream(own_key, Stream.STEPS))
        return trees.add(total, trees.scale(trees.widened(slope), jnp.sum(mask)))

    # There may be up to b N samples: the loop runs for the client's own number of batches.
    total = jax.lax.fori_loop(0, -(-count // batch), one, trees.widened(trees.zeros_like(down.model)))
    samples = count.astype(down.effort.dtype)
    slope = trees.like(trees.scale(total, 1 / jnp.maximum(samples, 1)), down.model)
    return training.one_step(task, training.of_client(local, subset), down.model, slope, round), samples


ENTRY = Entry(
    mwfed,
    "clients that the model does not satisfy do more local steps",
    ("blum2021one", "cho2022federate"),  # the default mode follows INCFL's description
    {"threshold": (0.9, 0.7, 1.1, 0.8, 1.0)},
    differentiable=("server_lr",),
    flat=("threshold", "factor"),
    reads="losses and thresholds, which decide how much a client trains",
)
