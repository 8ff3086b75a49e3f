"""Estimators that look at the rounds of one run: what they see, what they keep, and how a record is played to them.

``begin``, ``observe`` and ``estimate_of`` of an ``Estimator`` work under ``jit``, ``vmap`` and ``scan``, inside a round
or over a record (``estimate_run``), as its memory has fixed shapes. Absent rows are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.contributions.solutions import LARGEST, Value, members_of, value_table
from fljax.contributions.value_functions import coalition_value
from fljax.core import trees
from fljax.core.names import check_unlabelled

Utility = Callable[[PyTree], Any]


class Cost(NamedTuple):
    """What an estimate took, as whole numbers; under ``jit`` arrays ``[]``.

    Attributes:
      trainings: different coalitions that were trained.
      evaluations: models that were evaluated, or coalitions whose value was asked for.
      gradients: gradients on validation rows.
    """

    trainings: Any = 0
    evaluations: Any = 0
    gradients: Any = 0


class Observation(NamedTuple):
    """What an estimator may see of one round; S rows of a cohort.

    Attributes:
      model: leaves ``[...]``, the server's model ``w^t`` before the round.
      updates: leaves ``[S, ...]``, ``Delta_i``, each new minus old.
      weights: ``[S]``, ``a_i``, not negative, of any sum.
      present: ``[S]``.
      ids: ``[S]``, client ids from 0 to N - 1, different where present.
      server_rate: ``eta_g``: the server adds ``eta_g sum_i a_i Delta_i / sum_i a_i``.
      gradient: leaves ``[...]``, the gradient of the validation loss at ``w^t``; None where nobody needs it.
      next_gradient: the same at ``w^{t+1}``.
      key: random, of this round.
      members: ``[N]``, who belongs to the federation; None: all. Others count in no number of clients.
    """

    model: PyTree
    updates: PyTree
    weights: Float[Array, " S"]
    present: Bool[Array, " S"]
    ids: Int[Array, " S"]
    server_rate: float | Array = 1.0
    gradient: PyTree = None
    next_gradient: PyTree = None
    key: Key[Array, ""] | None = None
    members: Bool[Array, " N"] | None = None


def no_memory(model: PyTree, clients: int, rounds: int) -> tuple[()]:
    return ()


class Estimator(NamedTuple):
    """Functions of one estimator.

    Attributes:
      start: ``(model, clients, rounds) -> memory``, a pytree of fixed shapes.
      observe: ``(memory, observation, round) -> (memory, row, cost)`` with ``row`` ``[S]``: what the round says of each
        client. Updates and weights of absent rows are 0.
      worth: ``(memory, total) -> [N]``, where ``total`` ``[N]`` has the sums of ``row`` by id; None: these sums.
      ends: ``clients -> Cost`` of ``worth``.
      details: ``memory -> dict`` of further arrays.
    """

    start: Callable[[PyTree, int, int], Any]
    observe: Callable[[Any, Observation, Array], tuple[Any, Array, Cost]]
    worth: Callable[[Any, Array], Array] = lambda memory, total: total
    ends: Callable[[int], Cost] = lambda clients: Cost()
    details: Callable[[Any], dict[str, Any]] = lambda memory: {}


class State(NamedTuple):
    """What is known after some rounds.

    Attributes:
      round: ``[]``, number of rounds.
      total: ``[N]``, sums over rounds by id.
      seen: ``[N]``, who has taken part.
      cost: of all rounds.
      memory: the estimator's own.
    """

    round: Int[Array, ""]
    total: Float[Array, " N"]
    seen: Bool[Array, " N"]
    cost: Cost
    memory: PyTree


class Estimate(NamedTuple):
    """What clients are worth, by an estimator.

    Attributes:
      worth: ``[N]``, larger for larger contributions; NaN for a client of which nothing is known.
      by_round: ``[T, N]``, what each round said; 0 for absent clients. None if the estimator has no rounds.
      error: ``[N]``, standard errors of sampling; None if the estimator does not sample, or has none.
      cost: of all.
      details: further arrays by name, see the estimator.
    """

    worth: Any
    by_round: Any = None
    error: Any = None
    cost: Cost = Cost()
    details: Any = {}


class RunRecord(NamedTuple):
    """One full run of T rounds with S rows in each.

    Attributes:
      models: leaves ``[T + 1, ...]``, before each round and after the last one.
      updates: leaves ``[T, S, ...]``, each new minus old.
      weights: ``[T, S]``, ``a_i``, not negative.
      present: ``[T, S]``; None: all.
      ids: ``[T, S]``; None: 0..S-1 in every round.
      server_rate: ``eta_g``, a number or ``[T]``.
      gradients: leaves ``[T + 1, ...]``, of the validation loss at ``models`` (``validation_gradients``); None:
        unknown.
    """

    models: PyTree
    updates: PyTree
    weights: Float[Array, "T S"]
    present: Bool[Array, "T S"] | None = None
    ids: Int[Array, "T S"] | None = None
    server_rate: float | Array = 1.0
    gradients: PyTree = None


def validation_gradients(record: RunRecord, loss: Callable[[PyTree], Any]) -> RunRecord:
    """The record with ``gradients``: those of ``loss`` (``params -> number``, on validation rows) at all its models."""
    return record._replace(gradients=jax.lax.map(jax.grad(loss), record.models))


def begin(estimator: Estimator, model: PyTree, clients: int, rounds: int) -> State:
    """The state before the first of ``rounds`` rounds with N ``clients``."""
    nothing = jnp.zeros(clients, jnp.result_type(float))
    cost = Cost(*(jnp.zeros((), int) for _ in Cost._fields))
    return State(jnp.zeros((), int), nothing, nothing > 0, cost, estimator.start(model, clients, rounds))


def observe(estimator: Estimator, state: State, observation: Observation) -> tuple[State, Float[Array, " N"]]:
    """The state after one more round, and what this round said ``[N]`` by id, 0 for absent clients."""
    here = observation.present
    seen_now = observation._replace(
        updates=trees.where_rows(here, observation.updates, trees.zeros_like(observation.updates)),
        weights=jnp.where(here, trees.wide(observation.weights), 0),
    )
    memory, row, cost = estimator.observe(state.memory, seen_now, state.round)
    by_client = trees.add_rows(jnp.zeros_like(state.total), observation.ids, here, row.astype(state.total.dtype))
    seen = trees.set_rows(state.seen, observation.ids, here, True)
    cost = Cost(*(a + jnp.asarray(b, a.dtype) for a, b in zip(state.cost, cost, strict=True)))
    return State(state.round + 1, state.total + by_client, seen, cost, memory), by_client


def estimate_of(estimator: Estimator, state: State) -> Estimate:
    """The estimate after the rounds that a state has seen."""
    worth = trees.or_nan(state.seen, estimator.worth(state.memory, state.total))
    cost = Cost(*(a + b for a, b in zip(state.cost, estimator.ends(state.total.shape[0]), strict=True)))
    return Estimate(worth, None, None, cost, estimator.details(state.memory))


def estimate_run(
    estimator: Estimator, record: RunRecord, *, clients: int | None = None, key: Key[Array, ""] | None = None
) -> Estimate:
    """Plays all rounds of a record to an estimator; works under ``jit``.

    Args:
      estimator: from a builder of this package.
      record: of one run.
      clients: N; None: the number S of rows.
      key: for estimators that draw; round t folds t into it.

    Raises:
      ValueError: if arrays of the record have other shapes.
    """
    check_unlabelled("values", record)
    rounds, rows = jnp.shape(record.weights)
    for name, tree, shape in (
        ("models", record.models, (rounds + 1,)),
        ("updates", record.updates, (rounds, rows)),
        ("present", record.present, (rounds, rows)),
        ("ids", record.ids, (rounds, rows)),
        ("gradients", record.gradients, (rounds + 1,)),
    ):
        for leaf in jax.tree.leaves(tree):
            if jnp.shape(leaf)[: len(shape)] != shape:
                raise ValueError(f"expected {name} to begin with the axes {shape}, got shape {jnp.shape(leaf)}")
    clients = rows if clients is None else clients
    present = jnp.ones((rounds, rows), bool) if record.present is None else jnp.asarray(record.present)
    ids = jnp.broadcast_to(jnp.arange(rows), (rounds, rows)) if record.ids is None else jnp.asarray(record.ids)
    before, after = (
        jax.tree.map(lambda leaf, s=s: jnp.asarray(leaf)[s], (record.models, record.gradients))
        for s in (slice(-1), slice(1, None))
    )
    observations = Observation(
        before[0],
        jax.tree.map(jnp.asarray, record.updates),
        trees.wide(record.weights),
        present,
        ids,
        jnp.broadcast_to(jnp.asarray(record.server_rate, jnp.result_type(float)), (rounds,)),
        before[1],
        after[1],
        None if key is None else jax.vmap(lambda t: jax.random.fold_in(trees.as_key(key), t))(jnp.arange(rounds)),
    )
    state = begin(estimator, trees.take(record.models, 0), clients, rounds)
    state, by_round = jax.lax.scan(lambda state, seen: observe(estimator, state, seen), state, observations)
    return estimate_of(estimator, state)._replace(by_round=by_round)


def round_game(utility: Utility, seen: Observation) -> Value:
    """``U(w_S)`` with ``w_S = w^t + eta_g sum_{i in S} a_i Delta_i / sum_{i in S} a_i``; ``w^t`` without weight."""

    def loss(step: PyTree) -> Any:
        return -utility(trees.add_scaled(seen.model, step, seen.server_rate))

    return coalition_value(seen.updates, trees.widened(trees.zeros_like(seen.model)), loss, seen.weights)


def round_table(utility: Utility, seen: Observation, batch_size: int | None) -> Float[Array, " coalitions"]:
    """``U(w_S) - U(w^t)`` of all coalitions of the rows of a cohort; absent rows change nothing."""
    rows = seen.present.shape[0]
    check_rows(rows)
    found = value_table(round_game(utility, seen), jnp.asarray(members_of(rows)), batch_size)
    return found - found[0]


def check_rows(rows: int) -> None:
    """Refuses more rows than have a table of all coalitions."""
    if rows > LARGEST:
        raise ValueError(f"expected at most {LARGEST} clients for all 2^N coalitions, got {rows}")


def products(rows: PyTree, other: PyTree) -> Float[Array, " S"]:
    """``<rows_s, other_s>`` over all leaves; ``other`` has leaves ``[S, ...]`` or ``[1, ...]``."""

    def one(a: Any, b: Any) -> Array:
        a, b = trees.wide(a), trees.wide(b)
        return jnp.sum(a * b, axis=tuple(range(1, a.ndim)))

    found = jax.tree.leaves(jax.tree.map(one, rows, other))
    return sum(found[1:], jnp.asarray(found[0]))


def cosines(rows: PyTree, weights: Float[Array, " S"], *, others: bool = False) -> Float[Array, " S"]:
    """``cos(rows_s, sum_r weights_r rows_r)``, 0 where a vector is 0; ``others`` leaves row s out of the sum."""
    # A sum that is 0 but for the rounding of its terms is 0, also where other rows cancel each other.
    count = weights.shape[0]
    parts = jnp.where(jnp.eye(count, dtype=bool), 0, weights[None]) if others else weights[None]

    def one(leaf: Any) -> Array:
        leaf = trees.wide(leaf)
        return jnp.tensordot(parts.astype(leaf.dtype), leaf, 1, precision="highest")

    total = jax.tree.map(one, rows)
    own, length = trees.root(products(rows, rows)), trees.root(products(total, total))
    terms = jnp.matmul(jnp.abs(parts.astype(own.dtype)), own, precision="highest")
    rounding = count * jnp.finfo(own.dtype).eps * terms
    return trees.ratio(products(rows, total), own * jnp.where(length <= rounding, 0, length))
