"""Contribution measures ``p_k`` that are known before training, and free riders.

The parameters of a measure request inputs by name: ``size`` ``[..., N]``, the numbers of training samples by id;
``population``, N; ``standalone_accuracy`` and ``standalone_loss`` ``[..., N]`` on test rows (NaN for a client without
training rows or test rows). A measure returns ``[..., N]``, where ``...`` are seeds (``[N]`` is for all of them); or a
table, if numbers change over rounds (``by_seed`` in ``fljax.contributions.tables``). It is tried with one half for
every input before training, so that its errors come early.

Source: Wu et al., "Incentive-aware federated learning with training-time model rewards" (ICLR 2024), sections 3, 6.

Whether larger coalitions are better: superadditivity, monotonicity and convexity of a table, and what violates them.

Accuracy saturates, so that most games of federated learning are neither superadditive nor convex. In a table of several
seeds, a violation is a mean gap whose t-interval lies below ``-tolerance``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Real

from fljax.contributions import tables
from fljax.contributions.estimators.in_rounds import ROUND_MEASURES, RoundMeasure
from fljax.contributions.solutions import Numbers, clients_of, sizes_of
from fljax.contributions.tables import Labels, error_bars
from fljax.core.names import is_labelled, plain, resolve, shown
from fljax.core.values import arguments_for, parameters_of
from fljax.protocol import AnyArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def data_size(size: Int[AnyArray, "*seeds N"]) -> Float[AnyArray, "*seeds N"]:
    """``p_k = N_k``: the number of training samples."""
    return jnp.asarray(plain(size), jnp.result_type(float))


def participation_rate(population: int) -> Float[AnyArray, " N"]:
    """``p_k = 0.5 (1 + k / N)`` with k = id + 1: participation rates evenly spaced above 0.5, up to 1.

    IAFL's experiment with partial participation uses the same numbers as probabilities of joining a round, with a
    ceiling of 1.

    Source: IAFL, section 6.3.
    """
    return 0.5 * (1 + jnp.arange(1, population + 1) / population)


def standalone_accuracy(standalone_accuracy: Float[AnyArray, "*seeds N"]) -> Float[AnyArray, "*seeds N"]:
    """``p_k``: test accuracy of the client's standalone model, a fraction (NaN as above).

    IAFL's tables use one global test set for all clients and train for as many epochs as there are rounds.

    Source: IAFL, section 6.1.
    """
    return jnp.asarray(plain(standalone_accuracy))


CONTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "size": data_size,
    "participation_rate": participation_rate,
    "standalone_accuracy": standalone_accuracy,
}
# These, and those of rounds.
MEASURES: Mapping[str, Callable[..., Any]] = ChainMap(ROUND_MEASURES, CONTRIBUTIONS)


def free_riders(
    contribution: Real[AnyArray, "*seeds N"], ids: Sequence[int], level: float | AnyArray = 0.0
) -> Float[AnyArray, "*seeds N"]:
    """Replaces the contributions of the free riders by ``level``; other contributions do not change.

    Args:
      contribution: ``[..., N]`` by id.
      ids: different ids of the free riders, from 0.
      level: contribution of the free riders: one number, or one for each entry of the leading axes (``[...]``).
        ``contribution_at`` gives the level for a chosen share of the updates.

    Raises:
      ValueError: if an id appears twice or does not exist.
    """
    contribution = jnp.asarray(plain(contribution))
    population = contribution.shape[-1]
    if len(set(ids)) != len(ids) or not all(0 <= id < population for id in ids):
        raise ValueError(f"expected different ids of clients from 0 to {population - 1}, got {list(ids)}")
    dtype = jnp.promote_types(contribution.dtype, jnp.result_type(float))
    rides = jnp.broadcast_to(np.isin(np.arange(population), list(ids)), contribution.shape)
    theirs = jnp.broadcast_to(jnp.asarray(plain(level), dtype)[..., None], contribution.shape)
    return jnp.where(rides, theirs, contribution.astype(dtype))


def contribution_at(
    induced_rate: float | AnyArray,
    contribution: Real[AnyArray, "*seeds N"],
    ids: Sequence[int] = (),
    *,
    kappa: float | AnyArray = 0.0,
    ceiling: float | AnyArray | Literal["max"] = "max",
) -> Float[AnyArray, "*seeds"]:
    """The contribution for which IAFL's induced reward rate is ``gamma'``.

    ``gamma' = (gamma (N - 1) + 1) / N`` is the share of all updates, the client's own included, that its reward
    averages. With ``gamma = min(p / ceiling, 1)^(1 - kappa)``, the contribution is
    ``p = ceiling ((N gamma' - 1) / (N - 1))^(1 / (1 - kappa))``. The free rider of the paper, client 6 (id 5) of 50,
    has gamma' = 0.09: ``free_riders(p, [5], contribution_at(0.09, p, [5]))``. In the paper, p stays fixed while kappa
    and hence gamma' change from run to run. So give the kappa for which gamma' is stated (the paper's first is 0), not
    the kappa of each run.

    Args:
      induced_rate: ``gamma'`` in [1/N, 1]; values below 1/N, which no client can have, give 0.
      contribution: ``[..., N]`` by id.
      ids: free riders, excluded from the "max" of ``ceiling``.
      kappa: sharing coefficient in [0, 1).
      ceiling: ``p_ceil``, or "max": the largest contribution of the other clients (NaN ignored).

    Returns:
      ``[...]``, one number for each entry of the leading axes of ``contribution``.

    Raises:
      ValueError: if ``ceiling`` is another string, if ``ceiling`` is "max" and all clients are free riders, or if there
        is only one client, whose induced rate is always 1.

    Source: IAFL, Equation (1), sections 5.1 and 6.2.
    """
    contribution = jnp.asarray(plain(contribution))
    population = contribution.shape[-1]
    if population < 2:
        raise ValueError(f"expected at least 2 clients for an induced rate, got {population}")
    others = np.flatnonzero(~np.isin(np.arange(population), list(ids)))
    if isinstance(ceiling, str):
        if ceiling != "max":
            raise ValueError(f"expected ceiling to be a positive number or 'max', got {ceiling!r}")
        if not len(others):
            raise ValueError("expected a client that is no free rider for the ceiling 'max', got free riders only")
        ceiling = jnp.nanmax(contribution[..., others], axis=-1)
    rate = jnp.clip((jnp.asarray(plain(induced_rate)) * population - 1) / (population - 1), 0, 1)
    level = plain(ceiling) * rate ** (1 / (1 - jnp.asarray(plain(kappa))))
    return jnp.broadcast_to(level, contribution.shape[:-1])


class Measure(NamedTuple):
    """A measure by name or a file of contributions, and the free riders among the clients.

    Attributes:
      name: in ``CONTRIBUTIONS``, or ``"module:function"``.
      options: further arguments of the measure, by name.
      free_riders: their ids, from 0.
      level: what each of them contributes, unless ``induced_rate`` is given.
      induced_rate: their share of all updates; they contribute the result of ``contribution_at``, with ``kappa`` and
        ``ceiling``.
      kappa: see ``contribution_at``, as for ``ceiling``.
      ceiling: a number or "max".
      file: in place of ``name``, a CSV file with the columns client and contribution, and round and seed if
        contributions differ by them.
    """

    name: str = "standalone_accuracy"
    options: Mapping[str, Any] = {}
    free_riders: tuple[int, ...] = ()
    level: float = 0.0
    induced_rate: float | None = None
    kappa: float = 0.0
    ceiling: float | Literal["max"] = "max"
    file: str | None = None


if TYPE_CHECKING:
    Contribution = (
        str
        | Measure
        | RoundMeasure
        | Callable[..., Any]
        | Sequence[float]
        | Real[AnyArray, " N"]
        | xr.DataArray
        | pd.Series
        | pd.DataFrame
    )
else:
    Contribution = Any  # xarray and pandas are imported only where they are used


def measure(
    chosen: Contribution, facts: Mapping[str, Any], labels: Labels | None = None
) -> Real[np.ndarray, "seeds *rounds N"]:
    """The contributions that were chosen, for all seeds.

    Args:
      chosen: a ``Measure``, its name alone, N numbers by id, or an ``xarray.DataArray`` with the dimension ``client``,
        and ``round`` and ``seed`` where numbers differ by them (``by_seed`` in ``fljax.contributions.tables``).
      facts: all inputs that a measure may request; arrays are ``[seeds, N]``. ``standalone_accuracy`` is absent if the
        task has no score.
      labels: what the run calls its seeds, rounds and clients; None: seeds and clients are numbered from 0.

    Returns:
      ``[seeds, N]``; or ``[seeds, rounds, N]`` if they have rounds, the last row for later rounds too.

    Raises:
      ValueError: if the measure is unknown, requests an unknown fact, or returns an array of another shape; if numbers
        are a table without names of its dimensions; and as ``by_seed``.
    """
    seeds, population = np.shape(facts["size"])
    labels = Labels(range(seeds)) if labels is None else labels
    chosen = Measure(chosen) if isinstance(chosen, str) else chosen
    values: Any = _values(chosen, facts) if isinstance(chosen, Measure) else chosen
    if is_labelled(values) or hasattr(values, "dims"):
        values = tables.by_seed(values, population, labels)
    elif isinstance(chosen, Measure):
        values = jnp.asarray(values)
        if values.shape not in ((population,), (seeds, population)):
            raise ValueError(
                f"expected the contribution {chosen.name!r} to have one number for each of {population} clients "
                f"(and {seeds} seeds), got shape {values.shape}"
            )
    else:
        values = _plain(values, population)
    if values.ndim < 3:
        values = jnp.broadcast_to(values, (seeds, population))
    if isinstance(chosen, Measure) and chosen.free_riders:
        ids, level = chosen.free_riders, chosen.level
        if chosen.induced_rate is not None:
            level = contribution_at(chosen.induced_rate, values, ids, kappa=chosen.kappa, ceiling=chosen.ceiling)
        values = free_riders(values, ids, level)
    return np.asarray(values)


def _values(chosen: Measure, facts: Mapping[str, Any]) -> Any:
    """What a file has, or what a measure's function returns."""
    if chosen.file is not None:
        return tables.read_table(chosen.file)
    if chosen.name in ROUND_MEASURES:
        raise ValueError(
            f"expected a contribution that is known before training, got {chosen.name!r}, which rounds compute: "
            f"RoundMeasure({chosen.name!r})"
        )
    function = resolve(chosen.name, CONTRIBUTIONS, "contribution")
    asked = parameters_of(function)
    lacking = [fact for fact in FACTS if fact in asked and fact not in facts and fact not in chosen.options]
    if lacking:
        raise ValueError(
            f"expected a task with a score for the contribution {chosen.name!r}, which asks for {lacking[0]}, got one "
            "without; size, participation_rate and a list of numbers need none"
        )
    return function(**arguments_for(function, facts, chosen.options))


def _plain(chosen: Any, population: int) -> Real[np.ndarray, " N"]:
    """One number for each client; a plain table does not say whether its rows are seeds or rounds."""
    try:
        numbers = np.asarray(chosen)
    except ValueError:  # a ragged list
        numbers = np.empty((), object)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"expected one contribution for each of {population} clients, got {shown(chosen)}")
    if numbers.ndim > 1:
        raise ValueError(
            "expected one contribution for each client, or a table that names its dimensions, as in xr.DataArray("
            f'values, dims=("seed", "client")) or dims=("round", "client"), got an array of shape {numbers.shape} '
            "without names"
        )
    if numbers.shape != (population,):
        raise ValueError(f"expected one contribution for each of {population} clients, got shape {numbers.shape}")
    return numbers.astype(jnp.result_type(float))


# The arguments that measures of contributions may have.
FACTS = ("size", "population", "standalone_accuracy", "standalone_loss")


_ROUNDING = 1e-9  # the default tolerance


class Violations(NamedTuple):
    """What violates a property.

    Attributes:
      count: number of violations.
      share: ``count`` over the number of inequalities; 0 if there are none.
      largest: the size of the largest violation, positive; 0 without one.
      gap: ``[W]``, the negative gaps of the W worst violations, the worst one first.
      where: ``[W, 2 or 3]``, what each of them is about, see the functions.
      unknown: number of inequalities with a NaN, which are no violations.
    """

    count: int
    share: float
    largest: float
    gap: Float[np.ndarray, " W"]
    where: Int[np.ndarray, "W K"]
    unknown: int


def superadditivity(
    values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100
) -> Violations:
    """``v0(S + T) >= v0(S) + v0(T)`` with ``v0 = v - v(empty)``, for all disjoint S and T that are not empty.

    There are ``(3^N - 2^(N+1) + 1) / 2`` pairs: 28,501 for 10 clients, 21 million for 16.

    Args:
      values: ``[2^N]`` by code, or ``[R, 2^N]``.
      level: of the interval over seeds.
      tolerance: gaps above ``-tolerance`` are rounding.
      listed: W, the largest number of violations to list.

    Returns:
      ``Violations``, where ``where`` has the codes of S and T, with the lowest client in S.

    Raises:
      ValueError: if ``values`` is no such table.
    """
    table, clients = _table(values)
    table = table - table[:, :1]

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(1, 2**clients - 1):
            others = [1 << i for i in range((first & -first).bit_length(), clients) if not first >> i & 1]
            second = np.zeros(1, int)
            for bit in others:
                second = np.concatenate([second, second | bit])
            second = second[1:]
            if len(second):
                gap = table[:, first | second] - table[:, second] - table[:, first, None]
                yield gap, np.stack([np.full_like(second, first), second], axis=1)

    return _found(pairs(), 2, level, tolerance, listed)


def monotonicity(
    values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100
) -> Violations:
    """``v(S + i) >= v(S)`` for all clients i and all S without i: ``N 2^(N-1)`` inequalities.

    Args:
      values, level, tolerance, listed: as for ``superadditivity``.

    Returns:
      ``Violations``, where ``where`` has the code of S and the id i.

    Raises:
      ValueError: if ``values`` is no such table.
    """
    table, clients = _table(values)
    codes = np.arange(2**clients)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for client in range(clients):
            without = codes[~(codes >> client & 1).astype(bool)]
            gap = table[:, without | 1 << client] - table[:, without]
            yield gap, np.stack([without, np.full_like(without, client)], axis=1)

    return _found(pairs(), 2, level, tolerance, listed)


def convexity(values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100) -> Violations:
    """``v(S + i + j) - v(S + i) >= v(S + j) - v(S)`` for all pairs of clients: ``C(N, 2) 2^(N-2)`` inequalities.

    A convex game is superadditive, and its Shapley values are in the core.

    Args:
      values, level, tolerance, listed: as for ``superadditivity``.

    Returns:
      ``Violations``, where ``where`` has the code of S, and the ids i and j with i < j.

    Raises:
      ValueError: if ``values`` is no such table.

    Source: Shapley, "Cores of convex games" (1971).
    """
    table, clients = _table(values)
    codes = np.arange(2**clients)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for second in range(clients):
            for first in range(second):
                i, j = 1 << first, 1 << second
                without = codes[(codes & (i | j)) == 0]
                gap = table[:, without | i | j] - table[:, without | i] - table[:, without | j] + table[:, without]
                yield gap, np.stack([without, np.full_like(without, first), np.full_like(without, second)], axis=1)

    return _found(pairs(), 3, level, tolerance, listed)


def _table(values: Numbers) -> tuple[np.ndarray, int]:
    """``[R, 2^N]``."""
    table = np.asarray(plain(values), float)
    clients = clients_of(table)
    if table.ndim > 2 or not table.size:
        raise ValueError(f"expected a table [2^N] or [seeds, 2^N], got shape {table.shape}")
    return table.reshape(-1, len(sizes_of(clients))), clients


def _found(
    parts: Iterable[tuple[np.ndarray, np.ndarray]], columns: int, level: float, tolerance: float, listed: int
) -> Violations:
    """Violations among gaps ``[R, M]`` and what they are about, ``[M, columns]``, in parts."""
    count = total = unknown = 0
    worst, where = np.zeros(0), np.zeros((0, columns), int)
    for gap, about in parts:
        bars = error_bars(gap, level) if len(gap) > 1 else None
        mean, above = (gap[0], gap[0]) if bars is None else (bars.mean, bars.high)
        violated = above < -tolerance
        count, total, unknown = count + int(violated.sum()), total + len(about), unknown + int(np.isnan(above).sum())
        if not violated.any():
            continue
        worst = np.concatenate([worst, mean[violated]])
        where = np.concatenate([where, about[violated]])
        order = np.argsort(worst, kind="stable")[: max(listed, 1)]
        worst, where = worst[order], where[order]
    largest = float(-worst[0]) if len(worst) else 0.0
    return Violations(count, count / total if total else 0.0, largest, worst[:listed], where[:listed], unknown)
