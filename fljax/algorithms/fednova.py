"""FedNova: updates divided by the work behind them, so that clients do not pull harder by more steps.

Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization" (NeurIPS
2020), equation 8 and section 4. Deviations: the authors' code multiplies by the number of local steps in place of
``tau_eff`` if there is a proximal term, and adds up both recursions if there is momentum as well; here ``tau_eff`` is
that of the paper, and the combination is refused. Momentum of the server is that of ``server_optimizer``: it adds up
updates, and that code updates divided by the learning rate, which is the same while the rate is. The weight decay of
``local`` is part of the client's objective.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, require_fresh
from fljax.algorithms.single_model import contribute_by, normalise_weights, reported_size, single_model
from fljax.algorithms.single_model import with_server_optimizer as optimized
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Cohort, Info, LocalData, Seat, Task, along, roles
from fljax.protocol.messages import Report
from fljax.protocol.sums import Part, Total, mean
from fljax.training import Local, Optimizer


class FedNovaUp(NamedTuple):
    """What a client sends: its update for the most work that a client may do, its part of that work, and its size."""

    update: PyTree
    work: Array
    report: Report = Report()


@checked
def fednova(
    task: Task,
    local: Local,
    *,
    mu: NonNegative = 0.0,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w + server_lr tau_eff sum_k p_k Delta_k / A_k`` with ``tau_eff = sum_k p_k A_k`` and ``sum_k p_k = 1``.

    ``A_k`` is the sum of the weights with which the gradients of the ``tau_k`` steps enter ``Delta_k``. For plain SGD
    it is ``tau_k``; with momentum rho it is ``(tau_k - rho (1 - rho**tau_k) / (1 - rho)) / (1 - rho)``, and with a
    proximal term ``(1 - (1 - eta mu)**tau_k) / (eta mu)``. Clients take different numbers of steps where ``local`` has
    epochs, and in the scenario ``heterogeneous_training``, whose factors of eta are factors of ``A_k``, too. Where all
    take as many, the result is FedAvg's: bit for bit if it is the most that a client can take.

    Args:
      task: model and loss.
      local: how clients train: SGD, plain or with ``momentum``.
      mu: weight of the proximal term ``mu/2 ||y - w||^2``, as for ``fedprox``, with ``eta mu`` below 1; 0: none.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: ``p_k``, normalised over the cohort: "size" is the client's number of training samples, "uniform" is 1.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. A client sends ``A_max Delta_k / A_k`` and ``A_k / A_max``, where ``A_max`` belongs to the most
      steps that a client can take. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``; if the local optimizer is not SGD, or has options other than ``momentum``; or if there
        are both momentum and a proximal term, or clipped gradients and a proximal term, or if momentum is kept between
        rounds, which changes ``A_k``.
    """
    contribute_one = contribute_by(weights)
    is_proximal = not (isinstance(mu, int | float) and mu == 0)
    momentum = _momentum(local, is_proximal)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData
    ) -> tuple[FedNovaUp, PyTree]:
        near = training.proximal(down, mu) if is_proximal else None
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round, adjust=near)
        dtype = trees.wide(jax.tree.leaves(down)[0]).dtype
        step = jnp.arange(training.most_steps(local, data.train.rows))

        def terms(of: Local) -> Array:
            if is_proximal:
                return jnp.power(1 - training.rate(of, seat.round, dtype) * jnp.asarray(mu, dtype), step)
            return jnp.cumsum(jnp.power(jnp.asarray(momentum, dtype), step))

        own = jnp.where(step < trained.steps, terms(training.of_client(local, data.train)), 0)
        work = trees.ratio(jnp.sum(own), jnp.sum(terms(local)))
        if data.train.rate_factor is not None:  # A_max is of the common eta
            work = work * data.train.rate_factor.astype(work.dtype)
        update = trees.subtract(trained.params, down)
        normalised = trees.scale(update, trees.ratio(1, work))
        return FedNovaUp(roles.replace_statistics(task, normalised, update), work, reported_size(weights, data)), client

    def contribute(server: PyTree, seat: Seat, up: FedNovaUp) -> tuple[Part, Array]:
        mass = jnp.where(up.work > 0, contribute_one(server, seat, up)[1], 0)  # whoever took no step is absent
        return Part(up._replace(report=Report()), mass), mass

    def direction(total: Total, rows: Float[Array, " S"], cohort: Cohort) -> tuple[PyTree, Info]:
        means = mean(total)
        step = roles.replace_statistics(task, trees.scale(means.update, means.work), means.update)
        return step, along("row", weight=normalise_weights(rows))

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        **optimized(task, contribute, direction, server_lr, server_optimizer),
    )


def _momentum(local: Local, is_proximal: bool) -> float | Array:
    """The local momentum, after a check that ``A_k`` is known."""
    options = dict(local.options)
    momentum = options.pop("momentum", None)
    if local.optimizer != "sgd" or options:
        got = f"{local.optimizer!r}" + (f" with {dict(local.options)}" if local.options else "")
        raise ValueError(f"expected the local optimizer 'sgd', alone or with momentum, for fednova, got {got}")
    if local.clip_norm is not None and is_proximal:
        raise ValueError(f"expected mu = 0 for fednova with clip_norm, got clip_norm {local.clip_norm} and another mu")
    if momentum is not None and is_proximal:
        raise ValueError(f"expected mu = 0 for fednova with local momentum, got momentum {momentum} and another mu")
    if momentum is None:
        return 0.0
    require_fresh(local, "fednova with local momentum", "where A_k would depend on earlier rounds")
    return momentum


ENTRY = Entry(
    fednova,
    "divides each update by the work behind it, so that no client pulls harder by more steps",
    ("wang2020tackling",),
    {"mu": 0.1},
    differentiable=("mu", "server_lr"),
)
