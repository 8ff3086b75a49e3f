"""What clients are worth in a table of the values of all coalitions: Shapley values and other semivalues.

All are ``phi_i = sum_{S without i} p_|S| (v(S + i) - v(S))`` with one number ``p_s`` for each size, of a table
``[..., 2^N]`` by code. NumPy arrays give NumPy results in double precision; JAX arrays give JAX results, also under
``jit`` and ``grad``. A NaN (a diverged run) makes all numbers NaN that use it with a weight other than 0.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.contributions.coalitions import Numbers, clients_of, sizes_of
from fljax.core.labels import plain
from fljax.protocol.arrays import NumpyArray

Worth = jax.Array | NumpyArray


def semivalue(values: Numbers, weights: Numbers) -> Worth:
    """``phi_i = sum_{s=0}^{N-1} weights_s sum_{S without i, |S|=s} (v(S + i) - v(S))``.

    Args:
      values: ``[..., 2^N]`` by code.
      weights: ``[N]``, the weight ``p_s`` of a coalition of s others. A semivalue has ``sum_s C(N-1, s) p_s = 1``;
        other numbers are allowed. ``(1, 0, ..., 0)`` gives ``v({i}) - v(empty)``.

    Returns:
      ``[..., N]``.

    Raises:
      ValueError: if ``values`` has not 2^N entries, or ``weights`` not N.

    Source: Dubey, Neyman and Weber, "Value theory without efficiency" (1981).
    """
    table: Any = _floating(values)
    clients = clients_of(table)
    if np.shape(plain(weights)) != (clients,):
        raise ValueError(
            f"expected one weight for each of {clients} sizes of coalitions, got shape {np.shape(weights)}"
        )
    library: Any = jnp if isinstance(table, jax.Array) or isinstance(weights, jax.Array) else np
    given, sizes = library.asarray(weights), sizes_of(clients - 1)
    found: list[Any] = []
    for client in range(clients):
        # Codes are [clients after this one, this one, clients before it].
        parts = table.reshape(*table.shape[:-1], -1, 2, 2**client)
        gains = (parts[..., 1, :] - parts[..., 0, :]).reshape(*table.shape[:-1], -1)
        share = given[sizes].astype(table.dtype).reshape((1,) * (gains.ndim - 1) + (-1,))
        found.append(library.sum(library.where(share == 0, 0, share * gains), axis=-1))
    return library.stack(found, axis=-1)


def shapley(values: Numbers) -> Worth:
    """Shapley values: ``p_s = s! (N - s - 1)! / N!``, the mean marginal contribution over all orders of the clients.

    The only semivalue that is efficient: ``sum_i phi_i = v(all) - v(empty)``.

    Args:
      values: ``[..., 2^N]`` by code.

    Returns:
      ``[..., N]``.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Shapley, "A value for n-person games" (1953).
    """
    clients = clients_of(_floating(values))
    return semivalue(values, [1 / (clients * math.comb(clients - 1, size)) for size in range(clients)])


def banzhaf(values: Numbers) -> Worth:
    """Banzhaf values: ``p_s = 2^-(N-1)``, the mean marginal contribution over all coalitions of the others.

    Two clients that become one get the sum of what they got, unlike with Shapley values. The sum over all clients is
    not ``v(all) - v(empty)``.

    Args:
      values: ``[..., 2^N]`` by code.

    Returns:
      ``[..., N]``.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Banzhaf, "Weighted voting doesn't work" (1965); Wang and Jia, "Data Banzhaf" (AISTATS 2023).
    """
    clients = clients_of(_floating(values))
    return semivalue(values, [2.0 ** (1 - clients)] * clients)


def beta_shapley(values: Numbers, alpha: float, beta: float) -> Worth:
    """Beta Shapley values: ``p_s = B(s + beta, N - 1 - s + alpha) / B(alpha, beta)``, with B the beta function.

    ``Beta(1, 1)`` is Shapley's. With ``alpha > beta`` small coalitions weigh more, where noise is smaller.

    Args:
      values: ``[..., 2^N]`` by code.
      alpha: positive.
      beta: positive.

    Returns:
      ``[..., N]``.

    Raises:
      ValueError: if ``values`` has not 2^N entries, or a parameter is not positive.

    Source: Kwon and Zou, "Beta Shapley" (AISTATS 2022). The authors' code has the two arguments exchanged.
    """
    if not (0 < alpha < math.inf and 0 < beta < math.inf):
        raise ValueError(f"expected positive alpha and beta, got {alpha} and {beta}")
    clients = clients_of(_floating(values))
    sizes = np.arange(clients)
    from scipy.special import betaln  # late: a config's names need none of scipy

    return semivalue(values, np.exp(betaln(sizes + beta, clients - 1 - sizes + alpha) - betaln(alpha, beta)))


def leave_one_out(values: Numbers) -> Worth:
    """``phi_i = v(all) - v(all - i)``; it reads N + 1 entries of the table.

    Args:
      values: ``[..., 2^N]`` by code.

    Returns:
      ``[..., N]``.

    Raises:
      ValueError: if ``values`` has not 2^N entries.
    """
    clients = clients_of(_floating(values))
    return semivalue(values, np.arange(clients) == clients - 1)


def marginals_along(values: Any, place: Any) -> Any:
    """``[..., N]`` by client: what each one adds in an order of arrival, of which ``place`` has its place, from 0."""
    # ``values`` ``[..., N + 1]`` are those of nobody, of the first client, of the first two, ..., of all.
    library: Any = jnp if isinstance(values, jax.Array) else np
    return library.take_along_axis(library.diff(values, axis=-1), place, axis=-1)


def mean_of_samples(samples: Any) -> tuple[Any, Any]:
    """The mean over the first axis, and its standard error ``sd / sqrt(n)``; NaN if there is one sample."""
    library: Any = jnp if isinstance(samples, jax.Array) else np
    count = samples.shape[0]
    estimate = library.mean(samples, axis=0)
    variance = library.sum(library.square(samples - estimate[None]), axis=0) / max(count - 1, 1)
    error = library.sqrt(variance / count)
    return estimate, error if count > 1 else library.full_like(error, library.nan)


def _floating(values: Numbers) -> Any:
    """A floating array of JAX, or one of NumPy in double precision."""
    if isinstance(values, jax.Array):
        return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.result_type(float))
    return np.asarray(plain(values), float)
