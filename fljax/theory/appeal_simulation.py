"""INCFL on losses whose constants are known: the squared gradients that ``fljax.theory.appeal_convergence`` bounds.

Client k has a point ``c_k`` and the pseudo-Huber loss ``F_k(w) = (L_c^2 / L_s) (sqrt(1 + (L_s / L_c)^2 ||w - c_k||^2) -
1)``. Its gradients have norms below ``L_c``, and the norm of its Hessian is at most ``L_s``; both constants are the
smallest. A stochastic gradient is the gradient plus normal noise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.core.labels import plain
from fljax.core.trees import as_key
from fljax.theory.appeal_convergence import AppealSetting, appeal_rates, eps_of, participants_of


def pseudo_huber(w: ArrayLike, centre: ArrayLike, lipschitz: ArrayLike, smoothness: ArrayLike) -> Array:
    """``(L_c^2 / L_s) (sqrt(1 + (L_s / L_c)^2 ||w - c||^2) - 1)``: quadratic near c, linear far away.

    Args:
      w: models, ``[..., d]``.
      centre: c, ``[..., d]``.
      lipschitz: ``L_c``, above 0.
      smoothness: ``L_s``, above 0.

    Returns:
      ``[...]``.
    """
    steep, smooth = jnp.asarray(plain(lipschitz), float), jnp.asarray(plain(smoothness), float)
    model, point = jnp.broadcast_arrays(jnp.asarray(plain(w), float), jnp.asarray(plain(centre), float))
    square = jnp.sum(jnp.square(model - point), -1)
    # sqrt(1 + x) - 1 = x / (sqrt(1 + x) + 1), without cancellation.
    return smooth * square / (jnp.sqrt(1 + jnp.square(smooth / steep) * square) + 1)


def appeal_objective(w: Array, centres: Array, thresholds: Array, setting: AppealSetting) -> Array:
    """``F~(w) = (1/M) sum_k sigma(F_k(w) - rho_k)`` for pseudo-Huber losses.

    Args:
      w: ``[d]``.
      centres: ``c``, ``[M, d]``.
      thresholds: ``rho``, ``[M]``.
      setting: the constants, of which ``lipschitz`` and ``smoothness`` count.
    """
    losses = pseudo_huber(w, centres, setting.lipschitz, setting.smoothness)
    return jax.nn.sigmoid(losses - thresholds).mean()


def appeal_gradients(
    key: Array,
    centres: ArrayLike,
    thresholds: ArrayLike,
    *,
    setting: AppealSetting,
    rounds: int,
    repetitions: int = 1,
    start: ArrayLike = 0.0,
    local: ArrayLike | None = None,
    server: ArrayLike | None = None,
) -> Array:
    """``||grad F~(w_t)||^2`` before each round t of INCFL, whose mean over rounds ``appeal_bound`` bounds.

    A stochastic gradient is ``grad F_k + sigma_g z / sqrt(d)`` with standard normal z.

    Args:
      key: a key of ``jax.random``.
      centres: ``c``, ``[M, d]``.
      thresholds: ``rho``, ``[M]``.
      setting: the constants; M is its ``clients``, and ``excess`` is not used.
      rounds: T.
      repetitions: independent runs.
      start: ``w_0``, ``[d]`` or a scalar.
      local: ``eta_l``; None: that of ``appeal_rates``.
      server: ``eta_g``; the same.

    Returns:
      ``[repetitions, rounds]``.

    Raises:
      ValueError: if the shapes do not agree.
    """
    points, rho = jnp.asarray(plain(centres), float), jnp.asarray(plain(thresholds), float)
    if points.ndim != 2 or len(points) != setting.clients or rho.shape != points.shape[:1]:
        raise ValueError(
            f"expected centres [clients, d] and thresholds [clients] of {setting.clients} clients, got {points.shape} "
            f"and {rho.shape}"
        )
    usual = appeal_rates(setting, rounds)
    eta, pace = (
        mine if given is None else jnp.asarray(plain(given), float)
        for mine, given in zip(usual, (local, server), strict=True)
    )
    few, eps = participants_of(setting), eps_of(setting)
    everybody = jnp.ones(len(points), bool)
    deviation = jnp.sqrt(jnp.asarray(plain(setting.noise), points.dtype) / points.shape[1])

    def loss(w: Array, centre: Array) -> Array:
        return pseudo_huber(w, centre, setting.lipschitz, setting.smoothness)

    slope = jax.vmap(jax.grad(loss))
    gradient = jax.grad(lambda w: appeal_objective(w, points, rho, setting))

    def one_round(w: Array, round_key: Array) -> tuple[Array, Array]:
        draw, noise = jax.random.split(round_key)
        chosen = everybody if few == len(points) else jax.random.permutation(draw, len(points)) < few
        gap = loss(w[None], points) - rho
        weight = jnp.where(chosen, jax.nn.sigmoid(gap) * jax.nn.sigmoid(-gap), 0)

        def local_step(models: Array, step_key: Array) -> tuple[Array, None]:
            added = deviation * jax.random.normal(step_key, models.shape, models.dtype)
            return models - eta * (slope(models, points) + added), None

        begin = jnp.broadcast_to(w, points.shape)
        models, _ = jax.lax.scan(local_step, begin, jax.random.split(noise, setting.local_steps))
        after = w + pace * (weight @ (models - begin)) / (weight.sum() + eps)
        return after, jnp.sum(jnp.square(gradient(w)))

    def one_run(run_key: Array) -> Array:
        begin = jnp.broadcast_to(jnp.asarray(plain(start), points.dtype), points.shape[1:])
        return jax.lax.scan(one_round, begin, jax.random.split(run_key, rounds))[1]

    return jax.vmap(one_run)(jax.random.split(as_key(key), repetitions))
