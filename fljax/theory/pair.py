"""Two clients estimate a mean each: the share that is better off with FedAvg's model, and with INCFL's.

The true means are ``theta_1`` and ``theta_2 = theta_1 + 2 gamma_global``. Client k knows its local mean
``thetahat_k ~ N(theta_k, gamma^2)``, which is also its standalone model. Its gap is ``(w - thetahat_k)^2``. Client k is
incentivised iff ``(w - theta_k)^2 < (thetahat_k - theta_k)^2``. The incentivised participation rate (IPR) is the share
of incentivised clients.

Lengths are plain numbers and cannot be rescaled, since the sigmoid is applied to squared lengths.

Source: "To federate or not to federate: incentivizing client participation in federated learning" (INCFL), section B.1
with its proofs, and section E. Deviation: a minimum's distance from a local mean is stored as a logarithm. The distance
falls like ``exp(-4 half_distance^2)``, so ``w`` itself soon rounds to the local mean. A simulation with the rounded w
would find "not better" and seem to refute the theorem.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, optimize
from scipy.special import ndtr, owens_t

from fljax.core.names import plain
from fljax.protocol import NumpyArray

COMPARISONS = ("signs", "losses")


class Estimate(NamedTuple):
    """A simulated IPR.

    mean: the mean over runs, in [0, 1].
    standard_error: the standard error of ``mean``.
    clients: ``[K]``, the share of runs in which each client is incentivised; its mean is ``mean``.
    """

    mean: float
    standard_error: float
    clients: NumpyArray


class LocalMinimum(NamedTuple):
    """A local minimum of INCFL's objective, ``w = thetahat_1 + distance`` towards client 2; so is its mirror image.

    log_distance: ``log(distance)``; accurate at any separation.
    distance: 0 if the distance is below the smallest float.
    is_average: whether the minimum is the average of the local means.
    """

    log_distance: NumpyArray
    distance: NumpyArray
    is_average: NumpyArray


def log_pull(log_distance: ArrayLike) -> NumpyArray:
    """``log g(x)`` at ``x = exp(log_distance)`` with ``g(x) = q(x^2) x``, half the slope of ``sigma(x^2)``."""
    square = np.exp(2 * np.asarray(plain(log_distance), np.float64))
    return log_distance - square - 2 * np.log1p(np.exp(-square))


def _steepness(distance: ArrayLike) -> NumpyArray:
    """``d log g(x) / d log x = 1 - 2 x^2 tanh(x^2 / 2)``."""
    square = np.square(distance)
    return 1 - 2 * square * np.tanh(square / 2)


def separation_point() -> float:
    """The largest half distance of the local means at which the average is a minimum: 1.0215806...

    It is the root of ``2 h^2 tanh(h^2 / 2) = 1`` (INCFL, lemma B.3, rounded there to 1.022). A client's pull is
    strongest at this distance.
    """
    return optimize.root_scalar(_steepness, bracket=(0.5, 2.0), xtol=1e-15).root


def average_is_minimum(half_distance: ArrayLike) -> NumpyArray:
    """Whether the average of two local means, ``2 half_distance`` apart, is a local minimum of INCFL's objective."""
    return np.asarray(plain(half_distance)) <= separation_point()


def local_minimum(half_distance: ArrayLike) -> LocalMinimum:
    """A local minimum of ``sigma((w - thetahat_1)^2) + sigma((w - thetahat_2)^2)``.

    Up to ``separation_point()`` the minimum is the average. Beyond this point the average is a maximum, and there are
    two minima, mirror images of each other, each next to a local mean: the root of ``g(x) = g(2 half_distance - x)``.
    (For half distances from 1.0138 to 1.0216 all three minima exist; the average is returned.)

    Args:
      half_distance: ``|thetahat_2 - thetahat_1| / 2``, any shape.

    Returns:
      Arrays of that shape. A half distance of 0 has ``log_distance = -inf``.

    Raises:
      ValueError: if a half distance is negative, infinite or NaN.
    """
    half = np.asarray(plain(half_distance), np.float64)
    if not np.all((half >= 0) & np.isfinite(half)):
        raise ValueError(f"expected finite half distances of at least 0, got {half_distance!r}")
    is_average = average_is_minimum(half)
    apart = np.where(is_average, 2.0, half)  # 2.0 is a placeholder that can be solved

    def surplus(log_x: NumpyArray) -> NumpyArray:
        return log_pull(log_x) - log_pull(np.log(2 * apart - np.exp(log_x)))

    def slope(log_x: NumpyArray) -> NumpyArray:
        x = np.exp(log_x)
        return _steepness(x) + x * _steepness(2 * apart - x) / (2 * apart - x)

    # The start is left of the root, since q <= 1/4 and the far client, nearer than 2 half, pulls more than at 2 half.
    # The surplus is increasing and concave up to the root, so Newton's steps do not overshoot.
    start = log_pull(np.log(2 * apart)) + np.log(4)
    root = optimize.newton(surplus, start, fprime=slope, maxiter=100)
    with np.errstate(divide="ignore"):
        log_distance = np.where(is_average, np.log(half), root)
    return LocalMinimum(log_distance, np.exp(log_distance), is_average)


def fedavg_ipr(gamma_global: ArrayLike, gamma: ArrayLike = 1.0) -> NumpyArray:
    """Exact E[IPR] of FedAvg's model, the average of both local means.

    ``Phi(sqrt(2) r) Phi(-sqrt(2) r) + 2 T(sqrt(2/5) r, 3)`` with ``r = gamma_global / gamma``, Phi the normal
    distribution function and T Owen's function; ``1/2 + arcsin(1/sqrt(5)) / pi`` at 0. Proof: client 1 is incentivised
    iff X Y < 0 with ``X = w - thetahat_1`` and ``Y = w + thetahat_1 - 2 theta_1``. X and Y are jointly normal, with
    means ``gamma_global`` and, in units of ``gamma^2``, variances 1/2 and 5/2 and covariance -1/2.

    Args:
      gamma_global: half the distance of the true means, any shape.
      gamma: standard deviation of a local mean.

    Raises:
      ValueError: if ``gamma_global`` is negative or ``gamma`` is not above 0.
    """
    check_spreads(gamma_global, gamma)
    ratio = np.divide(gamma_global, gamma)
    near = np.sqrt(2) * ratio
    return ndtr(near) * ndtr(-near) + 2 * owens_t(np.sqrt(0.4) * ratio, 3)


def fedavg_ipr_bound(gamma_global: ArrayLike, gamma: ArrayLike = 1.0) -> NumpyArray:
    """``2 exp(-gamma_global^2 / (5 gamma^2))``, an upper bound on FedAvg's E[IPR] (INCFL, lemma B.1).

    Arguments and errors: as ``fedavg_ipr``.
    """
    check_spreads(gamma_global, gamma)
    return 2 * np.exp(-np.square(np.divide(gamma_global, gamma)) / 5)


def incfl_ipr_bound(gamma: ArrayLike = 1.0) -> NumpyArray:
    """``exp(-1 / gamma^2) / 16``, a lower bound on INCFL's E[IPR] at any ``gamma_global`` (INCFL, theorem B.1).

    Raises:
      ValueError: if ``gamma``, the standard deviation of a local mean, is not above 0.
    """
    check_spreads(0.0, gamma)
    return np.exp(-1 / np.square(gamma)) / 16


def incfl_ipr(
    gamma_global: float, gamma: float = 1.0, *, runs: int = 20_000, seed: int = 0, compare: str = "signs"
) -> Estimate:
    """E[IPR] of INCFL's model by simulation: each local minimum (``local_minimum``) is equally likely.

    Args:
      gamma_global: half the distance of the true means.
      gamma: standard deviation of a local mean.
      runs: number of drawn pairs of local means.
      seed: seed for ``numpy.random.default_rng``.
      compare: the test for an incentivised client. With ``d = w - thetahat_k``, "signs" tests ``d (d + 2 (thetahat_k -
        theta_k)) < 0`` with the sign of d, which is always known. "losses" computes ``w`` and compares ``(w -
        theta_k)^2`` directly; it is wrong for ``gamma_global`` above about 3, where w rounds to a local mean.

    Raises:
      ValueError: if ``gamma_global`` is negative, ``gamma`` not above 0, ``runs`` below 2, or ``compare`` unknown.
    """
    check_spreads(gamma_global, gamma)
    check_runs(runs)
    if compare not in COMPARISONS:
        raise ValueError(f"expected a comparison, got {compare!r}; valid names are {', '.join(COMPARISONS)}")
    theta = np.array([0.0, 2.0 * gamma_global])
    error = gamma * np.random.default_rng(seed).standard_normal((runs, 2))
    local = theta + error
    apart = local[:, ::-1] - local  # [runs, 2]: from each client to the other
    minimum = local_minimum(np.abs(apart[:, 0]) / 2)
    x = minimum.distance[:, None]
    side = np.sign(apart)
    if compare == "losses":
        # Axes: run, client next to the minimum, compared client.
        w = (local + side * x)[:, :, None]
        better = (w - theta) ** 2 < (local - theta)[:, None, :] ** 2
        return estimate(better.mean(1))
    # A client's d points to the other client. Its length is x at the client's own minimum, else the rest of the way.
    own = x + 2 * side * error < 0
    other = np.abs(apart) - x + 2 * side * error < 0
    return estimate((own + other.astype(float)) / 2)


def incfl_ipr_exact(gamma_global: float, gamma: float = 1.0) -> float:
    """E[IPR] of INCFL's model by quadrature: the limit of ``incfl_ipr`` with many runs.

    ``D = thetahat_2 - thetahat_1`` determines the minimum next to client 1, at a distance x, and is independent of
    ``thetahat_1 + thetahat_2``. So, given D and its sign s, client 1 is incentivised with probability
    ``Phi((|D| - 2 s gamma_global - x) / (sqrt(2) gamma))`` and client 2 with
    ``Phi((x - 2 s gamma_global) / (sqrt(2) gamma))``; both are averaged over ``D ~ N(2 gamma_global, 2 gamma^2)``. By
    symmetry the other minimum gives the same.

    Args:
      gamma_global: half the distance of the true means.
      gamma: standard deviation of a local mean.

    Raises:
      ValueError: if ``gamma_global`` is negative or ``gamma`` is not above 0.
    """
    check_spreads(gamma_global, gamma)
    centre, spread = 2.0 * gamma_global, np.sqrt(2) * gamma

    def integrand(difference: NumpyArray) -> NumpyArray:
        x = local_minimum(np.abs(difference) / 2).distance
        shift = np.sign(difference) * centre
        both = ndtr((np.abs(difference) - shift - x) / spread) + ndtr((x - shift) / spread)
        density = np.exp(-np.square((difference - centre) / spread) / 2) / (np.sqrt(2 * np.pi) * spread)
        return density * both / 2

    # Integrate in pieces, as the minimum jumps at the separation point on either side of 0.
    jump = 2 * separation_point()
    edges = np.clip([-np.inf, -jump, 0, jump, np.inf], centre - 10 * spread, centre + 10 * spread)
    return float(sum(integrate.fixed_quad(integrand, a, b, n=200)[0] for a, b in pairwise(edges) if a < b))


def estimate(incentivised: NumpyArray) -> Estimate:
    """The estimate from ``[runs, K]``: 1 if a client is incentivised, else 0, or means over equally likely minima."""
    share = incentivised.mean(-1)
    return Estimate(float(share.mean()), float(share.std(ddof=1) / np.sqrt(len(share))), incentivised.mean(0))


def check_spreads(gamma_global: ArrayLike, gamma: ArrayLike) -> None:
    """Raises ValueError unless ``gamma_global`` is at least 0 and ``gamma`` above 0."""
    if not np.all(np.asarray(plain(gamma_global)) >= 0):
        raise ValueError(f"expected gamma_global of at least 0, got {gamma_global!r}")
    if not np.all(np.asarray(plain(gamma)) > 0):
        raise ValueError(f"expected gamma above 0, got {gamma!r}")


def check_runs(runs: int) -> None:
    """Raises ValueError if there are too few runs for a standard error."""
    if runs < 2:
        raise ValueError(f"expected at least 2 runs, got {runs!r}")
