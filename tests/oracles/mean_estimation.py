"""Two clients estimate means: INCFL's theory in NumPy, by formulas that share no code with fljax.

Client k draws thetahat_k ~ N(theta_k, gamma^2), theta_2 - theta_1 = 2 gamma_G, and its standalone model is
thetahat_k. On its own data ``F_k(w) - rho_k = (w - thetahat_k)^2``; it is incentivised iff ``(w - theta_k)^2
< (thetahat_k - theta_k)^2``, that is iff ``d (d + 2 (thetahat_k - theta_k)) < 0`` with ``d = w -
thetahat_k``.

Source: INCFL, appendices B.1 (two clients) and E (simulation); MaxFL, section 2.2.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr


def fedavg_ipr(gamma_global: float, gamma: float = 1.0) -> float:
    """Exact E[IPR] of the average ``w = (thetahat_1 + thetahat_2) / 2``: P(X Y < 0) of a bivariate normal.

    X = w - thetahat_1 and Y = w + thetahat_1 - 2 theta_1 have mean gamma_G, variances gamma^2/2 and 5
    gamma^2/2, and covariance -gamma^2/2; so Y given X = x is N(2 gamma_G - x, 2 gamma^2). Both clients are
    alike by symmetry.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    mean, sd = gamma_global, gamma / np.sqrt(2)

    def integral(low: float, high: float, sign: float) -> float:
        x = (high - low) / 2 * nodes + (high + low) / 2
        density = np.exp(-(((x - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
        opposite = ndtr(-sign * (2 * gamma_global - x) / (np.sqrt(2) * gamma))
        return float((high - low) / 2 * np.sum(weights * density * opposite))

    # Split at x = 0, where the event changes.
    low, high = min(mean - 10 * sd, 0.0), max(mean + 10 * sd, 0.0)
    return integral(low, 0.0, -1.0) + integral(0.0, high, 1.0)


def fedavg_bound(gamma_global: float, gamma: float = 1.0) -> float:
    """``2 exp(-gamma_G^2 / (5 gamma^2))``, the lemma's upper bound of FedAvg's E[IPR]."""
    return float(2 * np.exp(-(gamma_global**2) / (5 * gamma**2)))


def incfl_bound(gamma: float = 1.0) -> float:
    """``exp(-1 / gamma^2) / 16``, the theorem's lower bound of INCFL's E[IPR]."""
    return float(np.exp(-1 / gamma**2) / 16)


def log_pull(log_x: np.ndarray) -> np.ndarray:
    """``log g(x)`` at ``x = exp(log_x)``, with ``g(x) = q(x^2) x`` and ``q = sigma (1 - sigma)``.

    Half the slope of ``sigma(x^2)``: how strongly a client whose mean is at distance x pulls.
    """
    square = np.exp(2 * log_x)
    return log_x - square - 2 * np.log1p(np.exp(-square))


def threshold() -> float:
    """Half the distance of the local means up to which the average is a minimum: ``2 h^2 tanh(h^2 / 2) = 1``.

    It is also where g has its maximum. From about 1.0138 on there are minima near the local means as well.
    """
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if 2 * middle**2 * np.tanh(middle**2 / 2) > 1 else (middle, high)
    return (low + high) / 2


def log_distance(half: np.ndarray) -> np.ndarray:
    """``log x`` of the local minimum ``w = thetahat_1 + x`` nearest to thetahat_1, ``half`` = half the distance.

    Solves ``log g(x) = log g(2 half - x)`` by bisection on ``log x``: x itself shrinks like exp(-4 half^2),
    far below what ``thetahat_1 + x`` can hold. Up to ``threshold()`` the average is taken, ``x = half``.
    """
    half = np.asarray(half, np.float64)
    # g is largest at threshold(), so it exceeds the far client's pull there; towards 0 it vanishes.
    low = np.log(half) - 4 * half**2 - 10
    high = np.log(np.minimum(half, threshold()))
    # At x = half both sides are equal as well; start a little below.
    high = high - 1e-9
    for _ in range(80):
        middle = (low + high) / 2
        above = log_pull(middle) > log_pull(np.log(2 * half - np.exp(middle)))
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(half > threshold(), (low + high) / 2, np.log(half))


def incfl_ipr(
    gamma_global: float, gamma: float = 1.0, *, runs: int = 20000, seed: int = 0, naive: bool = False
) -> tuple[float, float]:
    """Monte-Carlo E[IPR] of INCFL at a local minimum, both minima being equally likely, and its standard error.

    ``naive=True`` forms ``w`` in floating point and compares the losses: for distant clients w rounds to
    thetahat_i, the strict comparison fails, and the theorem *seems* to be violated. The other way compares
    signs of the d-form.
    """
    rng = np.random.default_rng(seed)
    theta = np.array([0.0, 2 * gamma_global])
    error = gamma * rng.standard_normal((runs, 2))
    estimate = theta + error
    side = np.sign(estimate[:, 1] - estimate[:, 0])
    log_x = log_distance(np.abs(estimate[:, 1] - estimate[:, 0]) / 2)
    distance = np.abs(estimate[:, 1] - estimate[:, 0])
    count = np.zeros(runs)
    for near in (0, 1):
        toward = side if near == 0 else -side  # the direction from the near mean to the far one
        if naive:
            w = estimate[:, near] + toward * np.exp(log_x)
            count += np.sum((w[:, None] - theta) ** 2 < (estimate - theta) ** 2, axis=1)
            continue
        d_near, d_far = toward * np.exp(log_x), -toward * (distance - np.exp(log_x))
        # np.exp(log_x) may underflow to 0; the sign of d does not.
        count += toward * np.sign(d_near + 2 * error[:, near]) < 0
        count += -toward * np.sign(d_far + 2 * error[:, 1 - near]) < 0
    share = count / 4
    return float(share.mean()), float(share.std() / np.sqrt(runs))
