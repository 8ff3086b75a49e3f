"""Estimators from gradients and from the directions of updates, and reputations that rounds update.

No model of a coalition is evaluated. Some reputations shut clients out. ``L`` is a loss on validation rows, ``a_i`` a
client's share of the round's weights; a cosine with zero is 0.

Estimators that are reputations: numbers of clients that the rounds update, and some of which shut clients out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fljax.aggregators import shapley_first_order
from fljax.contributions.estimators.rounds import Cost, Estimator, Observation, Utility, cosines, no_memory, products
from fljax.core import trees
from fljax.core.values import CountOrZero, Number, Share, checked


@checked
def digfl(*, clipped: bool = False) -> Estimator:
    """DIG-FL: ``phi_i = -sum_t <grad L(w^t), Delta_i^t> / |I_t|``; terms of second order are left out.

    One gradient a round, which is known when the round starts; of an update it needs this product alone.

    Args:
      clipped: each round's values are replaced by ``max(phi, 0) / (sum_i max(phi_i, 0) + 1e-5)``, as in the code.

    Source: Wang et al., "Efficient participant contribution evaluation for horizontal and vertical federated learning"
    (ICDE 2022).
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        if seen.gradient is None:
            raise ValueError("expected the gradient of the validation loss at each round's model, got none")
        slope = products(seen.updates, jax.tree.map(lambda leaf: leaf[None], seen.gradient))
        row = -trees.ratio(slope, jnp.sum(seen.present))
        if clipped:
            row = jnp.maximum(row, 0)
            row = row / (jnp.sum(row) + 1e-5)
        return memory, row, Cost(gradients=1)

    return Estimator(no_memory, observe)


@checked
def first_order() -> Estimator:
    """``phi_i = -sum_t a_i <grad L(w^{t+1}), Delta_i - sum_j a_j Delta_j>``: of each round, the sum is 0.

    One gradient a round, at the new model (``fljax.aggregators.shapley_first_order``).

    Source: IP-FL, appendix H, equation (34).
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        if seen.next_gradient is None:
            raise ValueError("expected the gradient of the validation loss at the model after each round, got none")
        share = trees.ratio(seen.weights, jnp.sum(seen.weights))
        gradients = jax.tree.map(lambda leaf: leaf[None], seen.next_gradient)
        return memory, shapley_first_order(gradients, seen.updates, share[None])[0], Cost(gradients=1)

    return Estimator(no_memory, observe)


@checked
def cosine(*, normalised: bool = False) -> Estimator:
    """``phi_i = sum_t cos(Delta_i, sum_j a_j Delta_j)``.

    Args:
      normalised: the total is ``sum_j a_j Delta_j / ||Delta_j||``, CGSV's, in which long updates count no more than
        short ones.
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        length = trees.root(products(seen.updates, seen.updates))
        weights = trees.ratio(seen.weights, length) if normalised else seen.weights
        return memory, cosines(seen.updates, weights), Cost()

    return Estimator(no_memory, observe)


@checked
def shapfed(*, head: Callable[[PyTree], Any], momentum: Share = 0.9) -> Estimator:
    """ShapFed: ``gamma_i = mean_c cos(Delta_i[c], sum_j a_j Delta_j[c])`` over classes c, smoothed over rounds.

    ``gamma_i <- momentum gamma_i + (1 - momentum) gamma_i^t`` for clients that are present; the first time
    ``gamma_i = gamma_i^t``. ``details["weights"]`` ``[N]`` is ``gamma_i / sum gamma``, the weights that the method
    gives.

    Args:
      head: ``updates -> [S, classes, k]``: from leaves ``[S, ...]``, the rows of the last layer for each class, with
        the bias.
      momentum: mu.

    Source: Tastan et al., "Redefining contributions: Shapley-driven federated learning" (IJCAI 2024).
    """

    def start(model: PyTree, clients: int, rounds: int) -> Any:
        return jnp.zeros(clients, jnp.result_type(float)), jnp.zeros(clients, bool)

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        gamma, known = memory
        rows = trees.wide(head(seen.updates))
        if rows.ndim != 3:
            raise ValueError(f"expected head to give [clients, classes, parameters], got shape {rows.shape}")
        by_class = jax.vmap(lambda row: cosines(row, seen.weights), in_axes=1)(rows)
        now = jnp.mean(by_class, axis=0).astype(gamma.dtype)
        before = gamma[seen.ids]
        new = jnp.where(known[seen.ids], momentum * before + (1 - momentum) * now, now)
        gamma = trees.set_rows(gamma, seen.ids, seen.present, new)
        return (gamma, trees.set_rows(known, seen.ids, seen.present, True)), now, Cost()

    def details(memory: Any) -> dict[str, Any]:
        return {"weights": trees.ratio(memory[0], jnp.sum(memory[0]))}

    return Estimator(start, observe, _first, details=details)


_LEAST = 1e-3  # FedCE's shares are at least this


@checked
def fedce(*, client_metric: Callable[..., Any], combined: Literal["times", "plus"] = "times") -> Estimator:
    """FedCE: how much a client's updates differ from the others', and how bad a model is without the client.

    - ``g_i = 1 - mean_tau cos(Delta_i, sum_{j != i} c_j Delta_j)``;
    - ``e_i = 1 - mean_tau metric_i((w - c_i w_i) / (1 - c_i))``, where w is the round's model, ``w_i`` the model that
      client i sent last, and the metric is 0 in the client's first round;
    - g and e are divided by their sums and are at least 1e-3;
    - ``c_i = g_i e_i / sum_j g_j e_j`` ("times"), or ``(g_i + e_i) / sum_j (g_j + e_j)`` ("plus"), at least 1e-3.

    Means are over the rounds tau in which the client took part. At first ``c_i = 1/N``. The worth is c, whose sum need
    not be 1. ``details`` has g and e as ``gradient_share`` and ``error_share``.

    Args:
      client_metric: ``(models, ids) -> [S]``: the metric between 0 and 1 of each of S models, leaves ``[S, ...]``, on
        the validation rows of the client with this id.
      combined: see above.

    Source: Jiang et al., "Fair federated medical image segmentation via client contribution estimation" (CVPR 2023).
    """

    def start(model: PyTree, clients: int, rounds: int) -> Any:
        zero = jnp.zeros(clients, jnp.result_type(float))
        last = jax.tree.map(lambda leaf: jnp.zeros((clients, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), model)
        return zero, zero, zero, zero + 1 / clients, last

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        angle, metric, count, share, last = memory
        ids, here = seen.ids, seen.present
        own = jnp.where(here, share[ids], 0)
        angle = trees.add_rows(angle, ids, here, cosines(seen.updates, own, others=True).astype(angle.dtype))
        # The model without the client.
        kept = trees.take(last, ids)
        without = jax.tree.map(
            lambda w, sent: trees.ratio(w[None] - _along(own, sent) * sent, _along(1 - own, sent)).astype(sent.dtype),
            seen.model,
            kept,
        )
        known = here & (count[ids] > 0)
        judged = jnp.where(known, jnp.asarray(client_metric(without, ids)), 0)
        metric = trees.add_rows(metric, ids, here, judged.astype(metric.dtype))
        count = trees.add_rows(count, ids, here, jnp.ones_like(own, count.dtype))
        sent = jax.tree.map(lambda w, leaf: (w[None] + leaf).astype(jnp.asarray(w).dtype), seen.model, seen.updates)
        last = trees.set_rows(last, ids, here, sent)
        first, second = _fedce_shares(angle, metric, count)
        new = _normal(first * second if combined == "times" else first + second, count > 0)
        share = jnp.where(count > 0, new, share)
        memory = angle, metric, count, share, last
        return memory, share[ids], Cost(evaluations=jnp.sum(known))

    def details(memory: Any) -> dict[str, Any]:
        first, second = _fedce_shares(*memory[:3])
        return {"gradient_share": first, "error_share": second}

    return Estimator(start, observe, lambda memory, total: memory[3], details=details)


def _along(values: Array, leaf: Any) -> Array:
    return values.astype(trees.wide(leaf).dtype).reshape(values.shape + (1,) * (jnp.ndim(leaf) - 1))


def _normal(values: Array, seen: Array) -> Array:
    """Shares of the clients that were seen, at least 1e-3; 0 for the others."""
    values = jnp.where(seen, values, 0)
    return jnp.where(seen, jnp.maximum(trees.ratio(values, jnp.sum(values)), _LEAST), 0)


def _fedce_shares(angle: Array, metric: Array, count: Array) -> tuple[Array, Array]:
    return _normal(1 - trees.ratio(angle, count), count > 0), _normal(1 - trees.ratio(metric, count), count > 0)


@checked
def cffl_reputation(*, utility: Utility, alpha: Number = 5.0, threshold: Share = 1 / 3) -> Estimator:
    """CFFL: ``r_i <- sinh(alpha (0.8 r_i + 0.2 U(w + Delta_i) / sum_j U(w + Delta_j)))``, then over their sum.

    A client with ``r_i < threshold / |Rep|`` has reputation 0 for ever and leaves ``Rep``, which has all clients at
    first. ``|I_t|`` evaluations a round. ``details["members"]`` ``[N]`` is ``Rep``.

    Args:
      utility: ``params -> number``, an accuracy on validation rows.
      alpha: how much the reputation punishes.
      threshold: 1/3, or 1/6 for clients with different classes.

    Source: Lyu et al., "Collaborative fairness in federated learning" (2020), as in the authors' code.
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        reputation, members = memory
        judged = seen.present & members[seen.ids]

        def one(update: PyTree) -> Array:
            return jnp.asarray(utility(trees.add_scaled(seen.model, update)))

        accuracy = jnp.where(judged, jax.vmap(one)(seen.updates), 0).astype(reputation.dtype)
        by_client = trees.set_rows(jnp.zeros_like(reputation), seen.ids, judged, accuracy)
        here = trees.set_rows(jnp.zeros_like(members), seen.ids, judged, True)
        least = _of_members(threshold, members, seen.members)
        memory = cffl_update(reputation, members, here, by_client, alpha=alpha, threshold=least)
        return memory, memory[0][seen.ids], Cost(evaluations=jnp.sum(judged))

    return Estimator(_reputation, observe, _first, details=lambda memory: {"members": memory[1]})


def cffl_update(
    reputation: Float[Array, " N"],
    members: Bool[Array, " N"],
    here: Bool[Array, " N"],
    accuracy: Float[Array, " N"],
    *,
    alpha: float | Array,
    threshold: float | Array,
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Reputations and members after a round, see ``cffl_reputation``; absent clients keep theirs before the sum."""
    share = trees.ratio(accuracy, jnp.sum(jnp.where(here, accuracy, 0)))
    new = jnp.where(here, jnp.sinh(alpha * (0.8 * reputation + 0.2 * share)), reputation)
    return _remaining(jnp.where(members, new, 0), members, here, threshold)


@checked
def rffl_reputation(*, alpha: Share = 0.95, threshold: Share = 1 / 3, warm_up: CountOrZero = 10) -> Estimator:
    """RFFL: ``r_i <- alpha r_i + (1 - alpha) cos(Delta_i, sum_{j in Rep} a_j Delta_j)``, then over their sum.

    From round ``warm_up`` on, a client with ``r_i < threshold / |Rep|`` has reputation 0 for ever and leaves ``Rep``.
    ``details["quota"]`` ``[N]`` is ``r_i / max r``, the share of the update that a client gets (nothing below 0), and
    ``details["members"]`` is ``Rep``.

    Args:
      alpha: weight of the old reputation.
      threshold: see above.
      warm_up: rounds without removal.

    Source: Xu and Lyu, "A reputation mechanism is all you need: collaborative fairness and adversarial robustness in
    federated learning" (2020), as in the authors' code.
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        reputation, members = memory
        judged = seen.present & members[seen.ids]
        angle = cosines(seen.updates, jnp.where(judged, seen.weights, 0)).astype(reputation.dtype)
        by_client = trees.set_rows(jnp.zeros_like(reputation), seen.ids, judged, angle)
        here = trees.set_rows(jnp.zeros_like(members), seen.ids, judged, True)
        least = jnp.where(round >= warm_up, _of_members(threshold, members, seen.members), -jnp.inf)
        memory = rffl_update(reputation, members, here, by_client, alpha=alpha, threshold=least)
        return memory, memory[0][seen.ids], Cost()

    def details(memory: Any) -> dict[str, Any]:
        return {"quota": trees.ratio(memory[0], jnp.max(memory[0])), "members": memory[1]}

    return Estimator(_reputation, observe, _first, details=details)


def rffl_update(
    reputation: Float[Array, " N"],
    members: Bool[Array, " N"],
    here: Bool[Array, " N"],
    cosine: Float[Array, " N"],
    *,
    alpha: float | Array,
    threshold: float | Array,
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Reputations and members after a round, see ``rffl_reputation``; absent clients keep theirs before the sum."""
    new = jnp.where(here, alpha * reputation + (1 - alpha) * cosine, reputation)
    return _remaining(jnp.where(members, new, 0), members, here, threshold)


def _of_members(
    threshold: float | Array, members: Bool[Array, " N"], federation: Bool[Array, " N"] | None
) -> float | Array:
    """The threshold by which ``threshold / |Rep|`` has the clients of the federation alone in ``Rep``."""
    if federation is None:
        return threshold
    return trees.ratio(threshold * jnp.sum(members), jnp.sum(members & federation))


def _remaining(new: Array, members: Array, here: Array, threshold: float | Array) -> tuple[Array, Array]:
    """Reputations as shares, and without the clients of this round that are below ``threshold / |Rep|``."""
    share = trees.ratio(new, jnp.sum(new))
    stays = members & ~(here & (share < trees.ratio(threshold, jnp.sum(members))))
    return jnp.where(stays, share, 0), stays


def _reputation(model: PyTree, clients: int, rounds: int) -> Any:
    return jnp.zeros(clients, jnp.result_type(float)), jnp.ones(clients, bool)


def _first(memory: Any, total: Array) -> Array:
    return memory[0]
