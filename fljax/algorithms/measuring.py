"""Contributions in rounds, for any algorithm that has the updates of single clients in its ``aggregate``.

An algorithm keeps ``Contributions`` in its Server: ``measured_from`` makes them for ``init_server``, and
``measured_in`` takes a round in ``aggregate``. ``fljax.contributions.estimators.in_rounds`` has the arithmetic.
``with_contributions`` records them beside an algorithm that does not use them.

A model that the server judges is its own model plus updates. Statistics of an update count in no direction; in a model
they move as those of the algorithm do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import aggregators, training
from fljax.contributions.estimators.in_rounds import (
    Contributions,
    RoundMeasure,
    as_round_measure,
    begin_contributions,
    estimator_of,
    needs_of,
    observe_contributions,
)
from fljax.contributions.estimators.registry import NEEDS
from fljax.contributions.estimators.rounds import Observation
from fljax.core import trees
from fljax.protocol import Algorithm, Available, Census, Cohort, Info, Labelled, Round, Seat, Subset, Task, along, roles
from fljax.protocol.sums import Streamed

# The stream of the aggregation's key; IAFL's draws fold ids of clients and 2**31 - 1 into the same key.
_MEASURE = 2**31 - 2


class Sample(NamedTuple):
    """The updates of a cohort, for a measure.

    Attributes:
      model: leaves ``[...]``, the server's model before the round.
      update: leaves ``[S, ...]``, new minus old; statistics relative to ``model``.
      weight: ``[S]``, not negative, of any sum: how clients count in the server's step.
    """

    model: PyTree
    update: PyTree
    weight: Float[Array, " S"]


class Observed(NamedTuple):
    """The Server of ``with_contributions``: that of the algorithm, and the contributions.

    ``members`` are the clients that belong to the federation in this round; None: all, in all rounds.
    """

    inner: PyTree
    contributions: Contributions
    members: Bool[Array, " N"] | None = None


def with_contributions(
    algorithm: Algorithm, measure: str | Callable[..., Any] | RoundMeasure = "cosine", *, stacked: bool = False
) -> Algorithm:
    """An algorithm whose rounds also record what its clients contribute, and may shut clients out.

    The algorithm does not use the contributions, and without ``filter_below`` its results do not change. Clients that
    are shut out are absent in all later rounds, and their updates of the round in which it happens are left out. A
    client that left the federation counts in no number and no mean of clients.

    Args:
      algorithm: one with a global model, whose clients send an ``update`` of it.
      measure: a name in ``fljax.contributions.ROUND_MEASURES``, a function or a ``RoundMeasure``. Clients count in it
        by the ``weight`` that the algorithm records for each row of a round; equally if it records none.
      stacked: whether a round may hold all updates of its cohort, where the algorithm adds them up one by one.

    Returns:
      The algorithm. Info by client, beside its own: ``contribution``, ``score`` and, with a filter, ``filtered``.

    Raises:
      ValueError: if there is no such measure, the algorithm has no global model, sends no update or adds updates up;
        and (in a run) if the server lacks the rows that the measure needs.
    """
    task, chosen = algorithm.task, as_round_measure(measure)
    chosen = RoundMeasure(str(measure)) if chosen is None else chosen
    check_measure(chosen, task)
    common = algorithm.common
    if common is None:
        raise ValueError("expected an algorithm with a global model for contributions in rounds, got one without")
    if isinstance(algorithm.aggregate, Streamed) and not stacked:
        raise ValueError(
            f"expected an algorithm that keeps {NEEDS['individual']}, for contributions in rounds, got one that adds "
            "them up one by one; stacked = True keeps those of a round"
        )

    def model_of(server: PyTree) -> PyTree:
        zero = jnp.zeros((), jnp.int32)
        return common(algorithm.down(server, Seat(zero, zero, zero)))

    def init_server(key: Key[Array, ""], census: Census) -> Observed:
        inner = algorithm.init_server(key, census)
        return Observed(inner, measured_from(chosen, task, model_of(inner), census), census.members)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: Observed, ballots: PyTree, available: Available
    ) -> tuple[Observed, Cohort, Info]:
        members = available.members if server.members is None else available.member()
        if chosen.filter_below is not None:
            available = available.only(~server.contributions.filtered)
        inner, cohort, info = algorithm.select(key, round, server.inner, ballots, available)
        return server._replace(inner=inner, members=members), cohort, info

    def aggregate(server: Observed, up: PyTree, round: Round) -> tuple[Observed, Info]:
        if not hasattr(up, "update"):
            raise ValueError("expected clients that send an update, for contributions in rounds, got other messages")
        _, info = algorithm.aggregate(server.inner, up, round)
        weight = _weight_of(info, round.cohort)
        sample = Sample(model_of(server.inner), up.update, weight)
        contributions, measured = measured_in(chosen, task, server.contributions, sample, round, server.members)
        if chosen.filter_below is not None:
            cohort = round.cohort
            cohort = cohort._replace(present=cohort.present & ~contributions.filtered[cohort.id])
            round = round._replace(cohort=cohort)
        inner, info = algorithm.aggregate(server.inner, up, round)
        return Observed(inner, contributions, server.members), {**info, **measured}

    models, counts, peers = algorithm.models, algorithm.counts, algorithm.peers
    return algorithm._replace(
        init_server=init_server,
        send=lambda server, seat: algorithm.send(server.inner, seat),
        aggregate=aggregate,
        select=select,
        models=None if models is None else lambda server: models(server.inner),
        counts=None if counts is None else lambda server, seat: counts(server.inner, seat),
        peers=None if peers is None else lambda server, seat: peers(server.inner, seat),
    )


def _weight_of(info: Info, cohort: Cohort) -> Float[Array, " S"]:
    """The weights that an algorithm records for the rows of a cohort, or ones."""
    weight = info.get("weight")
    if isinstance(weight, Labelled) and weight.dimensions == ("row",):
        return trees.wide(weight.values)
    return jnp.ones(cohort.present.shape, jnp.result_type(float))


def check_measure(measure: RoundMeasure, task: Task) -> None:
    """Raises a ValueError if there is no such measure, or the task lacks what it needs."""
    needs = needs_of(measure)
    if "accuracy" in needs and measure.judged_by != "accuracy":
        raise ValueError(
            f"expected judged_by to be accuracy for {measure.measure!r}, which needs {NEEDS['accuracy']}, got "
            f"{measure.judged_by!r}"
        )
    if "utility" in needs and measure.judged_by == "accuracy":
        training.check_score(task, f"{measure.measure!r}")
    if "head" in needs and "head" not in measure.options and (task.classes is None or task.roles is None):
        raise ValueError(
            f"expected a task with classes and a head for {measure.measure!r}, which needs {NEEDS['head']}, got one "
            "without"
        )
    estimator_of(measure, _facts(task, measure, None))


def measured_from(measure: RoundMeasure, task: Task, model: PyTree, census: Census) -> Contributions:
    """The contributions before round 0, which are 0."""
    return begin_contributions(estimator_of(measure, _facts(task, measure, None)), model, census.train.shape[0])


def measured_in(
    measure: RoundMeasure,
    task: Task,
    before: Contributions,
    sample: Sample,
    round: Round,
    members: Bool[Array, " N"] | None = None,
) -> tuple[Contributions, Info]:
    """The contributions after a round; Info by client: ``contribution``, ``score`` and, with a filter, ``filtered``."""
    # ``members`` belong to the federation (None: all). The score is that of this round, NaN for who took no part.
    needs, cohort = needs_of(measure), round.cohort
    rows = None
    if {"utility", "gradient", "next gradient"} & set(needs):
        if measure.rows not in round.held:
            names = ", ".join(round.held) or "none; held_fraction above 0 keeps some for validation"
            raise ValueError(
                f"expected rows of the server for {measure.measure!r}, which judges models on them, got "
                f"{measure.rows!r}; valid names are {names}"
            )
        rows = round.held[measure.rows]
    key = jax.random.fold_in(round.key, _MEASURE)
    plain = roles.zero_statistics(task, sample.update)
    weight = jnp.where(cohort.present, sample.weight, 0)
    seen = Observation(
        sample.model,
        sample.update if "utility" in needs else plain,
        weight,
        cohort.present,
        cohort.id,
        gradient=_slope(task, sample.model, rows, key) if "gradient" in needs else None,
        next_gradient=(
            _slope(task, trees.add_scaled(sample.model, aggregators.weighted_mean(sample.update, weight)), rows, key)
            if "next gradient" in needs
            else None
        ),
        key=key,
    )
    estimator = estimator_of(measure, _facts(task, measure, rows))
    after, score = observe_contributions(measure, estimator, before, seen, members)
    info = along("client", contribution=after.contribution, score=score)
    return after, info if measure.filter_below is None else info | along("client", filtered=after.filtered)


def _slope(task: Task, model: PyTree, rows: Subset | None, key: Key[Array, ""]) -> PyTree:
    """The gradient of the mean loss on the server's rows."""
    assert rows is not None
    return roles.zero_statistics(task, training.full_gradient(task, model, rows, key))


def _facts(task: Task, measure: RoundMeasure, rows: Subset | None) -> dict[str, Any]:
    """``utility`` and ``head``, for estimators that ask for them."""

    def utility(model: PyTree) -> Float[Array, ""]:
        assert rows is not None
        loss, accuracy = training.evaluate(task, lambda x: task.logits(model, x), rows)
        return accuracy if measure.judged_by == "accuracy" else -loss

    return {"utility": utility, "head": functools.partial(head_rows, task)}


def has_head(task: Task) -> bool:
    """Whether a model has a last layer with a column for each class, which ``head_rows`` reads."""
    if task.classes is None or task.roles is None:
        return False
    model = jax.eval_shape(task.init, jax.random.key(0))
    leaves = zip(jax.tree.leaves(model), roles.roles_of(task, model), strict=True)
    return any(role == "head" and leaf.shape[-1:] == (task.classes,) for leaf, role in leaves)


def head_rows(task: Task, updates: PyTree) -> Float[Array, "S classes k"]:
    """``[S, classes, k]``: of updates ``[S, ...]``, what reaches each class in the last layer, its bias included.

    Raises:
      ValueError: if the model has no such layer.
    """
    leaves = zip(jax.tree.leaves(updates), roles.roles_of(task, updates), strict=True)
    last = [leaf for leaf, role in leaves if role == "head" and leaf.shape[-1] == task.classes]
    if not last:
        raise ValueError(f"expected a last layer of {task.classes} columns, one for each class, got none")
    rows = [jnp.moveaxis(leaf, -1, 1).reshape(leaf.shape[0], leaf.shape[-1], -1) for leaf in last]
    return jnp.concatenate(rows, axis=-1)
