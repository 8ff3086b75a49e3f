"""K clients estimate a mean each: objectives, their minima, and the clients that are better off at a minimum.

The setting is that of ``fljax.theory.pair`` with K clients: local means ``thetahat_k``, a model w, gaps ``(w -
thetahat_k)^2``, and the objective ``(1/K) sum_k h(gap_k)`` with a surrogate h. INCFL's surrogate is "sigmoid".

Source: INCFL, sections B.1 (lemma B.2: convex surrogates), B.2 (three clients) and C with figure 6 (server rate).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.special import expit

from fljax.aggregators import incfl_weights
from fljax.core.names import plain
from fljax.protocol import NumpyArray
from fljax.theory.pair import Estimate, check_runs, check_spreads, estimate, log_pull

SURROGATES = {
    "sigmoid": expit,
    "softplus": lambda gap: np.logaddexp(0, gap),
    "relu": lambda gap: np.maximum(gap, 0),
    "hinge": lambda gap: np.maximum(1 + gap, 0),
    # The slope is constant above 20, as in fljax.aggregators.incfl_weights.
    "exp": lambda gap: np.exp(np.minimum(gap, 20)) * (1 + np.maximum(gap - 20, 0)),
}
STEP = 0.02  # spacing of the grid that brackets sign changes of the slope
TIE = 1e-9  # objectives that differ by less count as equal


class Minima(NamedTuple):
    """All local minima of INCFL's objective, the lowest first; ``w = thetahat[client] + side exp(log_distance)``.

    w: ``[m]``; a minimum very close to a local mean is rounded to it.
    objective: ``[m]``, in [1/2, 1].
    client: ``[m]``, the client with the nearest local mean.
    side: ``[m]``, the direction from that local mean: 1, -1, or 0 for the local mean itself.
    log_distance: ``[m]``, accurate at any separation; -inf for the local mean itself.
    """

    w: NumpyArray
    objective: NumpyArray
    client: NumpyArray
    side: NumpyArray
    log_distance: NumpyArray


class MeanEstimation(NamedTuple):
    """Simulated IPRs of FedAvg's and INCFL's models, on the same local means."""

    fedavg: Estimate
    incfl: Estimate


def objective(w: ArrayLike, local_means: ArrayLike, *, surrogate: str = "sigmoid") -> NumpyArray:
    """``(1/K) sum_k h((w - thetahat_k)^2)``.

    Args:
      w: models, any shape.
      local_means: ``[K]``.
      surrogate: h: "sigmoid", "softplus", "relu", "hinge" or "exp"; ``fljax.aggregators.incfl_weights`` gives its
        derivative.

    Returns:
      An array of the shape of ``w``.

    Raises:
      ValueError: if ``surrogate`` is not a valid name.
    """
    if surrogate not in SURROGATES:
        raise ValueError(f"expected a surrogate, got {surrogate!r}; valid names are {', '.join(SURROGATES)}")
    gap = np.square(np.asarray(plain(w), np.float64)[..., None] - np.asarray(plain(local_means), np.float64))
    return SURROGATES[surrogate](gap).mean(-1)


def surrogate_minimum(local_means: ArrayLike, *, surrogate: str) -> float:
    """A global minimiser of the objective; the average for two clients and a convex surrogate (INCFL, lemma B.2).

    With "relu" and "hinge" the minimiser is FedAvg's model, the average, for any number of clients, as no gap is
    negative here.

    Args:
      local_means: ``[K]``.
      surrogate: "softplus", "relu", "hinge" and "exp" have one minimum, the root of ``sum_k q_k (w - thetahat_k)`` with
        q from ``fljax.aggregators.incfl_weights`` (in JAX's precision). "sigmoid" may have several global minima (see
        ``local_minima``); the one with the smallest w is returned.

    Raises:
      ValueError: if ``surrogate`` is not a valid name, or a local mean is not finite.
    """
    means = _means(local_means)
    if surrogate == "sigmoid":
        minima = local_minima(means)
        return float(minima.w[minima.objective <= minima.objective[0] + TIE].min())

    def slope(w: float) -> float:
        d = w - means
        return float(np.sum(np.asarray(incfl_weights(jnp.asarray(d**2), surrogate=surrogate), np.float64) * d))

    low, high = means.min(), means.max()
    slope(low)  # raises the error for an unknown surrogate
    return optimize.root_scalar(slope, bracket=(low, high)).root if low < high else float(low)


def local_minima(local_means: ArrayLike) -> Minima:
    """All local minima of INCFL's objective ``(1/K) sum_k sigma((w - thetahat_k)^2)``.

    All minima lie between the smallest and the largest local mean. A grid finds the sign changes of the slope, and
    Brent's method refines each. Minima next to a local mean are searched on a logarithmic scale, since their distance
    from it may be smaller than any float. The search may miss a minimum and a maximum that are less than 0.02 apart.

    Args:
      local_means: ``[K]``. The time grows with their range.

    Raises:
      ValueError: if there is no local mean, or one is not finite.
    """
    all_means = _means(local_means)
    order = np.argsort(all_means, kind="stable")
    # Merge local means that differ only by rounding.
    starts = np.flatnonzero(np.diff(all_means[order], prepend=-np.inf) > 8 * np.spacing(np.abs(all_means).max()))
    first, count = order[starts], np.diff(starts, append=len(all_means))
    means = all_means[first]
    minima: list[tuple[int, float, float]] = []  # (index in means, side, log distance)

    def slope(w: NumpyArray) -> NumpyArray:
        d = w[..., None] - means
        with np.errstate(divide="ignore"):
            return _signed_sum(np.sign(d), log_pull(np.log(np.abs(d))) + np.log(count))[0]

    def slope_beside(log_x: float, place: int, side: float) -> float:
        d = means[place] - means + side * np.exp(log_x)
        d[place] = side  # only the sign is used: the difference itself may underflow
        with np.errstate(divide="ignore"):
            log_distance = np.log(np.abs(d))
        log_distance[place] = log_x
        return float(_signed_sum(np.sign(d), log_pull(log_distance) + np.log(count))[0])

    # The slope at each local mean is due to the other clients alone.
    apart = means[:, None] - means
    with np.errstate(divide="ignore"):
        at_mean, log_size = _signed_sum(np.sign(apart), log_pull(np.log(np.abs(apart))) + np.log(count))
    margin = np.minimum(1e-3, np.diff(means) / 4)
    for place, (left, right) in enumerate(pairwise(means)):
        edge = margin[place]
        grid = np.linspace(left + edge, right - edge, int((right - left) / STEP) + 3)
        sign = slope(grid)
        for j in np.flatnonzero((sign[:-1] < 0) & (sign[1:] >= 0)):
            w = optimize.root_scalar(lambda w: slope(np.asarray(w)), bracket=(grid[j], grid[j + 1]), xtol=1e-15).root
            near = int(np.argmin(np.abs(w - means)))
            minima.append((near, np.sign(w - means[near]), np.log(np.abs(w - means[near]))))
        # |g'| <= 1/4, so close to a local mean the slope has the same sign as at the local mean.
        for mean, side, edge_sign in ((place, 1.0, sign[0]), (place + 1, -1.0, sign[-1])):
            if side * at_mean[mean] < 0 < side * edge_sign:
                low = min(log_size[mean] + np.log(4 / len(all_means)) - 1, np.log(edge) - 1)
                high = min(low + np.log(len(all_means)) + 2, np.log(edge))  # suffices if the other means are far away
                if side * slope_beside(high, mean, side) < 0:
                    high = np.log(edge)
                root = optimize.root_scalar(slope_beside, args=(mean, side), bracket=(low, high), xtol=1e-12).root
                minima.append((mean, side, root))
    for mean in np.flatnonzero(at_mean == 0):
        inside = 0 < mean < len(means) - 1
        e = min(margin[mean - 1], margin[mean]) if inside else 0.0
        if not inside or (slope(means[mean] - e) < 0 < slope(means[mean] + e)):
            minima.append((int(mean), 0.0, -np.inf))
    place, side, log_distance = (np.array(column) for column in zip(*minima, strict=True))
    w = means[place] + side * np.exp(log_distance)
    height = objective(w, all_means)
    order = np.lexsort((w, height))
    return Minima(w[order], height[order], first[place][order], side[order], log_distance[order])


def mean_estimation(true_means: ArrayLike, gamma: float = 1.0, *, runs: int = 1000, seed: int = 0) -> MeanEstimation:
    """IPRs of FedAvg's and INCFL's model by simulation, for any number of clients.

    FedAvg's model is the average of the local means. INCFL's model is the lowest of its minima. Minima whose objectives
    agree to 1e-9 (those next to the local means of clients that are far apart) are equally likely.

    Args:
      true_means: ``theta``, ``[K]``.
      gamma: standard deviation of a local mean.
      runs: number of draws of the local means; each takes some milliseconds.
      seed: seed for ``numpy.random.default_rng``.

    Raises:
      ValueError: if a true mean is not finite, ``gamma`` is not above 0, or ``runs`` is below 2.
    """
    theta = _means(true_means)
    check_spreads(0.0, gamma)
    check_runs(runs)
    error = gamma * np.random.default_rng(seed).standard_normal((runs, len(theta)))
    local = theta + error
    average = local.mean(-1, keepdims=True)
    fedavg = (average - theta) ** 2 < error**2
    incfl = np.stack([_incentivised(means, wrong) for means, wrong in zip(local, error, strict=True)])
    return MeanEstimation(estimate(fedavg), estimate(incfl))


def effective_server_rate(
    gap: ArrayLike, *, server_lr: float = 1.0, eps: float = 1e-8, surrogate: str = "sigmoid"
) -> NumpyArray:
    """``server_lr / (sum_k q_k + eps)``, the step size of INCFL's server; large where the objective is flat (figure 6).

    Args:
      gap: ``[..., K]``, each client's loss minus its threshold; here ``(w - thetahat_k)^2``.
      server_lr: the paper's eta_g.
      eps: limits the rate to ``server_lr / eps``, its value where all weights vanish.
      surrogate: see ``fljax.aggregators.incfl_weights``, which computes q in JAX's precision.

    Returns:
      ``[...]``.

    Raises:
      ValueError: if ``surrogate`` is not a valid name.
    """
    weights = incfl_weights(jnp.asarray(plain(gap), float), surrogate=surrogate)
    return server_lr / (np.asarray(weights, np.float64).sum(-1) + eps)


def _incentivised(local_means: NumpyArray, error: NumpyArray) -> NumpyArray:
    """``[K]``: the share of INCFL's lowest minima at which each client is incentivised."""
    minima = local_minima(local_means)
    lowest = minima.objective <= minima.objective[0] + TIE
    apart = local_means[minima.client[lowest]][:, None] - local_means
    side = minima.side[lowest][:, None]
    d = apart + side * np.exp(minima.log_distance[lowest])[:, None]
    # A client is incentivised if ``d (d + 2 error) < 0`` with ``d = w - thetahat_k``; the first d enters by its sign.
    sign = np.where(apart == 0, side, np.sign(d))
    return (sign * (d + 2 * error) < 0).mean(0)


def _signed_sum(sign: NumpyArray, log_size: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """``sum sign exp(log_size)`` over the last axis, divided by its largest term, and the log of its size."""
    largest = np.maximum(log_size.max(-1, keepdims=True), np.finfo(float).min)  # all are -inf where all signs are 0
    # The division preserves the sign even if every term is below the smallest float.
    total = (sign * np.exp(log_size - largest)).sum(-1)
    with np.errstate(divide="ignore"):
        return total, largest[..., 0] + np.log(np.abs(total))


def _means(values: ArrayLike) -> NumpyArray:
    means = np.asarray(plain(values), np.float64)
    if means.ndim != 1 or not means.size or not np.all(np.isfinite(means)):
        raise ValueError(f"expected a list of finite means, one for each client, got {values!r}")
    return means
