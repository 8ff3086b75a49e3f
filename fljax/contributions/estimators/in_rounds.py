"""Contributions that the server computes from the updates of each round, while it trains.

``begin_contributions`` and ``observe_contributions`` work on arrays alone; ``fljax.algorithms.measuring`` gives them
the server's rows, the task and the cohort. IAFL leaves the measure open (section 4.2). The memory is CGSV's (Xu et al.,
NeurIPS 2021, Algorithm 1). Shutting clients out is what IAFL's appendix F, question 3, proposes, by the rule of RFFL
(Xu and Lyu, 2021), whose reputations are shares of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax.contributions.estimators.reconstructed import completed_shapley_so_far
from fljax.contributions.estimators.registry import ESTIMATORS, NEEDS, Entry
from fljax.contributions.estimators.rounds import Cost, Estimator, Observation, State, begin, no_memory, observe
from fljax.core import trees, users
from fljax.core.names import name_of, unknown
from fljax.core.values import CountOrZero, Share, arguments_for, is_required, parameters_of

# What a round offers to an estimator; see ``NEEDS``.
OFFERED = frozenset(
    {"individual", "utility", "accuracy", "gradient", "next gradient", "head", "all coalitions", "random"}
)
# Parameters of estimators and of one's own functions that a round gives.
ROUND_FACTS = ("updates", "weights", "present", "ids", "kept", "utility", "head")


def lacking(entry: Entry) -> str:
    """What an estimator needs that a round does not have, in words; "" if it can run inside a round."""
    missing = [NEEDS[need] for need in entry.needs if need not in OFFERED]
    if missing:
        return f"which needs {missing[0]}"
    return "" if entry.by_round else "which says nothing of single rounds"


# The estimators that can run inside a round, by name: their builders. ``completed_shapley`` remembers so many rounds as
# its option ``rounds`` says.
ROUND_MEASURES: dict[str, Callable[..., Any]] = {
    name: entry.function for name, entry in ESTIMATORS.items() if not lacking(entry)
} | {"completed_shapley": completed_shapley_so_far}


class RoundMeasure(NamedTuple):
    """A contribution that the server computes in every round, and what becomes of it.

    A client that takes part in a round and has the score ``s_k`` in it gets ``r_k <- memory r_k + (1 - memory) s_k``,
    CGSV's recursion with alpha = ``memory``, from ``r_k = 0``; or ``memory r_k + s_k``, if contributions are
    accumulated, as IAFL's appendix A proposes. Absent clients keep theirs, and so does a client whose score is not
    finite. ``r_k`` is the client's contribution.

    Attributes:
      measure: a name in ``ROUND_MEASURES``; or a function ``(updates, weights, present) -> [S]`` of the S rows of a
        cohort: leaves ``[S, ...]``, each new minus old, ``[S]`` and ``[S]``. Absent rows are zeros, and their scores
        are not read. It is traced. One that asks for ``ids`` gets the rows' client ids, too. One that asks for ``kept``
        returns ``(scores, kept)``. Its parameter ``kept`` is what it returned last round, arrays of fixed shapes and
        types. Before the first round it is ``default(clients)``, so the default is a function, e.g. ``jnp.zeros``.
      memory: alpha, from 0 to 1; 0: the contribution is the score of the client's last round. None: 1 if contributions
        are accumulated, else 0.
      filter_below: a client whose contribution is below this share of the mean leaves for good: its update is in no
        mean, it gets no reward and is not selected any more. The mean is over clients that have taken part and did not
        leave; while it is not positive, nobody leaves. None: nobody leaves.
      filter_after: number of rounds in which a client takes part before it may leave.
      rows: the server's rows for estimators that judge models, a name in ``federation.held``.
      judged_by: by what they judge them: "accuracy", or "loss" (its negative).
      options: further arguments of the estimator or the function.
      accumulated: whether scores add up; with the ``memory`` of 1 to their plain sum.
    """

    measure: str | Callable[..., Any] = "cosine"
    memory: Share | None = None
    filter_below: Share | None = None
    filter_after: CountOrZero = 0
    rows: str = "validation"
    judged_by: Literal["accuracy", "loss"] = "accuracy"
    options: Mapping[str, Any] = {}
    accumulated: bool = False


class Contributions(NamedTuple):
    """What the server knows of its clients' contributions; a part of its state.

    Attributes:
      contribution: ``[N]``, ``r_k``; 0 before a client's first round.
      rounds: ``[N]``, in how many rounds a client took part.
      filtered: ``[N]``, who was shut out.
      state: the estimator's.
    """

    contribution: Float[Array, " N"]
    rounds: Int[Array, " N"]
    filtered: Bool[Array, " N"]
    state: State


def is_round_measure(measure: Any) -> bool:
    """Whether a function measures contributions in rounds: an estimator, or a function that asks for ``updates``."""
    return measure in ROUND_MEASURES.values() or (callable(measure) and "updates" in parameters_of(measure))


def as_round_measure(chosen: Any) -> RoundMeasure | None:
    """A name in ``ROUND_MEASURES``, a function or a RoundMeasure as the latter; None for everything else."""
    if isinstance(chosen, RoundMeasure):
        return chosen
    named = isinstance(chosen, str) and chosen in ROUND_MEASURES
    return RoundMeasure(chosen) if named or callable(chosen) else None


def needs_of(chosen: RoundMeasure) -> tuple[str, ...]:
    """What the measure needs, names in ``NEEDS``; a ValueError if there is none, or it cannot run inside a round."""
    if not isinstance(chosen.measure, str):  # a function
        return ("individual",)
    if chosen.measure not in ESTIMATORS:
        raise ValueError(f"{unknown('measure', chosen.measure, ROUND_MEASURES)}; or a function of the updates")
    entry = ESTIMATORS[chosen.measure]
    if chosen.measure not in ROUND_MEASURES and (missing := lacking(entry)):
        raise ValueError(
            f"expected a measure that a round can compute, got {chosen.measure!r}, {missing}; valid names are "
            f"{', '.join(ROUND_MEASURES)}"
        )
    return entry.needs


def estimator_of(chosen: RoundMeasure, facts: Mapping[str, Any]) -> Estimator:
    """The estimator of a measure.

    Args:
      chosen: the measure.
      facts: ``utility`` and ``head``, for estimators that ask for them.

    Raises:
      ValueError: if there is no such measure, it cannot run inside a round, or its options are not its own.
    """
    needs_of(chosen)
    if isinstance(chosen.measure, str):
        build = ROUND_MEASURES[chosen.measure]
        given = arguments_for(build, facts, chosen.options)
        if missing := [name for name in parameters_of(build) if is_required(build, name) and name not in given]:
            raise ValueError(f"expected the option {missing[0]} for the measure {chosen.measure!r}, got none")
        return build(**given)
    return _of_function(chosen.measure, chosen.options)


def _of_function(function: Callable[..., Any], options: Mapping[str, Any]) -> Estimator:
    """An estimator whose row is ``function(updates, weights, present, **options)``; see ``RoundMeasure``."""
    kind, form, asked = "the measure", "(updates, weights, present, ...)", parameters_of(function)
    keeps = "kept" in asked and "kept" not in options

    first: Any = asked["kept"].default if keeps and not is_required(function, "kept") else None
    if keeps and not callable(first):
        raise ValueError(
            f"expected the default of kept of {kind} {name_of(function)} to be a function of the number of clients, "
            f"e.g. jnp.zeros, got {first!r}"
        )

    def arrays(kept: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), kept)  # no weak types

    def start(model: PyTree, clients: int, rounds: int) -> Any:
        return arrays(users.call("the default of kept,", "(clients)", first, clients))

    def row_of(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        facts = {"ids": seen.ids, "kept": memory}
        offered = {name: facts[name] for name in facts if name in asked and name not in options}
        found = users.call(kind, form, function, seen.updates, seen.weights, seen.present, **offered, **options)
        if keeps:
            if not isinstance(found, tuple) or len(found) != 2:
                raise users.refused(kind, function, "scores and what it keeps", found)
            found, kept = found[0], arrays(found[1])
            after, before = (jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", each) for each in (kept, memory))
            if before != after:
                raise ValueError(
                    f"expected {kind} {name_of(function)} to keep arrays of the same shapes and types, got {after} "
                    f"after {before}"
                )
            memory = kept
        wanted = f"one score for each of {seen.present.shape[0]} rows"
        return memory, users.numbers(kind, function, wanted, found, seen.present.shape), Cost()

    return Estimator(start if keeps else no_memory, row_of)


def begin_contributions(estimator: Estimator, model: PyTree, clients: int) -> Contributions:
    """The state before round 0 of N ``clients``."""
    nothing = jnp.zeros(clients, jnp.result_type(float))
    state = begin(estimator, model, clients, 0)
    return Contributions(nothing, jnp.zeros(clients, jnp.int32), jnp.zeros(clients, bool), state)


def observe_contributions(
    chosen: RoundMeasure,
    estimator: Estimator,
    before: Contributions,
    seen: Observation,
    members: Bool[Array, " N"] | None = None,
) -> tuple[Contributions, Float[Array, " N"]]:
    """The contributions after one more round, and its scores.

    Args:
      chosen: the measure, with its memory and its filter.
      estimator: of the measure.
      before: the contributions before the round.
      seen: the round. Rows of clients that were shut out are absent.
      members: ``[N]``, who belongs to the federation; None: all. Others count in no mean.

    Returns:
      The contributions, unchanged after a round without clients; and ``[N]``, the scores of this round, NaN for clients
      without one.
    """
    seen = seen._replace(present=seen.present & ~before.filtered[seen.ids], members=members)
    state, score = observe(estimator, before.state, seen)
    here = trees.set_rows(jnp.zeros_like(before.filtered), seen.ids, seen.present, True)
    scored = here & jnp.isfinite(score)
    score = jnp.where(scored, score, 0)
    alpha = float(chosen.accumulated) if chosen.memory is None else chosen.memory
    memory = jnp.asarray(alpha, score.dtype)
    share = jnp.ones_like(memory) if chosen.accumulated else 1 - memory
    contribution = jnp.where(scored, memory * before.contribution + share * score, before.contribution)
    rounds = before.rounds + here
    filtered = before.filtered
    if chosen.filter_below is not None:
        counted = (rounds > 0) & ~filtered if members is None else (rounds > 0) & ~filtered & members
        mean = trees.ratio(jnp.sum(jnp.where(counted, contribution, 0)), jnp.sum(counted))
        low = contribution < jnp.asarray(chosen.filter_below, mean.dtype) * mean
        filtered = filtered | (here & (mean > 0) & low & (rounds > chosen.filter_after))
    after = Contributions(contribution, rounds, filtered, state)
    return trees.where(jnp.any(seen.present), after, before), trees.or_nan(scored, score)


def remaining(contributions: Contributions, members: Bool[Array, " N"] | None) -> Bool[Array, " N"]:
    """The members ``[N]`` that were not shut out."""
    left = jnp.logical_not(contributions.filtered)
    return left if members is None else members & left
