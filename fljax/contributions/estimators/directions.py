"""Estimators from gradients and from the directions of updates: no model of a coalition is evaluated.

``L`` is a loss on validation rows, ``a_i`` a client's share of the round's weights; a cosine with zero is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax.aggregators import shapley_first_order
from fljax.contributions.estimators.rounds import Cost, Estimator, Observation, cosines, no_memory, products
from fljax.core import trees
from fljax.core.values import Share, checked


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

    def worth(memory: Any, total: Array) -> Array:
        return memory[0]

    def details(memory: Any) -> dict[str, Any]:
        return {"weights": trees.ratio(memory[0], jnp.sum(memory[0]))}

    return Estimator(start, observe, worth, details=details)
