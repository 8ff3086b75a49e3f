"""IP-FL's convergence theorems: descent at decreasing rates, and importance weights that stop to change.

The clients' losses F_k are convex and L-smooth. What the theorems claim, and what is computed here:

- Theorem 3: gradient descent ``w <- w - eta_t grad F(w)`` on a cluster of normal data converges, and so does the global
  model. ``descent_bound`` gives the rate for any convex loss, ``descent_distances`` the distance for a strongly convex
  one; for normal data, where F is ``E ||z - w||^2 / 2``, it is an equality.
- Theorem 6: the weighted mean ``w <- sum_k p_k (w - eta_t grad F_k(w))`` converges to a minimiser of ``sum_k p_k F_k``
  if the sum of the rates is infinite and that of their squares finite (Robbins and Monro). ``stochastic_bound`` gives
  the rate, with noise.
- Theorem 4: from some round on every client performs nearly as well as it can. ``settling_round`` gives a round from
  which a client's importance weights (equation 7) are those of the limit, ``personal_distance_bound`` how near its
  personalised model (equation 8) is to the limit.

Source: IP-FL, section 5 and appendix I. What the theorems do not give:

- No theorem has a rate. The bounds here are the usual ones of convex optimisation, from the proofs' own inequalities.
- A minimiser must exist, as the proofs use; theorem 3 also needs smoothness and ``eta_t < 2 / L``. Normal data are not
  needed, and without noise neither is a finite sum of squares. With noise the mean of the losses needs less: the sum of
  squares over the sum must tend to 0.
- Theorem 6 allows each client a rate of its own. That is wrong unless their ratios tend to 1: with ``eta_k,t = r_k
  eta_t`` the limit is the minimiser for the weights of ``limit_weights``.
- (47) and (48) bound the loss of each client and add these bounds up. But a client's loss of the global model may rise
  in every round; only the weighted mean falls, by the square of the mean gradient and not by the mean of squares.
- Theorem 4 assumes "proper weight adjustment". Importance is a share of correct rows, which jumps: it settles if in the
  limit no row is on a decision boundary. Then it does so after finitely many rounds, exactly.
- The limit is a mixture of all clusters' models, which need not be the best for the client: theorem 4's optimum is that
  of the weights of equation 7, not of all weights.
- Nothing is said of clusters whose members still change, of bids, or of clients drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.core.trees import as_key
from fljax.core.values import floats_of


def decaying_rates(first: ArrayLike, power: ArrayLike, rounds: int) -> Array:
    """``eta_t = first / (t + 1)^power`` for t = 0 .. rounds - 1.

    Their sum is infinite for a power up to 1, and that of their squares finite for one above 1/2.
    """
    power = floats_of(power)
    return floats_of(first) / jnp.arange(1, rounds + 1, dtype=float) ** power


def descend(
    key: Array, gradient: Callable[[Array], Array], start: ArrayLike, rates: ArrayLike, *, noise: ArrayLike = 0.0
) -> Array:
    """``w_{t+1} = w_t - eta_t (g(w_t) + sqrt(noise / d) z_t)`` with standard normal z.

    Args:
      key: a key of ``jax.random``.
      gradient: g, from ``[..., d]`` to ``[..., d]``; leading axes may be clusters.
      start: ``w_0``, ``[..., d]``.
      rates: ``eta``, ``[T]``.
      noise: the variance of a stochastic gradient ``[d]``. That of a weighted mean of K clients with independent noise
        is ``sum_k p_k^2 sigma_k^2``.

    Returns:
      ``[T + 1, ..., d]``, the models from ``w_0`` to ``w_T``.
    """
    begin, paces = floats_of(start), floats_of(rates)
    deviation = jnp.sqrt(floats_of(noise, begin.dtype) / begin.shape[-1])

    def step(w: Array, turn: tuple[Array, Array]) -> tuple[Array, Array]:
        step_key, pace = turn
        after = w - pace * (gradient(w) + deviation * jax.random.normal(step_key, w.shape, w.dtype))
        return after, after

    _, models = jax.lax.scan(step, begin, (jax.random.split(as_key(key), len(paces)), paces))
    return jnp.concatenate([begin[None], models])


def descent_distances(distance: ArrayLike, convexity: ArrayLike, rates: ArrayLike) -> Array:
    """``||w_t - w*|| <= ||w_0 - w*|| prod_{s<t} (1 - mu eta_s)`` for t = 0 .. T (theorem 3).

    For descent without noise on an L-smooth and mu-strongly convex loss, at rates up to ``2 / (L + mu)``. An equality
    for ``mu = L``, as for the mean of normal data. It tends to 0 iff the sum of the rates is infinite.

    Args:
      distance: ``||w_0 - w*||``, a scalar or, by cluster, ``[C]``.
      convexity: mu; the same.
      rates: ``eta``, ``[T]``.

    Returns:
      ``[T + 1]`` or ``[T + 1, C]``.
    """
    far, convex = jnp.broadcast_arrays(floats_of(distance), floats_of(convexity))
    paces = floats_of(rates).reshape((-1,) + (1,) * far.ndim)
    kept = jnp.cumprod(1 - convex[None] * paces, axis=0)
    return far[None] * jnp.concatenate([jnp.ones_like(far)[None], kept])


def descent_bound(distance: ArrayLike, rates: ArrayLike, smoothness: ArrayLike) -> Array:
    """``F(w_T) - F* <= ||w_0 - w*||^2 / (2 sum_{t<T} eta_t)`` for T = 1, 2, ... (theorem 3).

    For descent without noise on a convex and L-smooth loss with a minimiser w*. It tends to 0 iff the sum of the rates
    is infinite.

    Args:
      distance: ``||w_0 - w*||``.
      rates: ``eta``, ``[T]``.
      smoothness: L. The bound is infinite from the first rate above ``1 / L`` on.

    Returns:
      ``[T]``.
    """
    paces = floats_of(rates)
    bound = jnp.square(floats_of(distance, paces.dtype)) / (2 * jnp.cumsum(paces))
    return jnp.where(_up_to(paces, 1 / floats_of(smoothness, paces.dtype)), bound, jnp.inf)


def stochastic_bound(distance: ArrayLike, noise: ArrayLike, rates: ArrayLike, smoothness: ArrayLike) -> Array:
    """``sum_{t<T} eta_t E(F(w_t) - F*) / sum_{t<T} eta_t <= (D^2 + sigma^2 sum_{t<T} eta_t^2) / sum_{t<T} eta_t``.

    For T = 1, 2, ..., where D is ``||w_0 - w*||``, of stochastic gradient descent on a convex and L-smooth loss
    (theorem 6). It bounds the least of the losses as well, and the loss of the mean model, weighted by the rates. It
    tends to 0 under the conditions of Robbins and Monro; for ``eta_t`` in proportion to ``t^-a`` with 1/2 < a < 1 like
    ``T^-(1 - a)``.

    Args:
      distance: D.
      noise: ``sigma^2``, the variance of the mean gradient, as for ``descend``.
      rates: ``eta``, ``[T]``.
      smoothness: L. The bound is infinite from the first rate above ``1 / (2 L)`` on.

    Returns:
      ``[T]``.
    """
    paces = floats_of(rates)
    pushed = floats_of(noise, paces.dtype) * jnp.cumsum(jnp.square(paces))
    bound = (jnp.square(floats_of(distance, paces.dtype)) + pushed) / jnp.cumsum(paces)
    return jnp.where(_up_to(paces, 1 / (2 * floats_of(smoothness, paces.dtype))), bound, jnp.inf)


def limit_weights(weights: ArrayLike, rates: ArrayLike) -> Array:
    """``p_k r_k / sum_j p_j r_j``: the global model tends to the minimiser of the loss with these weights (theorem 6).

    Args:
      weights: p, ``[K]``.
      rates: r, ``[K]``: a client's rate relative to the others', the same in all rounds.
    """
    both = floats_of(weights) * floats_of(rates)
    return both / both.sum()


def settling_distance(margins: ArrayLike, slopes: ArrayLike) -> Array:
    """``min_j |margin_cj| / slope_j``: nearer than this to its limit, a cluster's model is right on the same rows.

    Args:
      margins: ``[C, n]``: by how much the score of a row's label is above the largest other one, for the limits of the
        clusters' models; negative for a wrong answer, 0 on a decision boundary.
      slopes: ``[n]``, by how much a row's margin changes at most with a unit of distance between models; for the margin
        ``y (x @ w)``, ``||x||``.

    Returns:
      ``[C]``; 0 if a row is on the boundary.
    """
    return jnp.min(jnp.abs(floats_of(margins)) / floats_of(slopes)[None], axis=-1)


def settling_round(distances: ArrayLike, radius: ArrayLike) -> Array:
    """The first round from which on every cluster's distance is below its radius; without one, the number of rounds.

    With ``settling_distance`` as the radius, importance weights are those of the limit from this round on (theorem 4).

    Args:
      distances: ``||w_c,t - w_c*||``, or bounds such as ``descent_distances``: ``[rounds, C]``.
      radius: ``[C]``.

    Raises:
      ValueError: if ``distances`` has another number of axes.
    """
    far = floats_of(distances)
    if far.ndim != 2:
        raise ValueError(f"expected distances [rounds, clusters], got {far.shape}")
    outside = jnp.any(far >= floats_of(radius, far.dtype)[None], axis=-1)
    return jnp.max(jnp.where(outside, jnp.arange(1, len(far) + 1), 0))


def personal_distance_bound(
    weights: ArrayLike, distances: ArrayLike, limit_weights: ArrayLike, limits: ArrayLike
) -> Array:
    """``||theta_t - theta*|| <= sum_c u_c,t ||w_c,t - w_c*|| + sum_c |u_c,t - u_c*| ||w_c*||`` (theorem 4).

    ``theta_t = sum_c u_c,t w_c,t`` is a client's personalised model.

    Args:
      weights: u, ``[rounds, C]``.
      distances: ``||w_c,t - w_c*||`` or bounds on it, ``[rounds, C]``.
      limit_weights: ``u*``, ``[C]``.
      limits: ``w*``, ``[C, d]``.

    Returns:
      ``[rounds]``.
    """
    now, last = floats_of(weights), floats_of(limit_weights)
    sizes = jnp.linalg.norm(floats_of(limits), axis=-1)
    return jnp.sum(now * floats_of(distances), -1) + jnp.abs(now - last[None]) @ sizes


def _up_to(rates: Array, largest: Array) -> Array:
    """``[T]``: whether all rates so far are at most the largest that a proof allows, but for rounding."""
    allowed = rates <= largest * (1 + 4 * jnp.finfo(rates.dtype).eps)
    return jnp.cumprod(allowed.astype(int)) > 0
