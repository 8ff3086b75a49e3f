"""Clients in two clusters estimate a mean each: alone, all together, or with their own cluster.

Client m has ``N_m`` samples of ``N(theta_m, s^2)`` and estimates ``theta_m``. The true means are drawn independently,
from ``N(b_1, v)`` in the first cluster (``M_1`` clients) and ``N(b_2, v)`` in the second (``M_2``), M clients in all.
So v is the variance within a cluster, and ``b_1 - b_2`` is the difference between the clusters. An estimate t has the
error ``E (t - theta_m)^2``. It is a weighted mean ``sum_j a_j zbar_j`` of the clients' averages ``zbar_j``: with
``a_m = 1`` (local), ``a_j = N_j / sum_j N_j`` (federated), or the same over m's cluster alone.

Given ``theta_m`` and a flat prior on the b's, ``theta_j ~ N(theta_m, 2v)`` in m's own cluster. In the other cluster the
mean is shifted by the difference of the b's. The ``theta_j`` are correlated, as all depend on m's deviation from b.
Hence the term ``(1 - a_m)^2 v`` below.

Lengths are plain numbers; variances and errors are squares of lengths.

Source: IP-FL, section 3 (equations 3 to 6, derived anew) and, for the grouping of clients, proposition 1 and its proof.
Note: if the ``theta_j`` were independent given ``theta_m``, ``2 v sum_{j != m} a_j^2`` would replace both terms in v.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fljax.core.names import plain
from fljax.protocol import NumpyArray


class MixtureErrors(NamedTuple):
    """Squared errors of the three estimates: expected errors by client, or simulated errors by run.

    local: errors of a client's own average.
    federated: errors of the mean over all samples.
    cluster: errors of the mean over the samples of the client's cluster.
    """

    local: NumpyArray
    federated: NumpyArray
    cluster: NumpyArray


class Reassignment(NamedTuple):
    """The result of ``reassign``: the final clusters and centroids.

    membership: ``[M]``, the cluster of every client.
    centroids: ``[C, d]``, the means of the clusters' members; NaN for a cluster that never had a member.
    errors: ``[steps]``, the total squared distance to the centroids before the first step and after each step. Strictly
      decreasing.
    """

    membership: NumpyArray
    centroids: NumpyArray
    errors: NumpyArray


def mixture_errors(
    sizes: ArrayLike, membership: ArrayLike, *, within_variance: float, difference: float, noise_variance: float
) -> MixtureErrors:
    """Expected squared errors of every client, for clients of any sizes.

    ``e_loc = s^2 / N_m`` and, with ``a_j = N_j / sum_j N_j``, ``e_fed = (1 - a_m)^2 v + v sum_{j != m} a_j^2 + (sum_{j
    elsewhere} a_j)^2 (b_1 - b_2)^2 + s^2 / sum_j N_j``, where "elsewhere" is the other cluster. ``e_clu`` is the same
    over m's own cluster, without the term in ``b_1 - b_2``.

    Args:
      sizes: ``N``, ``[M]``, number of samples of every client; above 0.
      membership: ``[M]``, 0 or 1: the cluster of every client.
      within_variance: v.
      difference: ``b_1 - b_2``.
      noise_variance: ``s^2``, of one sample.

    Returns:
      Arrays ``[M]``.

    Raises:
      ValueError: if a size is not above 0, a cluster is neither 0 nor 1, or a variance is negative.

    Source: IP-FL, equations 4 and 5.
    """
    n, group = _clients(sizes, membership, within_variance, noise_variance)
    together = group[:, None] == group  # [m, j]
    everybody = n / n.sum()
    elsewhere = np.where(together, 0, everybody).sum(-1)
    cluster_sizes = np.where(together, n, 0)
    cluster = cluster_sizes / cluster_sizes.sum(-1, keepdims=True)

    def pooled(shares: NumpyArray, samples: NumpyArray) -> NumpyArray:
        mine = np.diagonal(shares)
        spread = (1 - mine) ** 2 + (shares**2).sum(-1) - mine**2
        return within_variance * spread + noise_variance / samples

    return MixtureErrors(
        local=noise_variance / n,
        federated=pooled(np.broadcast_to(everybody, together.shape), n.sum()) + (elsewhere * difference) ** 2,
        cluster=pooled(cluster, cluster_sizes.sum(-1)),
    )


def coalition_errors(
    sizes: ArrayLike, members: ArrayLike, *, within_variance: float, noise_variance: float
) -> NumpyArray:
    """Expected squared errors of coalitions of clients that are alike, each with the mean over its members' samples.

    ``e_j(C) = s^2 / N_C + v (sum_{i != j} N_i^2 + (sum_{i != j} N_i)^2) / N_C^2`` with ``N_C = sum_{i in C} N_i`` and
    sums over C: ``e_fed`` of ``mixture_errors`` for one cluster. A client alone has ``s^2 / N_j``.

    Args:
      sizes: ``N``, ``[M]``, number of samples of every client; above 0.
      members: ``[..., M]``, who belongs to each coalition.
      within_variance: v, the variance of the clients' true means.
      noise_variance: ``s^2``, of one sample.

    Returns:
      ``[..., M]``; NaN for clients outside.

    Raises:
      ValueError: if a size is not above 0, or a variance is negative.

    Source: Donahue and Kleinberg, "Model-sharing games: analyzing federated learning under voluntary participation"
    (AAAI 2021), uniform federation of mean estimation.
    """
    n, _ = _clients(sizes, np.zeros(np.shape(sizes), int), within_variance, noise_variance)
    inside = np.asarray(plain(members), bool)
    mine = np.where(inside, n, 0.0)
    samples = mine.sum(axis=-1, keepdims=True)
    spread = (mine**2).sum(axis=-1, keepdims=True) - mine**2 + (samples - mine) ** 2
    total = np.where(inside, samples, np.nan)
    return noise_variance / total + within_variance * spread / total**2


def equal_mixture_errors(
    own: ArrayLike,
    other: ArrayLike,
    samples: ArrayLike,
    *,
    within_variance: ArrayLike,
    difference: ArrayLike,
    noise_variance: ArrayLike,
) -> MixtureErrors:
    """Expected squared errors of a client if every client has N samples: ``mixture_errors`` in closed form.

    ``e_loc = s^2 / N``, ``e_fed = (1 - 1/M) v + (M_2 / M)^2 (b_1 - b_2)^2 + s^2 / (M N)`` and ``e_clu = (1 - 1/M_1) v +
    s^2 / (M_1 N)``. So the cluster beats the federation iff ``(M_2 / M)^2 (b_1 - b_2)^2 > (1/M_1 - 1/M) (s^2 / N -
    v)``. ``e_fed`` does not vanish as N grows.

    Args:
      own: ``M_1``, number of clients in the client's own cluster, including the client.
      other: ``M_2``, clients in the other cluster.
      samples: N of every client.
      within_variance: v.
      difference: ``b_1 - b_2``.
      noise_variance: ``s^2``, of one sample.

    Returns:
      Arrays of the shape to which the arguments broadcast.

    Source: IP-FL, equation 6.
    """
    given = map(plain, (own, other, samples, within_variance, difference, noise_variance))
    m1, m2, n, v, b, s2 = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in given))
    m = m1 + m2
    return MixtureErrors(
        local=s2 / n,
        federated=(1 - 1 / m) * v + (m2 / m * b) ** 2 + s2 / (m * n),
        cluster=(1 - 1 / m1) * v + s2 / (m1 * n),
    )


def cluster_gain(
    own: ArrayLike, samples: ArrayLike, *, within_variance: ArrayLike, noise_variance: ArrayLike
) -> NumpyArray:
    """``e_loc - e_clu = (1 - 1/M_1) (s^2 / N - v)``: the gain of each client from a cluster of equal clients.

    The gain is positive iff ``v < s^2 / N``, and then grows with the number of clients in the cluster. It rises with
    the noise ``s^2`` and falls with v.

    Args and result: as for ``equal_mixture_errors``.

    Source: IP-FL, section 3, after equation 6.
    """
    m1, n, v, s2 = (np.asarray(plain(value), np.float64) for value in (own, samples, within_variance, noise_variance))
    return (1 - 1 / m1) * (s2 / n - v)


def simulate_mixture(
    key: jax.Array,
    sizes: ArrayLike,
    membership: ArrayLike,
    *,
    client: int,
    within_variance: float,
    difference: float,
    noise_variance: float,
    runs: int,
) -> MixtureErrors:
    """Simulated squared errors of one client's three estimates; their expectation is ``mixture_errors``.

    ``theta_m`` is 0 without loss of generality. Each run draws ``b ~ N(theta_m, v)`` for m's cluster (from the flat
    prior), places the other cluster's b at the given difference, and draws every other ``theta_j ~ N(b, v)`` with the b
    of j's cluster, and the averages ``zbar_j ~ N(theta_j, s^2 / N_j)``.

    Args:
      key: a key of ``jax.random``.
      sizes, membership, within_variance, difference, noise_variance: as for ``mixture_errors``.
      client: m, the client whose errors are simulated.
      runs: number of runs.

    Returns:
      Arrays ``[runs]``.

    Raises:
      ValueError: as ``mixture_errors``, or if ``client`` is out of range.
    """
    n, group = _clients(sizes, membership, within_variance, noise_variance)
    if not 0 <= client < len(n):
        raise ValueError(f"expected a client from 0 to {len(n) - 1}, got {client!r}")
    together = group == group[client]
    shift = np.where(together, 0.0, difference if group[client] else -difference)  # b of a client's cluster minus m's
    is_client = np.arange(len(n)) == client
    cluster_sizes = np.where(together, n, 0.0)
    weights = np.stack([is_client, n / n.sum(), cluster_sizes / cluster_sizes.sum()])
    numbers = (weights, shift, np.sqrt(noise_variance / n), np.sqrt(within_variance))
    errors = _runs(
        jax.random.split(key, runs), jnp.asarray(is_client), *(jnp.asarray(number, float) for number in numbers)
    )
    return MixtureErrors(*np.asarray(errors).T)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, None, None, None, None))
def _runs(
    key: jax.Array, is_client: jax.Array, weights: jax.Array, shift: jax.Array, noise: jax.Array, spread: jax.Array
) -> jax.Array:
    """Squared errors ``[runs, 3]``; ``weights`` is ``[3, M]``, ``shift`` (of b) and ``noise`` are by client."""
    of_cluster, of_clients, of_samples = jax.random.split(key, 3)
    theta = shift + spread * (jax.random.normal(of_cluster) + jax.random.normal(of_clients, shift.shape))
    averages = jnp.where(is_client, 0.0, theta) + noise * jax.random.normal(of_samples, shift.shape)
    return jnp.sum(weights * averages[None], axis=-1) ** 2


def reassign(points: ArrayLike, membership: ArrayLike, *, clusters: int) -> Reassignment:
    """Moves clients to the nearest centroid and centroids to the mean of their members, until no client moves.

    Neither move increases ``sum_m ||x_m - c_{g(m)}||^2``, and there are finitely many groupings, so the iteration ends.
    A client stays if no other centroid is nearer than its own. An empty cluster keeps its last centroid.

    Args:
      points: ``x``, ``[M]`` or ``[M, d]``: one point for each client.
      membership: ``[M]`` in 0 .. clusters - 1, the initial clusters.
      clusters: C.

    Raises:
      ValueError: if the shapes do not agree or a client starts in a cluster that does not exist.

    Source: IP-FL, proof of proposition 1; S. Lloyd, "Least squares quantization in PCM" (1982).
    """
    x, group = np.asarray(plain(points), np.float64), np.asarray(plain(membership))
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or group.shape != x.shape[:1] or not np.all(np.isin(group, np.arange(clusters))):
        raise ValueError(
            f"expected points [clients, d] and their clusters [clients] from 0 to {clusters - 1}, got points of shape "
            f"{x.shape} and {membership!r}"
        )
    centroids = _means_of(x, group, np.full((clusters, x.shape[1]), np.nan))
    errors = [_total(x, group, centroids)]
    while True:
        distance = np.square(x[:, None] - centroids).sum(-1)
        distance = np.where(np.isnan(distance), np.inf, distance)
        mine = np.take_along_axis(distance, group[:, None], axis=1)[:, 0]
        moved = np.where(distance.min(-1) < mine, distance.argmin(-1), group)
        means = _means_of(x, moved, centroids)
        error = _total(x, moved, means)
        # Requiring a strict decrease also stops moves that are due to rounding alone.
        if not error < errors[-1]:
            return Reassignment(group, centroids, np.array(errors))
        group, centroids = moved, means
        errors.append(error)


def _means_of(x: NumpyArray, group: NumpyArray, before: NumpyArray) -> NumpyArray:
    return np.stack([x[group == c].mean(0) if np.any(group == c) else before[c] for c in range(len(before))])


def _total(x: NumpyArray, group: NumpyArray, centroids: NumpyArray) -> float:
    return float(np.square(x - centroids[group]).sum())


def _clients(sizes: ArrayLike, membership: ArrayLike, v: float, s2: float) -> tuple[NumpyArray, NumpyArray]:
    n, group = np.asarray(plain(sizes), np.float64), np.asarray(plain(membership))
    if n.ndim != 1 or not n.size or not np.all(n > 0):
        raise ValueError(f"expected a list of sizes above 0, one for each client, got {sizes!r}")
    if group.shape != n.shape or not np.all(np.isin(group, (0, 1))):
        raise ValueError(f"expected a cluster, 0 or 1, for each of {len(n)} clients, got {membership!r}")
    if not (v >= 0 and s2 >= 0):
        raise ValueError(f"expected variances of at least 0, got {v!r} within clusters and {s2!r} of a sample")
    return n, group
