"""Clients that are selected but do not answer: at random, by a trace, or before they join.

Source: none; an assumption of many studies. The cohort row of an absent client is empty: its weight is zero and the
client's state is unchanged.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real, Shaped

from fljax.core.values import CountOrZero, Share, check_by_client, check_flags, checked
from fljax.protocol import Algorithm, AnyArray, Available, Cohort, Info
from fljax.scenarios.common import Entry, applied_scenarios, key_number, of_ids


@checked
def dropout(
    inner: Algorithm,
    *,
    rate: Share | Real[AnyArray, "*rounds N"] | Sequence[float] | Sequence[Sequence[float]] | str | os.PathLike[str],
) -> Algorithm:
    """A selected client does not answer with probability ``rate``, independently in every round.

    Args:
      inner: any algorithm.
      rate: one probability, one per client id ``[N]``, or one per round and client id ``[rounds, N]``; round t uses row
        ``t % rounds``. Or the path of a .npy or .csv file with this table. A client takes part with probability
        ``p = 1 - rate``.

    Returns:
      The algorithm. The record ``cohort_present`` marks the clients that answered. Nested dropouts draw independently,
      so a client answers with probability ``(1 - rate_1) (1 - rate_2)``.

    Raises:
      ValueError: if ``rate`` is a number outside [0, 1], an array for another number of clients, or a file that cannot
        be read.
    """
    probability, number = _rates(rate), key_number(inner, "dropout")

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        population = available.population
        check_by_client("rate", probability, population)
        now = probability[round % probability.shape[0]] if probability.ndim == 2 else probability
        server, cohort, info = inner.select(key, round, server, ballots, available)
        drawn = jax.random.uniform(jax.random.fold_in(key, number), (population,), jnp.float32)
        return server, _only(cohort, drawn >= now), info

    return inner._replace(select=select, scenarios=applied_scenarios(inner, "dropout"))


@checked
def availability(
    inner: Algorithm,
    *,
    trace: Shaped[AnyArray, "*rounds N"] | Sequence[Any] | str | os.PathLike[str] | None = None,
    newcomers: Sequence[int] | None = None,
    joins: CountOrZero = 0,
    announced: bool = False,
) -> Algorithm:
    """A client can answer in the rounds that a trace gives: where ``trace[round % rounds, id]`` is true.

    Or all clients can answer in all rounds, but newcomers only from the round on in which they join.

    Args:
      inner: any algorithm.
      trace: ``[rounds, N]`` of bools or zeros and ones, or the path of a .npy or .csv file with this table. The trace
        repeats if the run is longer; or
      newcomers: distinct ids of the clients that join later, from 0.
      joins: the first round in which newcomers can answer.
      announced: whether the server knows before it selects who can answer. If not, the server selects from all clients,
        and absent clients do not answer.

    Returns:
      The algorithm. An absent client is a member all the time: algorithms that reward all members reward it, too.

    Raises:
      ValueError: if the trace is not a table of zeros and ones with one column per client, or cannot be read; unless
        exactly one of ``trace`` and ``newcomers`` is given; if an id of ``newcomers`` is not a client's.
    """
    if (trace is None) == (newcomers is None):
        raise ValueError("expected exactly one of trace and newcomers for availability")
    if joins and newcomers is None:
        raise ValueError(f"expected newcomers who join in round {joins}, got a trace alone")
    late = None if newcomers is None else of_ids(newcomers)
    table = None if trace is None else _trace(trace)

    def answering(round: Int[Array, ""], population: int) -> Bool[Array, " N"]:
        if late is not None:
            late.check(population)
            return (round >= joins) | ~jax.vmap(late.row)(jnp.arange(population))
        assert table is not None
        if table.shape[1] != population:
            raise ValueError(f"expected a trace of {population} clients, got {table.shape[1]}")
        return table[round % table.shape[0]]

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        answers = answering(round, available.population)
        if announced:
            return inner.select(key, round, server, ballots, available.only(answers))
        server, cohort, info = inner.select(key, round, server, ballots, available)
        return server, _only(cohort, answers), info

    return inner._replace(select=select, scenarios=applied_scenarios(inner, "availability"))


def _rates(rate: Any) -> Float[Array, ...]:
    """Probabilities, or those of a file; ``rate`` is what a user gave."""
    if not isinstance(rate, str | os.PathLike):
        return jnp.asarray(rate)
    table = _read(rate, "a table of rates")
    if not bool(jnp.all((table >= 0) & (table <= 1))):  # NaN is refused, too
        raise ValueError(f"expected rates from 0 to 1 in the file {str(rate)!r}, got others")
    return table.astype(jnp.result_type(float))


def _trace(trace: Any) -> Bool[Array, "rounds N"]:
    """The table of a trace, or of its file; ``trace`` is what a user gave."""
    try:
        if isinstance(trace, str | os.PathLike):
            table = _read(trace)
        else:  # a list may hold tracers, which NumPy does not take
            table = jnp.asarray(trace if isinstance(trace, jax.Array | list | tuple) else np.asarray(trace))
    except (TypeError, ValueError) as error:
        if isinstance(trace, str | os.PathLike):
            raise
        raise ValueError(f"expected a trace of numbers, with as many in each round, got {trace!r}") from error
    if table.ndim != 2 or table.shape[0] == 0:
        raise ValueError(f"expected a trace [rounds, clients], got shape {table.shape}")
    check_flags("trace", table)
    return table != 0


def _only(cohort: Cohort, answers: Bool[Array, " N"]) -> Cohort:
    return cohort._replace(present=cohort.present & answers[jnp.clip(cohort.id, 0, answers.shape[0] - 1)])


def _read(path: str | os.PathLike[str], what: str = "a trace") -> Array:
    file = pathlib.Path(path)
    try:
        table = np.load(file) if file.suffix == ".npy" else np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"expected {what} in a .npy or .csv file, got {str(file)!r} ({error})") from None
    return jnp.asarray(table)


DROPOUT_ENTRY = Entry(dropout, "selected clients do not answer with some probability", {"rate": 0.3}, flat=("rate",))
AVAILABILITY_ENTRY = Entry(
    availability,
    "selected clients answer in the rounds that a table gives",
    {"trace": ((1, 1, 0, 1, 1), (0, 1, 1, 1, 1))},
)
