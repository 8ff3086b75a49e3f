"""Aggregation as a sum: each client's part of the sums, and the server's step from the total.

Each update of a round is added to the sums as soon as it is computed, so the memory of a round does not grow with the
cohort.

A plain function of a whole cohort is an aggregation, too: ``as_streamed`` records every message. Algorithms that need
all updates are ``qffl`` (powers of losses relative to the largest), ``iafl`` and ``cgsv_iafl`` (one sum for each client
would cost more to carry than the updates), ``cgsv``, ``rank``, ``ipfl``, ``fedfomo``, ``weighted`` and ``learnt``.
``standalone`` aggregates nothing.

Sums are in float32 or wider. ``divided`` gives 0 for a division by 0. Its derivative does not form ``by**-2`` as JAX's
does, which is 0 in float32 from about 1e19 on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fljax.core import trees
from fljax.protocol.algorithm import Aggregate, Info, Round, Seat, seen_from


class Part(NamedTuple):
    """What one client adds to the sums of a round.

    Attributes:
      value: a pytree of floating leaves ``[...]``.
      weight: ``[]``, or ``[R]`` for R sums (one per cluster, for example). NaN in a value whose weights are all 0 is
        ignored.
    """

    value: PyTree
    weight: float | Array = 1.0


class Total(NamedTuple):
    """The sums of a round, in float32 or wider.

    Attributes:
      value: ``sum_s weight_s * value_s``: leaves ``[...]``, or ``[R, ...]`` if weights are ``[R]``.
      weight: ``sum_s weight_s``, ``[]`` or ``[R]``.
    """

    value: PyTree
    weight: Array


@runtime_checkable
class Contribute(Protocol):
    """ONE ``(server, seat, up) -> (Part, Row)``: what this client adds to the sums, and its record (any pytree).

    ``PerClient`` and ``Exchanged`` parts of ``server`` hold the client's own row.
    """

    def __call__(self, server: PyTree, seat: Seat, up: PyTree, /) -> tuple[Part, PyTree]: ...


@runtime_checkable
class Finish(Protocol):
    """``(server, total, rows, round) -> (Server, Info)``: the server's step from a round's sums.

    ``rows`` are the clients' records ``[S, ...]`` by row of ``round.cohort``; empty rows are zeros.
    """

    def __call__(self, server: PyTree, total: Total, rows: PyTree, round: Round, /) -> tuple[PyTree, Info]: ...


class Streamed(NamedTuple):
    """Aggregation of the cohort's messages, client by client.

    Each present client s gives ``(part_s, row_s) = contribute(server, seat_s, up_s)``; ``finish`` receives
    ``sum_s weight_s * value_s``, ``sum_s weight_s`` and the rows. The engine adds up the parts while the cohort trains.
    It ignores absent clients, even if their values are NaN. ``select`` may write values that all clients of a round
    need into the server.

    Attributes:
      contribute: see Contribute.
      finish: see Finish.
      stacked: whether values hold several models along their first axis, of which each is an update by itself.
    """

    contribute: Contribute
    finish: Finish
    stacked: bool = False

    def __call__(self, server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        """The same aggregation of a whole cohort at once, as an ``Aggregate`` with ``up`` [S, ...]."""
        cohort = round.cohort

        def one(id: Array, slot: Array, up: PyTree) -> tuple[Part, PyTree]:
            seat = Seat(round.number, id, slot)
            return self.contribute(seen_from(server, seat), seat, up)

        parts, rows = jax.vmap(one)(cohort.id, cohort.slot, up)
        rows = trees.where_rows(cohort.present, rows, trees.zeros_like(rows))
        return self.finish(server, add_up(parts, cohort.present), rows, round)


def as_streamed(aggregate: Streamed | Aggregate) -> Streamed:
    """Any aggregation as a ``Streamed``. A ``Streamed`` is returned unchanged.

    For an ``Aggregate``, each client's record is its whole message, so ``finish`` reads the messages from ``rows``. The
    sums hold only the number of clients.
    """
    if isinstance(aggregate, Streamed):
        _check_arguments("finish", aggregate.finish, ("server", "total", "rows", "round"))
        return aggregate
    _check_arguments("aggregate", aggregate, ("server", "up", "round"))

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        return Part(()), up

    def finish(server: PyTree, total: Total, rows: PyTree, round: Round) -> tuple[PyTree, Info]:
        return aggregate(server, rows, round)

    return Streamed(contribute, finish)


def _check_arguments(name: str, function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    """Raises a ValueError unless a user's function can be called with the expected arguments, by position."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function of another language, or of no function
        return
    parameters = signature.parameters.values()
    try:
        signature.bind(*expected)
        if next(iter(parameters)).name != "key":  # the first argument until fljax 0.2, perhaps before a ``*rest``
            return
    except TypeError:
        pass
    names = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    got = signature.replace(parameters=names, return_annotation=inspect.Signature.empty)
    raise ValueError(
        f"expected {name} to take ({', '.join(expected)}), got {got}; round has the fields {', '.join(Round._fields)}"
    )


def within(
    aggregate: Streamed | Aggregate, unwrap: Callable[[PyTree], PyTree], rewrap: Callable[[PyTree, PyTree], PyTree]
) -> Streamed:
    """``aggregate`` in a larger Server: ``unwrap(server)`` extracts its Server, ``rewrap(server, own)`` replaces it."""
    inner = as_streamed(aggregate)

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        return inner.contribute(unwrap(server), seat, up)

    def finish(server: PyTree, total: Total, rows: PyTree, round: Round) -> tuple[PyTree, Info]:
        inner_server, info = inner.finish(unwrap(server), total, rows, round)
        return rewrap(server, inner_server), info

    return inner._replace(contribute=contribute, finish=finish)


def add_up(parts: Part, present: Bool[Array, " L"]) -> Total:
    """The sums of present clients over the leading axis of ``parts``, with weights ``[L]`` or ``[L, R]``."""
    # One matrix product for each leaf, of the highest precision, in float32 or wider.
    weight = trees.wide(parts.weight)
    if weight.ndim not in (1, 2):
        raise ValueError(f"expected a weight of one number or [R] for each client, got shape {weight.shape[1:]}")
    for leaf in jax.tree.leaves(parts.value):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(f"expected floating leaves to add up, got a leaf of dtype {leaf.dtype}")
    weight = jnp.where(present.reshape(-1, *[1] * (weight.ndim - 1)), weight, 0)

    def summed(leaf: Array) -> Array:
        total = trees.combine(weight.T.astype(trees.wide(leaf).dtype), leaf.reshape(leaf.shape[0], -1))
        return total.reshape(*weight.shape[1:], *leaf.shape[1:])

    return Total(jax.tree.map(summed, parts.value), jnp.sum(weight, axis=0))


def mean(total: Total) -> PyTree:
    """``value / weight``: the weighted mean of the clients' values; zeros where the weight is zero.

    The mean is in float32 or wider, like the sums; ``trees.add_scaled`` adds it to a model in the model's dtype.
    """
    return divided(total.value, total.weight)


def divided(value: PyTree, by: float | Array) -> PyTree:
    """``value / by``, zeros where ``by`` is zero; ``by`` is ``[]``, or ``[R]`` for leaves ``[R, ...]``.

    See ``trees.ratio``.
    """
    by = jnp.asarray(by)

    def divide(leaf: Array) -> Array:
        divisor = by.astype(leaf.dtype).reshape(by.shape + (1,) * (leaf.ndim - by.ndim))
        return trees.ratio(leaf, divisor)

    return jax.tree.map(divide, value)
