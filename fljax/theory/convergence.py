"""IAFL's convergence theorems, as functions of all clients' reward rates, and IAFL itself on quadratics.

The terms, bounds and limits of the theorems hold for M clients whose losses are L-smooth and mu-strongly convex. In
each round t = 1 .. T, a client takes tau local steps at the rate ``eta_t = 1 / (mu tau (t + a))``. The *induced* rate
``gamma' = (gamma (M - 1) + 1) / M`` is the share of updates, the client's own included, that a client averages. It lies
in [1/M, 1].

Source: IAFL, section 5, theorems 1 and 2, proposition 2, and sections D.1, D.3 and D.4. Three remarks:

- Theorem 2 is misprinted in the paper's section 5 (``(T + a) / (t + a)`` without its square, a sum over clients up to
  T, a product over l of factors in t). This module follows the proof in D.3. The terms at T bound the error of the
  model after round T.
- With rates below 1, ``C_T`` grows like ``T^2``, since ``sum_t (T + a)^2 / (t + a)^2`` does. So theorem 1's bound does
  not level off but grows in proportion to T: the theorem does not prove convergence, and does not give the final error.
- The closed form of D.4 (``recovery_limit``) is correct, but it is the limit of an upper bound on the sum in ``D_T``
  and ``E_T``. The sum itself tends to ``(1 - q) / q`` for every a (``recovery_weights``).

The proofs also assume that a client averages a uniform sample of all updates. The sample is not uniform, as it always
includes the client's own update: ``quadratic_errors`` shows the consequences.

``quadratic_errors`` runs IAFL on quadratics: it shows the propagation of errors between clients, and the effect of
model recovery. Client k has ``F_k(x) = ||x - c_k||^2 / 2``, so the optimum of the mean is ``cbar``, the mean of the
centres. Client k takes tau steps of gradient descent at the rate ``eta_t = 1 / (tau (t + a))``, which move its model by
``((1 - eta_t)^tau - 1) (theta_k - c_k)``. Only the drawn subsets and the recoveries are random.

If all rates are 1, all models are equal, as in FedAvg, and converge. If any rate is below 1 and there is no recovery,
the models diverge from each other. A client's reward always includes its own update, so the expected update is
``A (c - theta)`` with a matrix A that favours the diagonal. If A is invertible, the only fixed point is
``theta_k = c_k``, each client's own optimum. Models first approach ``cbar`` and then drift to ``c_k``, more slowly at
larger rates: the error falls, stays above 0, and grows again. Recovery pulls models back to the reference model; with
falling learning rates all errors then tend to 0.

Source: IAFL, Algorithm 1, Procedure 2 and theorems 1 and 2, on functions that are ours.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.aggregators import iafl_reference, iafl_subsets, mix
from fljax.core.names import plain
from fljax.core.trees import as_key
from fljax.core.values import floats_of


class Setting(NamedTuple):
    """The constants of the theorems.

    smoothness: L.
    convexity: mu, in (0, L].
    local_steps: tau.
    gradient: G, an upper bound on the root mean square of a stochastic gradient's norm.
    noise: mean over clients of the variance of a stochastic gradient (Sigma^2).
    heterogeneity: ``Gamma = F* - (1/M) sum_m F_m*``, at least 0.
    distance: ``E ||theta_1 - theta*||^2`` at the start.
    offset: a; None: the smallest that theorem 1 allows, ``4 L (tau + 1) / (mu tau)``.
    """

    smoothness: float | Array = 1.0
    convexity: float | Array = 1.0
    local_steps: int = 1
    gradient: float | Array = 1.0
    noise: float | Array = 0.0
    heterogeneity: float | Array = 0.0
    distance: float | Array = 1.0
    offset: float | Array | None = None


def induced_rates(rates: ArrayLike) -> Array:
    """``gamma' = (gamma (M - 1) + 1) / M`` for the rates gamma of all M clients, ``[..., M]``."""
    gamma = floats_of(rates)
    clients = gamma.shape[-1]
    return (gamma * (clients - 1) + 1) / clients


def smallest_offset(setting: Setting) -> Array:
    """``4 L (tau + 1) / (mu tau)``: the smallest a that theorem 1 allows."""
    steps = setting.local_steps
    return 4 * floats_of(setting.smoothness) * (steps + 1) / (plain(setting.convexity) * steps)


def learning_rates(setting: Setting, rounds: int) -> Array:
    """``eta_t = 1 / (mu tau (t + a))`` for t = 1 .. rounds."""
    return 1 / (floats_of(setting.convexity) * setting.local_steps * _times(setting, rounds))


def propagation_term(setting: Setting, induced: ArrayLike) -> Array:
    """Theorem 1's ``C_T`` for every T and client i.

    ``C_T = (H_T / M) sum_m sum_{t<=T} ((T + a) / (t + a))^2 (1 / gamma'_m,t + 1 / gamma'_i,t - 2)`` with ``H_T = (2 - 2
    mu eta_T) tau^3 G^2``. It is 0 if all rates are 1, and otherwise of the order of ``T^2``. It falls as any client's
    rate rises.

    Args:
      setting: the constants.
      induced: ``gamma'``, ``[rounds, M]``.

    Returns:
      ``[rounds, M]``.
    """
    inverse = 1 / _rounds_by_clients(induced)
    excess = inverse.mean(1, keepdims=True) + inverse - 2
    time = _times(setting, len(inverse))[:, None]
    return _scale(setting, len(inverse))[:, None] * time**2 * jnp.cumsum(excess / time**2, axis=0)


def recovery_terms(
    setting: Setting, induced: ArrayLike, reference: ArrayLike, recovery: ArrayLike
) -> tuple[Array, Array]:
    """Theorem 2's ``D_T`` and ``E_T`` for every T.

    ``E_T = H_T sum_{t<=T} ((T + a) / (t + a))^2 (1 / gamma'_i,t + 1 / gamma'_ref,t - 2) (1 - q)^(T - t + 1)``, and
    ``D_T`` is its mean over clients. Both stay bounded for q > 0 and are 0 for q = 1. Without recovery (q = 0) and with
    ``gamma'_ref = 1``, ``D_T + E_T = C_T``.

    Args:
      setting: the constants.
      induced: ``gamma'``, ``[rounds, M]``.
      reference: ``gamma'_ref``, ``[rounds]`` or a scalar.
      recovery: q in [0, 1].

    Returns:
      ``D`` ``[rounds]`` and ``E`` ``[rounds, M]``.
    """
    inverse = 1 / _rounds_by_clients(induced)
    rounds = len(inverse)
    of_reference = jnp.broadcast_to(1 / floats_of(reference, inverse.dtype), (rounds,))
    own = _scale(setting, rounds)[:, None] * _discounted(setting, inverse + of_reference[:, None] - 2, recovery)
    return own.mean(1), own


def recovery_weights(setting: Setting, rounds: int, recovery: ArrayLike) -> Array:
    """``sum_{t<=T} ((T + a) / (t + a))^2 (1 - q)^(T - t + 1)`` for T = 1 .. rounds: the total weight of past rounds.

    The weight tends to ``(1 - q) / q`` from above, and never exceeds ``recovery_limit``.
    """
    return _discounted(setting, jnp.ones((rounds, 1)), recovery)[:, 0]


def recovery_limit(recovery: ArrayLike, offset: ArrayLike) -> Array:
    """``sum_{l>=0} (l + 1 + a)^2 (1 - q)^(l + 1) = (1 - q) (a^2 q^2 + 2 a q - q + 2) / q^3`` for q in (0, 1].

    This is section D.4's bound on ``recovery_weights``. Proposition 2 uses it to bound ``E_T`` and ``D_T``.
    """
    q, a = floats_of(recovery), floats_of(offset)
    return (1 - q) * (a**2 * q**2 + 2 * a * q - q + 2) / q**3


def propagation_bound(setting: Setting, induced: ArrayLike) -> Array:
    """Theorem 1: ``E F(theta_i) - F* <= (L / (2 mu^2 tau^2)) (B + C_T) / (a + T)``, ``[rounds, M]``.

    ``B = 2 L tau (2 tau + 3) Gamma + 2 tau^3 G^2 + tau^2 Sigma^2 + (a + 1) mu^2 tau^2 ||theta_1 - theta*||^2``.

    Args:
      setting: the constants.
      induced: ``gamma'``, ``[rounds, M]``.
    """
    term = propagation_term(setting, induced)
    pace = floats_of(setting.convexity, term.dtype) * setting.local_steps
    time = _times(setting, len(term))
    start = (time[0]) * pace**2 * floats_of(setting.distance, term.dtype)
    return setting.smoothness / (2 * pace**2) * (_constant(setting) + start + term) / time[:, None]


def recovery_bound(setting: Setting, induced: ArrayLike, reference: ArrayLike, recovery: ArrayLike) -> Array:
    """Theorem 2's bound on ``E F(theta_i) - F*`` after T rounds, ``[rounds, M]``.

    ``(L/2) prod_{t<=T} (1 - 2 mu eta_t tau) ||theta_1 - theta*||^2 + (L/2) sum_{t<=T} eta_t^2 (Q + D_t + E_t)
    prod_{l>t} (1 - 2 mu eta_l tau)`` with ``Q = 2 L tau (2 tau + 3) Gamma + 2 tau^3 G^2 + tau^2 Sigma^2``. The bound
    tends to 0 for q > 0.

    Args: as for ``recovery_terms``.
    """
    common, own = recovery_terms(setting, induced, reference, recovery)
    eta = learning_rates(setting, len(common))
    push = eta[:, None] ** 2 * (_constant(setting) + common[:, None] + own)
    keep = 1 - 2 * setting.convexity * eta * setting.local_steps
    start = jnp.full(push.shape[1:], setting.distance, push.dtype)

    def after_round(distance: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        kept, pushed = step
        distance = kept * distance + pushed
        return distance, distance

    _, distance = jax.lax.scan(after_round, start, (keep, push))
    return setting.smoothness / 2 * distance


def _times(setting: Setting, rounds: int) -> Array:
    """``t + a``."""
    offset = smallest_offset(setting) if setting.offset is None else floats_of(setting.offset)
    return jnp.arange(1, rounds + 1, dtype=offset.dtype) + offset


def _scale(setting: Setting, rounds: int) -> Array:
    """``H_T``."""
    eta = learning_rates(setting, rounds)
    return (2 - 2 * setting.convexity * eta) * setting.local_steps**3 * jnp.square(plain(setting.gradient))


def _constant(setting: Setting) -> Array:
    """``Q``."""
    smooth, steps = setting.smoothness, setting.local_steps
    spread = 2 * smooth * steps * (2 * steps + 3) * floats_of(setting.heterogeneity)
    return spread + 2 * steps**3 * jnp.square(floats_of(setting.gradient)) + steps**2 * setting.noise


def _discounted(setting: Setting, excess: Array, recovery: ArrayLike) -> Array:
    """``sum_{t<=T} ((T + a) / (t + a))^2 excess_t (1 - q)^(T - t + 1)`` for every T, ``[rounds, columns]``."""
    time, keep = _times(setting, len(excess))[:, None], 1 - floats_of(recovery, excess.dtype)

    def another(total: Array, term: Array) -> tuple[Array, Array]:
        total = keep * (total + term)
        return total, total

    _, totals = jax.lax.scan(another, jnp.zeros_like(excess[0]), excess / time**2)
    return time**2 * totals


def _rounds_by_clients(induced: ArrayLike) -> Array:
    rates = floats_of(induced)
    if rates.ndim != 2:
        raise ValueError(f"expected induced rates of shape [rounds, clients], got {rates.shape}")
    return rates


class Errors(NamedTuple):
    """Squared distances to the optimum after every round.

    clients: ``||theta_k - cbar||^2``, ``[repetitions, rounds, M]``.
    reference: the same for the reference model, ``[repetitions, rounds]``.
    models: the clients' final models, ``[repetitions, M, d]``.
    """

    clients: Array
    reference: Array
    models: Array


def quadratic_errors(
    key: Array,
    centres: ArrayLike,
    rates: ArrayLike,
    *,
    rounds: int,
    repetitions: int = 1,
    recovery: ArrayLike = 0.0,
    reference: Literal["max", "median"] = "max",
    local_steps: int = 1,
    offset: ArrayLike = 8.0,
    start: ArrayLike = 0.0,
) -> Errors:
    """Runs IAFL on ``F_k(x) = ||x - c_k||^2 / 2`` several times, each with its own subsets and recoveries.

    In each round, every client replaces its model by the reference model with probability q, and sends its update of
    tau local steps. Its reward is the mean of its own update and the updates of ``ceil(gamma_k (M - 1))`` other
    clients, drawn anew in each round.

    Args:
      key: a key of ``jax.random``.
      centres: ``c_k``, ``[M, d]``, or ``[repetitions, M, d]``.
      rates: gamma of every client, ``[M]`` in [0, 1]. ``rates``, ``recovery`` and ``offset`` may be traced.
      rounds: T.
      repetitions: number of runs, computed side by side.
      recovery: q in [0, 1].
      reference: "max" or "median": the reference model has this statistic of the rates as its rate.
      local_steps: tau.
      offset: a in ``eta_t = 1 / (tau (t + a))``; theorem 1 requires ``4 (tau + 1) / tau``.
      start: the initial model of all clients, ``[d]`` or one number.

    Raises:
      ValueError: if the shapes of ``centres`` and ``rates`` do not agree, or ``reference`` is not a valid name.
    """
    c, gamma = floats_of(centres), floats_of(rates)
    if c.ndim not in (2, 3) or gamma.shape != (c.shape[-2],) or (c.ndim == 3 and len(c) != repetitions):
        raise ValueError(
            f"expected centres of shape [clients, d] or [repetitions, clients, d] and rates [clients], got {c.shape} "
            f"and {gamma.shape} with {repetitions} repetitions"
        )
    begin = jnp.broadcast_to(floats_of(start, c.dtype), c.shape[-1:])
    q, a = floats_of(recovery, c.dtype), floats_of(offset, c.dtype)

    def run(key: Array, c: Array) -> tuple[Array, Array, Array]:
        optimum = c.mean(0)

        def one_round(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            models, ref = state
            draw, recover = jax.random.split(jax.random.fold_in(key, t.astype(jnp.uint32)))
            recovered = jax.random.bernoulli(recover, q, (len(models), 1))
            models = jnp.where(recovered, ref[None], models)
            moves = -_reach(t, a, local_steps) * (models - c)
            models = models + mix(iafl_subsets(draw, gamma), moves)
            ref = ref + mix(iafl_reference(draw, gamma, rule=reference), moves)[0]
            return (models, ref), (_squared(models - optimum[None]), _squared(ref - optimum))

        initial = (jnp.broadcast_to(begin, c.shape), begin)
        (models, _), (errors, of_reference) = jax.lax.scan(one_round, initial, _rounds(rounds, c))
        return errors, of_reference, models

    by_run = jax.vmap(run, (0, 0 if c.ndim == 3 else None))
    return Errors(*by_run(jax.random.split(as_key(key), repetitions), c))


def expected_models(
    centres: ArrayLike,
    rates: ArrayLike,
    *,
    rounds: int,
    recovery: ArrayLike = 0.0,
    local_steps: int = 1,
    offset: ArrayLike = 8.0,
    start: ArrayLike = 0.0,
) -> Array:
    """``E theta_k`` after every round: the exact expectation of the models that ``quadratic_errors`` simulates.

    Updates are linear in the models, and subsets do not depend on the models. So the expectation obeys the same
    recursion with expected weights: ``1 / |S_k|`` for client k and ``(|S_k| - 1) / (|S_k| (M - 1))`` for each other
    client.

    Args: as for ``quadratic_errors``; ``centres`` are ``[M, d]``.

    Returns:
      ``[rounds, M, d]``.
    """
    c, gamma = floats_of(centres), floats_of(rates)
    matrix = expected_subsets(gamma)
    q, a = floats_of(recovery, c.dtype), floats_of(offset, c.dtype)
    begin = jnp.broadcast_to(floats_of(start, c.dtype), c.shape)

    def one_round(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], Array]:
        models, ref = state
        models = (1 - q) * models + q * ref[None]
        moves = -_reach(t, a, local_steps) * (models - c)
        models = models + mix(matrix, moves)
        return (models, ref + moves.mean(0)), models

    _, path = jax.lax.scan(one_round, (begin, begin[0]), _rounds(rounds, c))
    return path


def expected_subsets(rates: ArrayLike) -> Array:
    """The mean of ``fljax.aggregators.iafl_subsets`` over draws, ``[M, M]``, for rates ``[M]``."""
    gamma = floats_of(rates)
    clients = len(gamma)
    others = jnp.ceil(gamma * (clients - 1) - 1e-6 * jnp.maximum(1, gamma * (clients - 1)))
    others = jnp.clip(others, 0, clients - 1)[:, None]
    diagonal = jnp.eye(clients, dtype=gamma.dtype)
    return (diagonal + (1 - diagonal) * others / max(clients - 1, 1)) / (1 + others)


def _rounds(rounds: int, like: Array) -> Array:
    return jnp.arange(1, rounds + 1, dtype=like.dtype)


def _reach(t: Array, offset: Array, steps: int) -> Array:
    """The fraction of the distance to its centre that a client moves in round t."""
    return 1 - (1 - 1 / (steps * (t + offset))) ** steps


def _squared(difference: Array) -> Array:
    return jnp.sum(difference**2, axis=-1)
