"""INCFL / MaxFL: trains a global model that as many clients as possible prefer to their standalone model.

Source: "To federate or not to federate: incentivizing client participation in federated learning" (INCFL), Algorithm 1;
"Maximizing global model appeal in federated learning" (MaxFL), Algorithm 1, is the same solver.
Deviations: q is sigma(1 - sigma) as in the equations (Algorithm 1, line 7 prints sigma, which is
``surrogate="softplus"``); updates are added (the text prints an ascent); the server's rate has no factor m
(``normalise="mean"`` adds it). A client reports its loss and its threshold, from which the server computes q; in the
papers a client sends q. The papers do not print eps; it is 1e-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Real

from fljax import aggregators, training
from fljax.algorithms.entries import Entry, threshold_of, with_checked_threshold
from fljax.algorithms.single_model import keeping, single_model, with_server_optimizer
from fljax.core import trees
from fljax.core.values import LOSSES, Count, CountOrZero, NonNegative, Positive, checked
from fljax.protocol import Algorithm, AnyArray, Cohort, Info, LocalData, Seat, Task, along, roles
from fljax.protocol.messages import Report, Sent
from fljax.protocol.sums import Part, Total, divided, mean
from fljax.training import Local, Optimizer, Stream

# Scales the sums: tiny weights times small updates would underflow before the division by the sum of weights. A power
# of two adds no rounding error. Derivatives of the division (``trees.ratio``) do not square it.
LIFT = 2.0**60


def _lift(gap_scale: Any, dtype: Any) -> Array:
    """``LIFT`` over a power of two near a large ``gap_scale``, with which the weights grow."""
    scale = jax.lax.stop_gradient(jnp.maximum(jnp.asarray(gap_scale, dtype), 1))
    return jnp.ldexp(jnp.asarray(LIFT, dtype), -jnp.frexp(scale)[1])


class IncflRow(NamedTuple):
    """A client's record: its loss, the gap (loss minus threshold), and its weight q."""

    loss: Float[Array, ""]
    gap: Float[Array, ""]
    weight: Float[Array, ""]


@checked
def incfl(
    task: Task,
    local: Local,
    *,
    threshold: Annotated[Real[AnyArray, " N"] | Sequence[float] | float | Float[Array, ""], LOSSES],
    clients_per_round: Count | None = 10,
    surrogate: Literal["sigmoid", "softplus", "relu", "hinge", "exp"] = "sigmoid",
    gap_scale: Positive = 1.0,
    normalise: Literal["sum", "mean"] = "sum",
    eps: NonNegative = 1e-8,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
    tune_steps: CountOrZero = 0,
) -> Algorithm:
    """``w <- w + server_lr / (sum_k q_k + eps) * sum_k q_k Delta_k`` with ``q_k = surrogate'(F_k(w) - threshold_k)``.

    With a ``gap_scale`` other than 1, ``q_k = gap_scale * surrogate'(gap_scale * (F_k(w) - threshold_k))``, the
    derivative of ``surrogate(gap_scale * (F_k(w) - threshold_k))``.

    ``F_k(w)`` is the mean training loss over ALL of the client's rows at the received model, before training. Weights
    do not depend on data sizes.

    Args:
      task: model and loss.
      local: how clients train.
      threshold: ``rho`` by client id ``[N]`` or one number: the loss at which a client is satisfied. In a comparison it
        is what all algorithms have, ``fljax.Requirement``, without which it is the standalone training loss. With
        "sigmoid", a client with an infinite threshold has no influence.
      clients_per_round: drawn uniformly without replacement; None: all.
      surrogate: see ``fljax.aggregators.incfl_weights``; "relu" is the ReLU variant. The papers name "hinge" beside
        it, without an equation: it is ``max(0, 1 + gap)`` here.
      gap_scale: beta in ``sigma(beta gap)``; 1 in the papers. Code that sums losses and thresholds over b batches, in
        place of a mean, has beta = b.
      normalise: see ``fljax.aggregators.incfl_update``.
      eps: added to the sum of weights.
      server_lr: eta_g.
      server_optimizer: as for ``fedavg``.
      tune_steps: local steps before F_k is measured (INCFL, appendix on local tuning); 0: none.

    Returns:
      The algorithm. Info by row: ``loss``, ``gap`` (loss minus threshold) and ``weight`` (q, not normalised); an empty
      row has NaN, NaN and 0.

    Raises:
      ValueError: if ``surrogate`` or ``normalise`` is not a valid name, ``gap_scale`` is not a finite number above 0,
        or (in a run) if the length of ``threshold`` differs from the population.
    """
    rho = jnp.asarray(threshold)

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        judged = down
        if tune_steps > 0:
            tuning = local._replace(steps=tune_steps, epochs=None)
            tune_key = training.stream(key, Stream.TUNING)
            judged = training.train(tune_key, down, data.train, task=task, local=tuning, round=seat.round).params
        loss_key = training.stream(key, Stream.LOSS)
        loss, _ = training.evaluate(task, lambda x: task.logits(judged, x), data.train, key=loss_key)
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round, state=client)
        threshold = threshold_of(rho, seat.id).astype(loss.dtype)
        return Sent(trees.subtract(trained.params, down), Report(loss=loss, threshold=threshold)), trained.state

    def contribute(server: PyTree, seat: Seat, up: Sent) -> tuple[Part, IncflRow]:
        loss, gap = up.report.loss, up.report.loss - up.report.threshold
        weight = aggregators.incfl_weights(gap, surrogate=surrogate, gap_scale=gap_scale)
        return Part(up.update, weight * _lift(gap_scale, weight.dtype)), IncflRow(loss, gap, weight)

    def direction(total: Total, rows: IncflRow, cohort: Cohort) -> tuple[PyTree, Info]:
        step = divided(
            total.value, total.weight + jnp.asarray(eps, total.weight.dtype) * _lift(gap_scale, total.weight.dtype)
        )
        if normalise == "mean":
            step = trees.scale(step, jnp.sum(cohort.present))
        step = roles.replace_statistics(task, step, mean(total))
        loss, gap = (trees.or_nan(cohort.present, values) for values in (rows.loss, rows.gap))
        return step, along("row", loss=loss, gap=gap, weight=rows.weight)

    parts = with_server_optimizer(task, contribute, direction, server_lr, server_optimizer)
    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local),
        aggregate=parts["aggregate"],
        init_server=with_checked_threshold(rho, parts["init_server"]),
    )


ENTRY = Entry(
    incfl,
    "weighs clients by how close the model is to their threshold (INCFL, MaxFL)",
    ("cho2022federate", "cho2024maximizing"),
    {"threshold": (0.9, 0.7, 1.1, 0.8, 1.0)},
    differentiable=("threshold", "gap_scale", "eps", "server_lr"),
)
