"""Clients that are selected but do not answer: at random, or by a trace.

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
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, Key, PyTree, Real, Shaped

from fljax.core.values import Share, check_flags, checked
from fljax.protocol import Algorithm, AnyArray, Available, Cohort, Info
from fljax.scenarios.common import DROPOUT, Entry, applied_scenarios, key_number


@checked
def dropout(
    inner: Algorithm,
    *,
    rate: Share | Real[AnyArray, "*rounds N"] | Sequence[float] | Sequence[Sequence[float]],
) -> Algorithm:
    """A selected client does not answer with probability ``rate``, independently in every round.

    Args:
      inner: any algorithm.
      rate: one probability, one per client id ``[N]``, or one per round and client id ``[rounds, N]``; round t uses row
        ``t % rounds``.

    Returns:
      The algorithm. The record ``cohort_present`` marks the clients that answered. Nested dropouts draw independently,
      so a client answers with probability ``(1 - rate_1) (1 - rate_2)``.

    Raises:
      ValueError: if ``rate`` is a number outside [0, 1], or an array for another number of clients.
    """
    probability, number = jnp.asarray(rate), key_number(inner, "dropout", DROPOUT)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        population = available.population
        if probability.ndim > 2 or probability.shape[-1:] not in ((), (population,)) or probability.size == 0:
            raise ValueError(
                f"expected rate to be one number or one for each of {population} clients, or a table of as many "
                f"columns with a row for each round, got shape {probability.shape}"
            )
        now = probability[round % probability.shape[0]] if probability.ndim == 2 else probability
        server, cohort, info = inner.select(key, round, server, ballots, available)
        drawn = jax.random.uniform(jax.random.fold_in(key, number), (population,), jnp.float32)
        return server, _only(cohort, drawn >= now), info

    return inner._replace(select=select, scenarios=applied_scenarios(inner, "dropout"))


@checked
def availability(
    inner: Algorithm,
    *,
    trace: Shaped[AnyArray, "*rounds N"] | Sequence[Any] | str | os.PathLike[str],
    announced: bool = False,
) -> Algorithm:
    """A client can answer in the rounds that a trace gives: where ``trace[round % rounds, id]`` is true.

    Args:
      inner: any algorithm.
      trace: ``[rounds, N]`` of bools or zeros and ones, or the path of a .npy or .csv file with this table. The trace
        repeats if the run is longer.
      announced: whether the server knows the trace before it selects. If not, the server selects from all clients, and
        absent clients do not answer.

    Returns:
      The algorithm.

    Raises:
      ValueError: if the trace is not a table of zeros and ones with one column per client, or cannot be read.
    """
    try:
        table = _read(trace) if isinstance(trace, str | os.PathLike) else _table(trace)
    except (TypeError, ValueError) as error:
        if isinstance(trace, str | os.PathLike):
            raise
        raise ValueError(f"expected a trace of numbers, with as many in each round, got {trace!r}") from error
    if table.ndim != 2 or table.shape[0] == 0:
        raise ValueError(f"expected a trace [rounds, clients], got shape {table.shape}")
    check_flags("trace", table)
    table = table != 0

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        if table.shape[1] != available.population:
            raise ValueError(f"expected a trace of {available.population} clients, got {table.shape[1]}")
        answers = table[round % table.shape[0]]
        if announced:
            return inner.select(key, round, server, ballots, available.only(answers))
        server, cohort, info = inner.select(key, round, server, ballots, available)
        return server, _only(cohort, answers), info

    return inner._replace(select=select, scenarios=applied_scenarios(inner, "availability"))


def _table(trace: ArrayLike | Sequence[Any]) -> Array:
    # A list may hold tracers, which NumPy does not take.
    return jnp.asarray(trace if isinstance(trace, jax.Array | list | tuple) else np.asarray(trace))


def _only(cohort: Cohort, answers: Bool[Array, " N"]) -> Cohort:
    return cohort._replace(present=cohort.present & answers[jnp.clip(cohort.id, 0, answers.shape[0] - 1)])


def _read(path: str | os.PathLike[str]) -> Array:
    file = pathlib.Path(path)
    try:
        table = np.load(file) if file.suffix == ".npy" else np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"expected a trace in a .npy or .csv file, got {str(file)!r} ({error})") from None
    return jnp.asarray(table)


DROPOUT_ENTRY = Entry(dropout, "selected clients do not answer with some probability", {"rate": 0.3})
AVAILABILITY_ENTRY = Entry(
    availability,
    "selected clients answer in the rounds that a table gives",
    {"trace": ((1, 1, 0, 1, 1), (0, 1, 1, 1, 1))},
)
