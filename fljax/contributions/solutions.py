"""Solutions of a table of the values of all coalitions: Shapley values, other semivalues, least core and nucleolus.

A coalition S has the code ``sum_{i in S} 2^i``. A value table ``[..., 2^N]`` has the values by code, the empty
coalition first and all clients last.

Semivalues are ``phi_i = sum_{S without i} p_|S| (v(S + i) - v(S))`` with one number ``p_s`` for each size. NumPy arrays
give NumPy results in double precision; JAX arrays give JAX results, also under ``jit`` and ``grad``. A NaN (a diverged
run) makes all numbers NaN that use it with a weight other than 0.

Least core and nucleolus are payoffs that no coalition has a reason to leave, by scipy's linear programs (HiGHS).
With ``v0(S) = v(S) - v(empty)``, a payoff ``x`` shares ``v0(all)``, and the excess of a coalition is ``v0(S) - x(S)``:
the model before training may have a value. Nothing here works under ``jit``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax.core import users
from fljax.core.errors import AlgorithmError
from fljax.core.names import plain
from fljax.protocol.data import NumpyArray

Value = Callable[[Bool[Array, " N"]], Float[Array, ""] | float]

# Numbers that become an array: one of JAX, of NumPy, or nested lists.
Numbers = jax.Array | NumpyArray | Sequence[Any]

# More clients would have too many coalitions to evaluate.
LARGEST = 16

# What JAX raises where code of the host is given traced arrays.
_NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def members_of(clients: int) -> Bool[np.ndarray, "coalitions N"]:
    """``[2^N, N]`` bools: who belongs to each coalition, by code."""
    return (np.arange(2**clients)[:, None] >> np.arange(clients)[None, :] & 1).astype(bool)


def sizes_of(clients: int) -> Int[np.ndarray, " coalitions"]:
    """``[2^N]``: the number of members of each coalition, by code."""
    return members_of(clients).sum(axis=1)


def clients_of(values: jax.Array | np.ndarray) -> int:
    """N, of a value table ``[..., 2^N]``; raises a ValueError unless N is from 1 to 16."""
    count = values.shape[-1] if values.ndim else 0
    clients = max(count, 1).bit_length() - 1
    if count != 2**clients or not 1 <= clients <= LARGEST:
        raise ValueError(
            f"expected a value for each of 2^N coalitions of N clients, N from 1 to {LARGEST}, on the last axis, got "
            f"shape {tuple(values.shape)}"
        )
    return clients


def value_table(value: Value, members: Bool[Array, "M N"], batch_size: int | None) -> Float[Array, " M"]:
    """``[M]``: ``value`` of every row of ``members``, mapped over ``batch_size`` rows at a time (None: all)."""

    def one(row: Array) -> Array:
        try:
            returned = users.call("value", "(members)", value, row)
        except AlgorithmError as error:
            if not isinstance(error.__cause__, _NEEDS_NUMBERS):
                raise
            raise ValueError(
                "expected value to be a function of jax.numpy, which is mapped over coalitions, got one that needs the "
                f"numbers themselves ({type(error.__cause__).__name__}); jax.pure_callback calls code of the host"
            ) from error.__cause__
        found = users.numbers("value", value, "one number for a coalition", returned, ())
        return found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(jnp.result_type(float))

    if batch_size is None or members.shape[0] <= batch_size:
        return jax.vmap(one)(members)
    return jax.lax.map(one, members, batch_size=batch_size)


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


# Relative to the largest |v0|.
_TIGHT, _FEASIBLE = 1e-7, 1e-9
_UNBOUNDED = 3  # the status of scipy's ``linprog``


class LeastCore(NamedTuple):
    """Payoffs whose largest excess is as small as possible.

    Attributes:
      excess: ``[...]``, the largest excess ``e*`` of proper coalitions; the core is not empty where it is at most 0, up
        to rounding. ``-inf`` for one client, and where the coalitions that are used bound nothing; NaN where a value is
        NaN.
      payoff: ``[..., N]``; NaN where nothing bounds the excess of several clients.
      slack: ``[..., 2^N]``, ``x(S) - v0(S) + e*``, at least 0 for coalitions that are used; 0 for nobody and for all
        clients.
      tight: ``[..., 2^N]``, the proper coalitions whose excess is ``e*``.
    """

    excess: Float[np.ndarray, "*seeds"]
    payoff: Float[np.ndarray, "*seeds N"]
    slack: Float[np.ndarray, "*seeds coalitions"]
    tight: Bool[np.ndarray, "*seeds coalitions"]


def least_core(values: Numbers, known: Numbers | None = None) -> LeastCore:
    """``e* = min e`` with ``x(S) >= v0(S) - e`` for all proper coalitions that are not empty, and ``x(all) = v0(all)``.

    Among the payoffs that attain ``e*``, the one with the least ``||x||_2`` is returned, the most equal one.

    Args:
      values: ``[..., 2^N]`` by code. For several seeds, the least core of the mean table is
        ``least_core(values.mean(axis=0))``; ``least_core(values).excess`` tells in how many seeds the core is empty.
      known: ``[2^N]``, the coalitions whose values are used; None: all. Nobody and all clients are always used. With
        fewer coalitions ``e*`` is a lower bound.

    Returns:
      ``LeastCore``. If a value that is used is NaN, its numbers are NaN.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Maschler, Peleg and Shapley, "Geometric properties of the kernel, nucleolus, and related solution concepts"
    (1979); Yan and Procaccia, "If you like Shapley then you'll love the core" (AAAI 2021).
    """
    table, used, clients = _table(values, known)
    members = members_of(clients).astype(float)
    rows = np.flatnonzero(used)
    found = [_least_core(row, rows, members) for row in table.reshape(-1, table.shape[-1])]
    lead = table.shape[:-1]
    excess, payoff = np.array([each[0] for each in found]), np.stack([each[1] for each in found])
    gap = payoff @ members.T - (table - table[..., :1]).reshape(-1, table.shape[-1])
    proper = _proper(clients)
    slack = np.where(proper[None], gap + np.where(np.isinf(excess), 0, excess)[:, None], 0)
    sizes = _sizes(np.where(used | ~proper, table, table[..., :1]))  # what is not known may be NaN
    tight = proper[None] & used[None] & (slack <= 10 * _TIGHT * sizes[:, None])
    return LeastCore(
        excess.reshape(lead), payoff.reshape(*lead, clients), slack.reshape(table.shape), tight.reshape(table.shape)
    )


def nucleolus(values: Numbers) -> Float[np.ndarray, "*seeds N"]:
    """The payoff that minimises the largest excess, among these the second largest one, and so on; it is unique.

    Linear programs one after another: each fixes the coalitions that have the largest excess in every optimum (those
    with a positive multiplier), until these coalitions determine the payoff. At most N - 1 programs of 2^N rows.

    Args:
      values: ``[..., 2^N]`` by code.

    Returns:
      ``[..., N]``, of sum ``v(all) - v(empty)``; NaN where a value is NaN.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Schmeidler, "The nucleolus of a characteristic function game" (1969).
    """
    table, _, clients = _table(values, None)
    members = members_of(clients).astype(float)
    found = [_nucleolus(row, members) for row in table.reshape(-1, table.shape[-1])]
    return np.stack(found).reshape(*table.shape[:-1], clients)


def _table(values: Numbers, known: Numbers | None) -> tuple[np.ndarray, np.ndarray, int]:
    table = np.asarray(plain(values), float)
    clients = clients_of(table)
    proper = _proper(clients)
    return table, proper if known is None else proper & np.asarray(plain(known), bool), clients


def _proper(clients: int) -> np.ndarray:
    codes = np.arange(2**clients)
    return (codes > 0) & (codes < 2**clients - 1)


def _sizes(table: np.ndarray) -> np.ndarray:
    """The largest |v0| of each row, by which programs are scaled; 1 for a table of one value."""
    rows = table.reshape(-1, table.shape[-1])
    largest = np.abs(rows - rows[:, :1]).max(axis=1)
    return np.where(largest > 0, largest, 1.0)


def _least_core(row: np.ndarray, rows: np.ndarray, members: np.ndarray) -> tuple[float, np.ndarray]:
    """``e*`` and the payoff, of one table."""
    from scipy.optimize import nnls  # late: it takes a quarter of a second

    clients = members.shape[1]
    if not np.isfinite(row[[0, *rows, -1]]).all():
        return np.nan, np.full(clients, np.nan)
    if not len(rows):
        return -np.inf, np.full(clients, (row[-1] - row[0]) / clients)
    size = _sizes(row[[0, *rows, -1]])[0]
    game = (row - row[0]) / size
    excess, payoff, _ = _program(game, rows, members, [], [])
    if np.isinf(excess):
        return excess, payoff
    # Optimal payoffs are e + y with e equal shares, y of sum 0 and G y >= h; the least y is a least distance program.
    equal = np.full(clients, game[-1] / clients)
    basis = np.linalg.svd(np.ones((1, clients)))[2][1:].T
    left, right = members[rows] @ basis, game[rows] - excess - _FEASIBLE - members[rows] @ equal
    least, _ = nnls(np.vstack([left.T, right[None]]), np.eye(clients)[-1], maxiter=100 * len(rows))
    rest = np.vstack([left.T, right[None]]) @ least - np.eye(clients)[-1]
    nearest = equal - basis @ (rest[:-1] / rest[-1]) if abs(rest[-1]) > 1e-12 else payoff
    if (members[rows] @ nearest - game[rows] + excess).min() < -_TIGHT:  # rounding was too large
        nearest = payoff
    return excess * size, nearest * size


def _nucleolus(row: np.ndarray, members: np.ndarray) -> np.ndarray:
    clients = members.shape[1]
    if not np.isfinite(row).all():
        return np.full(clients, np.nan)
    size = _sizes(row)[0]
    game = (row - row[0]) / size
    free = np.arange(1, len(row) - 1)
    fixed, sums = [members[-1]], [game[-1]]
    while True:
        basis = np.linalg.qr(np.array(fixed).T)[0]
        if basis.shape[1] == clients:
            return np.linalg.solve(np.array(fixed), np.array(sums)) * size
        # A coalition that the fixed ones determine has a constant excess.
        rest = members[free] - members[free] @ basis @ basis.T
        free = free[np.linalg.norm(rest, axis=1) > 1e-9]
        excess, _, multipliers = _program(game, free, members, fixed, sums)
        for code in free[np.argsort(-multipliers, kind="stable")]:
            new = np.array([*fixed, members[code]])
            if multipliers[free == code][0] > 1e-7 and np.linalg.matrix_rank(new) == len(new):
                fixed.append(members[code])
                sums.append(game[code] - excess)


def _program(
    game: np.ndarray, rows: np.ndarray, members: np.ndarray, fixed: list[np.ndarray], sums: list[float]
) -> tuple[float, np.ndarray, np.ndarray]:
    """``min e`` with ``x(S) + e >= game(S)`` for ``rows`` and given sums of payoffs: e, x and the multipliers."""
    from scipy.optimize import linprog  # late: it takes a quarter of a second

    clients = members.shape[1]
    fixed, sums = fixed or [members[-1]], sums or [game[-1]]
    found = linprog(
        np.append(np.zeros(clients), 1.0),
        A_ub=-np.hstack([members[rows], np.ones((len(rows), 1))]),
        b_ub=-game[rows],
        A_eq=np.hstack([np.array(fixed), np.zeros((len(fixed), 1))]),
        b_eq=np.array(sums),
        bounds=(None, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.status == _UNBOUNDED:  # a client that is in none of the coalitions pays for all others
        return -np.inf, np.full(clients, np.nan), np.zeros(len(rows))
    if not found.success:
        raise RuntimeError(f"expected the linear program of a least core to be solved, got: {found.message}")
    return float(found.x[-1]), found.x[:-1], -found.ineqlin.marginals
