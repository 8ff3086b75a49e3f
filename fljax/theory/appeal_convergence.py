"""INCFL's convergence theorem: its lemmas, its terms and its bound as functions of constants.

There are M clients with losses F_k whose gradients have a norm of at most ``L_c`` and which are ``L_s``-smooth. The
objective is ``F~(w) = (1/M) sum_k sigma(F_k(w) - rho_k)``, with the gradient ``(1/M) sum_k q_k grad F_k`` and ``q_k =
sigma'(F_k(w) - rho_k)``, at most 1/4. In each of T rounds m clients, drawn uniformly without replacement, take tau
local steps at the rate ``eta_l`` with stochastic gradients of variance ``sigma_g^2``, and the server adds ``eta_g sum_S
q_k Delta_k / (sum_S q_k + eps)``.

Source: INCFL, appendix C.1, theorem C.1, and its proof in appendix D (MaxFL, theorem 3.1). What differs, and why:

- q is ``sigma (1 - sigma)`` as in equation 4: (52) and (79) hold for it alone. (59) and algorithm 1 print sigma.
- (59) is wrong: the factor of ``grad F grad F^T`` is ``sigma'' = q (1 - 2 sigma)``, which changes its sign at a gap of
  0; |sigma''| is at most ``1 / (6 sqrt(3))``. (64) holds nevertheless, as 1/4 and sigma are larger than what is needed.
- (64) holds at a point. A step, as in (69), needs a constant: ``L = L_c^2 / (6 sqrt(3)) + L_s / 4``.
- Section C, (103) and (112) print ``L_c / 4`` for ``L_c^2 / 4``, which is too small for a large ``L_c``.
- (56) has a needless factor 2. Lemma D.1 is true, but ``kappa'^2`` exceeds ``L_c^2``, which bounds every gradient. So
  ``L_c`` stands here for it; beta, kappa, assumption C.3 and the conditions on ``eta_l`` are not needed.
- (91) is not 0 for tau = 1; the drift here is.
- (96) to (97) takes eps to be that of section C. The condition on ``c`` in ``appeal_terms`` holds for any eps.
- (103): 64 before ``kappa'^2`` should be 16. (104) lacks ``1 / L_c^2`` in its last term.
- (105) has a factor m too much: (107) and algorithm 1 do without.
- **(107) is wrong**: the divisor ``sum_S q_k + eps`` depends on the cohort, so the expected step is not along the
  gradient. With m < M and a fixed eps INCFL does not find a stationary point of its objective, and (50) and (131) are
  false. With m = 1 and eps = 0 it is FedAvg. The term ``normaliser`` bounds this, by the covariance over cohorts of
  the divisor and the mean update. It does not fall with T; a large eps makes it small, like ``1 / eps^2``.
- (107) also lost the factor 1/2 of (71) and a factor ``eta_l`` of the noise: (130) has ``sigma_g^2 L_s^2 / sqrt(T)``.
- (114), (124) and (126) divide by ``tau^2``, as ``tau grad F~_i`` should be subtracted. (131) has the right power.
- (127) to (128): the conditions give the coefficient -1/2 + 1/4 + 1/2, not -1/4. (128) to (129) is right.
- (130) lacks the factor ``1 / (M - 1)`` of (129), and has 80 for 80/3.

INCFL on losses whose constants are known: the squared gradients that ``fljax.theory.appeal_convergence`` bounds.

Client k has a point ``c_k`` and the pseudo-Huber loss ``F_k(w) = (L_c^2 / L_s) (sqrt(1 + (L_s / L_c)^2 ||w - c_k||^2) -
1)``. Its gradients have norms below ``L_c``, and the norm of its Hessian is at most ``L_s``; both constants are the
smallest. A stochastic gradient is the gradient plus normal noise.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.core.trees import as_key
from fljax.core.values import floats_of

# The largest q = sigma (1 - sigma), and the largest |sigma''|, at sigma = (1 +- 1/sqrt(3)) / 2.
LARGEST_WEIGHT = 1 / 4
LARGEST_CURVATURE = 1 / (6 * 3**0.5)


class AppealSetting(NamedTuple):
    """The constants of the theorem.

    clients: M.
    participants: m, the clients that train in a round; None: all.
    local_steps: tau.
    lipschitz: ``L_c``, the largest norm of a client's gradient.
    smoothness: ``L_s``.
    noise: ``sigma_g^2``, the variance of a stochastic gradient.
    excess: ``F~(w_0) - inf F~``; at most 1.
    eps: added to the sum of weights; None: m, as in the paper's proof for partial participation.
    """

    clients: int = 10
    participants: int | None = None
    local_steps: int = 1
    lipschitz: float | Array = 1.0
    smoothness: float | Array = 1.0
    noise: float | Array = 0.0
    excess: float | Array = 1.0
    eps: float | Array | None = None


class AppealTerms(NamedTuple):
    """The terms of the bound; their sum is ``appeal_bound``.

    start: of the distance to the infimum at the start. Falls like ``1 / sqrt(m tau T)`` at the rates of the theorem.
    drift: of local steps, which follow a client's own gradient. Like ``1 / T``; 0 for tau = 1.
    local_noise: the same of noise. Like ``sigma_g^2 / (tau T)``; 0 for tau = 1.
    noise: of noise in the mean update. Like ``sigma_g^2 / sqrt(m tau T)``.
    sampling: of the draw of clients. Like ``sqrt(tau) / sqrt(m T)``; 0 for m = M.
    normaliser: of the division by the cohort's sum of weights. Does not fall with T; 0 for m = M.
    """

    start: Array
    drift: Array
    local_noise: Array
    noise: Array
    sampling: Array
    normaliser: Array


def appeal_hessian(gap: ArrayLike, gradient: ArrayLike, hessian: ArrayLike) -> Array:
    """``sigma''(gap) grad F grad F^T + sigma'(gap) hess F``: the Hessian of ``sigma(F - rho)`` (lemma D.2, corrected).

    Args:
      gap: ``F - rho``, ``[...]``.
      gradient: ``[..., d]``.
      hessian: ``[..., d, d]``.

    Returns:
      ``[..., d, d]``.
    """
    slope, bend = (each[..., None, None] for each in _derivatives(gap))
    steep = floats_of(gradient)
    return bend * steep[..., :, None] * steep[..., None, :] + slope * floats_of(hessian)


def appeal_curvature(gap: ArrayLike, lipschitz: ArrayLike, smoothness: ArrayLike) -> Array:
    """``|sigma''(gap)| L_c^2 + sigma'(gap) L_s``: the norm of ``appeal_hessian`` at this gap is at most this."""
    slope, bend = _derivatives(gap)
    steep = jnp.square(floats_of(lipschitz))
    return jnp.abs(bend) * steep + slope * floats_of(smoothness)


def appeal_smoothness(lipschitz: ArrayLike, smoothness: ArrayLike) -> Array:
    """``L = L_c^2 / (6 sqrt(3)) + L_s / 4``: INCFL's objective is L-smooth (lemma D.2, corrected)."""
    steep = jnp.square(floats_of(lipschitz))
    return LARGEST_CURVATURE * steep + LARGEST_WEIGHT * floats_of(smoothness)


def appeal_dissimilarity(lipschitz: ArrayLike, beta: ArrayLike, kappa: ArrayLike) -> tuple[Array, Array]:
    """``beta'^2 = beta^2 / 8`` and ``kappa'^2 = (2 beta^2 L_c^2 + kappa^2) / 16`` (lemma D.1, for weights up to 1/4).

    If ``(1/M) sum_k ||grad F_k||^2 <= beta^2 ||grad F||^2 + kappa^2``, the same holds with these constants for the
    clients' terms of INCFL's objective. It says no more than the Lipschitz constant alone, by which the left side is at
    most ``L_c^2 / 16``: ``kappa'^2`` is larger.

    Args:
      lipschitz: ``L_c``.
      beta: ``beta^2``, at least 1.
      kappa: ``kappa^2``, at least 0.
    """
    steep, factor = jnp.square(floats_of(lipschitz)), floats_of(beta)
    most = LARGEST_WEIGHT**2
    return 2 * most * factor, most * (2 * factor * steep + floats_of(kappa))


def appeal_rates(setting: AppealSetting, rounds: ArrayLike) -> tuple[Array, Array]:
    """The rates of theorem C.1 for T rounds: ``eta_l = 1 / (sqrt(T) tau)`` and ``eta_g = sqrt(tau m)``."""
    time = floats_of(rounds)
    server = jnp.sqrt(jnp.asarray(setting.local_steps * participants_of(setting), time.dtype))
    return 1 / (jnp.sqrt(time) * setting.local_steps), server


def appeal_rounds(setting: AppealSetting) -> Array:
    """The smallest T ("sufficiently large") from which ``appeal_bound`` is finite at the rates of theorem C.1."""
    return setting.local_steps * participants_of(setting) / jnp.square(_longest_step(setting))


def appeal_terms(
    setting: AppealSetting, rounds: ArrayLike, local: ArrayLike | None = None, server: ArrayLike | None = None
) -> AppealTerms:
    """The terms of the bound on ``(1/T) sum_t E ||grad F~(w_t)||^2``, and so on the least of them.

    With ``c = tau eta_l eta_g``, ``e = eps / m``, ``a = 1/4 + e``, ``f = (M - m) / (m (M - 1))``, L of
    ``appeal_smoothness``, and k = 2 for m = M, else 4:

    - start: ``k (a / c) (F~(w_0) - inf F~) / T``
    - drift: ``(k a / (96 e)) L_s^2 eta_l^2 (tau - 1) (2 tau - 1) L_c^2``
    - local_noise: ``(k a / (32 e)) L_s^2 eta_l^2 (tau - 1) sigma_g^2``
    - noise: ``(k a c / (16 e^2)) L sigma_g^2 / (m tau)``
    - sampling: ``(k a c / (16 e^2)) L L_c^2 f``
    - normaliser: ``(k a / (1024 e^3)) L_c^2 f^2``

    They bound that mean if ``c <= e^2 / (2 L a)``; otherwise ``appeal_bound`` is infinite, but the terms are given.

    Args:
      setting: the constants.
      rounds: T, any shape.
      local: ``eta_l``; None: that of ``appeal_rates``. Shapes broadcast.
      server: ``eta_g``; the same.

    Raises:
      ValueError: if m is not from 1 to M.
    """
    time = floats_of(rounds)
    few, many, steps = participants_of(setting), setting.clients, setting.local_steps
    eta, pace = _paces(setting, time, local, server)
    step = setting.local_steps * eta * pace
    spread = (many - few) / (few * max(many - 1, 1))
    factor = 2 if few == many else 4
    steep, smooth = jnp.square(floats_of(setting.lipschitz, time.dtype)), floats_of(setting.smoothness, time.dtype)
    noise = floats_of(setting.noise, time.dtype)
    least = _least_share(setting)
    sizes = LARGEST_WEIGHT + least  # the largest divisor by m
    ratio, most = sizes / least, LARGEST_WEIGHT**2
    away = factor * ratio * most * jnp.square(smooth * eta) * (steps - 1)
    second = factor * ratio / least * most * step * appeal_smoothness(setting.lipschitz, setting.smoothness)
    terms = (
        factor * sizes / step * floats_of(setting.excess, time.dtype) / time,
        away * (2 * steps - 1) * steep / 6,
        away * noise / 2,
        second * noise / (few * steps),
        second * steep * spread,
        factor * ratio * jnp.square(most * spread / least) * steep / 4,
    )
    return AppealTerms(*jnp.broadcast_arrays(*terms))


def appeal_bound(
    setting: AppealSetting, rounds: ArrayLike, local: ArrayLike | None = None, server: ArrayLike | None = None
) -> Array:
    """The sum of ``appeal_terms``: a bound on ``(1/T) sum_{t<T} E ||grad F~(w_t)||^2`` (theorem C.1, corrected).

    Infinite where steps are so long that the proof says nothing: with the default eps of ``fljax.algorithms.incfl``,
    1e-8, everywhere. Args and errors: as for ``appeal_terms``.
    """
    total = sum(appeal_terms(setting, rounds, local, server), jnp.zeros(()))
    eta, pace = _paces(setting, floats_of(rounds), local, server)
    return jnp.where(setting.local_steps * eta * pace <= _longest_step(setting), total, jnp.inf)


def participants_of(setting: AppealSetting) -> int:
    """m. Raises a ValueError if it is not from 1 to M."""
    few = setting.clients if setting.participants is None else setting.participants
    if not 1 <= few <= setting.clients:
        raise ValueError(f"expected participants from 1 to {setting.clients}, got {few}")
    return few


def eps_of(setting: AppealSetting) -> Array:
    """What the server adds to the sum of weights."""
    return jnp.asarray(participants_of(setting) if setting.eps is None else setting.eps, float)


def _derivatives(gap: ArrayLike) -> tuple[Array, Array]:
    """``sigma'`` and ``sigma''``; the difference ``1 - 2 sigma`` is taken without cancellation."""
    z = floats_of(gap)
    slope = jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)
    return slope, -slope * jnp.tanh(z / 2)


def _least_share(setting: AppealSetting) -> Array:
    """e."""
    return eps_of(setting) / participants_of(setting)


def _longest_step(setting: AppealSetting) -> Array:
    """The largest c of the theorem, ``e^2 / (2 L a)``: then ``L (c / e)^2 <= (c / a) / 2``."""
    least = _least_share(setting)
    smooth = appeal_smoothness(setting.lipschitz, setting.smoothness)
    return jnp.square(least) / (2 * smooth * (LARGEST_WEIGHT + least))


def _paces(
    setting: AppealSetting, time: Array, local: ArrayLike | None, server: ArrayLike | None
) -> tuple[Array, Array]:
    """``eta_l`` and ``eta_g``; their product with tau is c."""
    eta, pace = appeal_rates(setting, time)
    eta = eta if local is None else floats_of(local, time.dtype)
    return eta, pace if server is None else floats_of(server, time.dtype)


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
    steep, smooth = floats_of(lipschitz), floats_of(smoothness)
    model, point = jnp.broadcast_arrays(floats_of(w), floats_of(centre))
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
    points, rho = floats_of(centres), floats_of(thresholds)
    if points.ndim != 2 or len(points) != setting.clients or rho.shape != points.shape[:1]:
        raise ValueError(
            f"expected centres [clients, d] and thresholds [clients] of {setting.clients} clients, got {points.shape} "
            f"and {rho.shape}"
        )
    eta, pace = _paces(setting, floats_of(rounds), local, server)
    few, eps = participants_of(setting), eps_of(setting)
    everybody = jnp.ones(len(points), bool)
    deviation = jnp.sqrt(floats_of(setting.noise, points.dtype) / points.shape[1])

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
        begin = jnp.broadcast_to(floats_of(start, points.dtype), points.shape[1:])
        return jax.lax.scan(one_round, begin, jax.random.split(run_key, rounds))[1]

    return jax.vmap(one_run)(jax.random.split(as_key(key), repetitions))
