"""IAFL on quadratics: the propagation of errors between clients, and the effect of model recovery.

Client k has ``F_k(x) = ||x - c_k||^2 / 2``, so the optimum of the mean is ``cbar``, the mean of the centres. Client k
takes tau steps of gradient descent at the rate ``eta_t = 1 / (tau (t + a))``, which move its model by
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

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.aggregators import iafl_reference, iafl_subsets, mix


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
    c, gamma = jnp.asarray(centres, float), jnp.asarray(rates, float)
    if c.ndim not in (2, 3) or gamma.shape != (c.shape[-2],) or (c.ndim == 3 and len(c) != repetitions):
        raise ValueError(
            f"expected centres of shape [clients, d] or [repetitions, clients, d] and rates [clients], got {c.shape} "
            f"and {gamma.shape} with {repetitions} repetitions"
        )
    begin = jnp.broadcast_to(jnp.asarray(start, c.dtype), c.shape[-1:])
    one = functools.partial(_run, rounds=rounds, reference=reference, local_steps=local_steps)
    axes = (0, 0 if c.ndim == 3 else None, None, None, None, None)
    numbers = (jnp.asarray(recovery, c.dtype), jnp.asarray(offset, c.dtype))
    return Errors(*jax.vmap(one, axes)(jax.random.split(key, repetitions), c, gamma, *numbers, begin))


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
    c, gamma = jnp.asarray(centres, float), jnp.asarray(rates, float)
    matrix = expected_subsets(gamma)
    q, a = jnp.asarray(recovery, c.dtype), jnp.asarray(offset, c.dtype)
    begin = jnp.broadcast_to(jnp.asarray(start, c.dtype), c.shape)

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
    gamma = jnp.asarray(rates, float)
    clients = len(gamma)
    others = jnp.ceil(gamma * (clients - 1) - 1e-6 * jnp.maximum(1, gamma * (clients - 1)))
    others = jnp.clip(others, 0, clients - 1)[:, None]
    own = jnp.eye(clients, dtype=gamma.dtype)
    return (own + (1 - own) * others / max(clients - 1, 1)) / (1 + others)


def _run(
    key: Array,
    c: Array,
    rates: Array,
    recovery: Array,
    offset: Array,
    begin: Array,
    *,
    rounds: int,
    reference: Literal["max", "median"],
    local_steps: int,
) -> tuple[Array, Array, Array]:
    optimum = c.mean(0)

    def one_round(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        models, ref = state
        draw, recover = jax.random.split(jax.random.fold_in(key, t.astype(jnp.uint32)))
        recovered = jax.random.bernoulli(recover, recovery, (len(models), 1))
        models = jnp.where(recovered, ref[None], models)
        moves = -_reach(t, offset, local_steps) * (models - c)
        models = models + mix(iafl_subsets(draw, rates), moves)
        ref = ref + mix(iafl_reference(draw, rates, rule=reference), moves)[0]
        return (models, ref), (_squared(models - optimum[None]), _squared(ref - optimum))

    initial = (jnp.broadcast_to(begin, c.shape), begin)
    (models, _), (errors, of_reference) = jax.lax.scan(one_round, initial, _rounds(rounds, c))
    return errors, of_reference, models


def _rounds(rounds: int, like: Array) -> Array:
    return jnp.arange(1, rounds + 1, dtype=like.dtype)


def _reach(t: Array, offset: Array, steps: int) -> Array:
    """The fraction of the distance to its centre that a client moves in round t."""
    return 1 - (1 - 1 / (steps * (t + offset))) ** steps


def _squared(difference: Array) -> Array:
    return jnp.sum(difference**2, axis=-1)
