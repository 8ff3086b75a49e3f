"""A server that replaces the mean of its clients' updates by a robust rule.

Source: "Byzantine-robust distributed learning", "Machine learning with adversaries", "The hidden vulnerability of
distributed learning in Byzantium", "Robust aggregation for federated learning", "Learning from history for Byzantine
robust optimization", "FLTrust: Byzantine-robust federated learning", "Byzantine-robust learning on heterogeneous
datasets via bucketing", "Fixing by mixing". Deviation: the papers replace one mean of one update, here a rule replaces
every sum of an algorithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import aggregators
from fljax.aggregators.robust import NEEDED
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, Positive, arguments_for, checked
from fljax.protocol import Algorithm, Census, Info, LaterData, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.algorithm import seen_from
from fljax.protocol.messages import is_not_finite, updates_of
from fljax.protocol.sums import Part, Streamed, Total, as_streamed, mean
from fljax.scenarios.common import Entry, applied_scenarios, key_number, one_update, with_server

Counting = Literal["trimmed_mean", "krum", "multi_krum", "bulyan"]
Middle = Literal["mean", "coordinate_median", "geometric_median", "clipped_mean", "centred_clipping", "fltrust"]


class Centred(NamedTuple):
    """The wrapped algorithm's Server, and the result of the last round, in float32 or wider."""

    inner: PyTree
    centre: PyTree


@checked
def robust(
    inner: Algorithm,
    *,
    rule: Counting | Middle | Callable[[PyTree, Array], PyTree] = "trimmed_mean",
    byzantine: CountOrZero = 1,
    before: Literal["bucketing", "mixing"] | None = None,
    bucket_size: Count = 2,
    bound: Positive = 1.0,
    iterations: Count | None = None,
    rows: str = "validation",
) -> Algorithm:
    """``sum_k a_k Delta_k <- (sum_k a_k) rule({Delta_k : a_k != 0})`` in every sum of the server.

    So a mean becomes the rule, and a sum over the population (the second step of SCAFFOLD and FedDyn) becomes the rule
    times the number of clients. The algorithm's weights a_k say who counts: with a weight for each cluster (IFCA,
    FedSoft) the rule is by cluster. They weigh in "mean", "clipped_mean" and "geometric_median" alone, and not after
    ``before``. Each model of FedEM and each sum of SCAFFOLD is a vector. Statistics (BatchNorm) and numbers beside the
    update (FedNova's work) take the coordinate median.

    Args:
      inner: an algorithm whose server adds up its clients' updates.
      rule: a rule of ``fljax.aggregators``, or a function ``(updates [S, ...], present [S]) -> update``.
      byzantine: f, how many attackers a rule allows for. Where fewer clients come than it needs for f, f is lowered.
      before: "bucketing": the rule gets means of random buckets, drawn in each round. "mixing": it gets the mean of the
        n - f updates nearest to each update.
      bucket_size: clients in a bucket.
      bound: the largest norm of an update in "clipped_mean", of its distance from the centre in "centred_clipping".
      iterations: of "geometric_median" (None: 4) and of "centred_clipping" (None: 1).
      rows: the server's rows, on which it trains for "fltrust" as an unseen client does.

    Returns:
      The algorithm. The server holds all updates of a round at once, unless the rule is "mean", "clipped_mean" or
      "centred_clipping" of one iteration, without ``before``. "centred_clipping" keeps its result in the Server as the
      next round's centre; further sums have the centre 0. Info: ``assumed_byzantine`` [cluster], the f that was used.

    Raises:
      ValueError: if the server adds up no updates or has no ``rows``, a cohort has too few clients for the rule, or
        "centred_clipping" or "fltrust" meets several models.
    """
    around = f" in {inner.scenarios[-1].name}" if inner.scenarios else ""
    expected = f"expected an algorithm that adds up updates for robust, got one{around} that"
    if not isinstance(inner.aggregate, Streamed):
        raise ValueError(f"{expected} reads each")
    task, number, centred = inner.task, key_number(inner, "robust"), rule == "centred_clipping"
    weighs, bucket = rule in ("mean", "clipped_mean"), bucket_size if before == "bucketing" else 1
    in_turn = before is None and (weighs or (centred and iterations in (None, 1)))
    needed = [NEEDED[name] for name in (before, rule) if isinstance(name, str) and name in NEEDED]

    def init_server(key: Key[Array, ""], census: Census) -> Centred:
        return Centred(inner.init_server(key, census), trees.zeros_like(trees.widened(task.init(key))))

    algorithm = with_server(inner)._replace(init_server=init_server) if centred else inner
    streamed = as_streamed(algorithm.aggregate)
    shorten, assumed, combine = _of_options(rule, byzantine, before, bucket, bound, iterations, number, needed)
    of_models = jax.vmap if streamed.stacked else lambda function, **axes: function

    def centre_of(server: PyTree, name: str) -> PyTree:
        """The centre of the trained leaves of a sum; None for zeros, and where no rule has one."""
        return _by_role(task, server.centre)[0] if centred and name == "update" else None

    # A client's record: that of the wrapped algorithm, what rules read of its part of the sums, and its weights.
    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, tuple[PyTree, PyTree, Array]]:
        part, record = streamed.contribute(server, seat, up)
        structures = [jax.tree.structure(update) for update in updates_of(up)]
        if not structures or not (_has_sums(part.value) or jax.tree.structure(part.value) == structures[0]):
            raise ValueError(f"{expected} adds up something else of {type(up).__name__}")
        weight = trees.wide(part.weight)
        if (rule == "fltrust" and weight.ndim) or (centred and (weight.ndim or streamed.stacked)):
            raise ValueError(f"expected an algorithm of one model for {rule} in robust, got one of several")
        if not in_turn:
            return Part(()), (record, part.value, weight)

        def moved(name: str, update: PyTree) -> PyTree:
            trained, statistics = _by_role(task, update)
            return trees.merge(of_models(shorten)(trained, centre_of(server, name)), statistics)

        statistics = _in_sums(lambda _, update: _by_role(task, update)[1], part.value)
        counts = jnp.where(is_not_finite(part.value), 0, weight if weighs else (weight != 0).astype(weight.dtype))
        value = part.value if rule == "mean" else _in_sums(moved, part.value)
        return Part(value, counts), (record, statistics, weight)

    def finish(server: PyTree, total: Total, records: Any, round: Round) -> tuple[PyTree, Info]:
        record, value, weight = records
        clients = round.cohort.present.size
        least = max(bucket * (many * byzantine + more - 1) + 1 for many, more in [*needed, (0, 1)])
        if byzantine and clients < least:
            had = f"robust with byzantine = {byzantine}, got {clients}"
            raise ValueError(f"expected at least {least} clients in a round for {had}")
        served = _trained_by_server(inner, rows, number, server, round) if rule == "fltrust" else value

        def of_cluster(weight: Float[Array, " S"]) -> tuple[PyTree, Int[Array, ""]]:
            def of_sum(name: str, sent: PyTree, served: PyTree) -> PyTree:
                trained, statistics = _by_role(task, sent)
                if jax.tree.leaves(statistics):
                    statistics = aggregators.coordinate_median(statistics, present=weight != 0)
                if in_turn or not jax.tree.leaves(trained):
                    return statistics
                beside = _by_role(task, served)[0] if rule == "fltrust" else centre_of(server, name)
                one = functools.partial(combine, weight=weight, round=round)
                return trees.merge(of_models(one, in_axes=(1, 0))(trained, beside), statistics)

            return _in_sums(of_sum, value, served), assumed(weight != 0)

        found, used = (jax.vmap(of_cluster, in_axes=1) if weight.ndim > 1 else of_cluster)(weight)
        if in_turn:
            found = _in_sums(lambda _, own, middle: trees.merge(middle, own), mean(total), found)
        mass = jnp.sum(weight, axis=0)
        scaled = jax.tree.map(lambda leaf: mass.reshape(mass.shape + (1,) * (leaf.ndim - mass.ndim)) * leaf, found)
        after, info = streamed.finish(server, Total(scaled, mass), record, round)
        if centred:
            step, _ = _by_role(task, found.update if _has_sums(found) else found)
            moved = trees.merge(trees.widened(step), server.centre)
            after = after._replace(centre=trees.where(jnp.any(round.cohort.present), moved, server.centre))
        return after, {**info, **along(*["cluster"] * used.ndim, assumed_byzantine=used)} if needed else info

    return algorithm._replace(
        aggregate=streamed._replace(contribute=contribute, finish=finish), scenarios=applied_scenarios(inner, "robust")
    )


def _of_options(
    rule: Any, byzantine: int, before: Any, bucket: int, bound: Any, iterations: Any, number: int, needed: Any
) -> tuple[Callable[..., PyTree], ...]:
    """What the server does with the updates of one sum, by the options of ``robust``."""

    def shorten(update: PyTree, centre: PyTree) -> PyTree:
        """One client's trained leaves as a sum reads them, in float32 or wider."""
        wide = trees.widened(update)
        apart = wide if centre is None else trees.subtract(wide, centre)
        short = trees.take(aggregators.clip(jax.tree.map(lambda leaf: leaf[None], apart), bound), 0)
        return short if centre is None else trees.add(centre, short)

    def assumed(present: Bool[Array, " S"]) -> Int[Array, ""]:
        """The f of one sum: at most the largest for which the rule has enough updates."""
        left = -(-jnp.sum(present, dtype=jnp.int32) // bucket)
        most = [(left - more) // many for many, more in needed]
        return jnp.maximum(functools.reduce(jnp.minimum, most, byzantine), 0)

    def combine(sent: PyTree, served: PyTree, weight: Float[Array, " S"], round: Round) -> PyTree:
        """The rule on the updates of one model in one sum; ``served`` is the centre or the server's own update."""
        present = weight != 0
        f = assumed(present)
        if before == "mixing":
            sent = aggregators.nearest_neighbour_mixing(sent, f, present=present)
        elif before == "bucketing":
            key = jax.random.fold_in(round.key, number)
            sent, present = aggregators.bucketing(key, sent, bucket, id=round.cohort.id, present=present)
        if not isinstance(rule, str):
            return one_update("the rule", "(updates [S, ...], present [S])", rule, sent, present)
        weight = weight if before is None else present.astype(weight.dtype)
        if rule == "fltrust":
            return aggregators.weighted_sum(sent, aggregators.fltrust_weights(sent, served, present=present))
        function = aggregators.weighted_mean if rule == "mean" else getattr(aggregators, rule)
        options = {"byzantine": f, "weights": weight, "bound": bound, "centre": served, "present": present}
        options |= {} if iterations is None else {"iterations": iterations}
        return function(sent, **arguments_for(function, options))

    return shorten, assumed, combine


def _trained_by_server(inner: Algorithm, rows: str, number: int, server: PyTree, round: Round) -> PyTree:
    """The part of the sums of an unseen client that has the server's rows."""
    if rows not in round.held:
        known = ", ".join(sorted(round.held)) or "none (a config has held_fraction)"
        raise ValueError(f"expected rows of the server for fltrust in robust, got {rows!r}; it has {known}")
    held = round.held[rows]
    data = LocalData(held, held, held, LaterData(held, held))
    seat = Seat(round.number, jnp.int32(-1), jnp.int32(0), known=False)
    start, key = jax.random.split(jax.random.fold_in(round.key, number))
    client = inner.init_client(start, seat, inner.down(server, seat._replace(first=True)), data)
    up, _ = inner.train(key, seat, inner.down(server, seat), client, data)
    return as_streamed(inner.aggregate).contribute(seen_from(server, seat), seat, up)[0].value


def _has_sums(value: PyTree) -> bool:
    """Whether a part of the sums is a message with several sums, of which one is the ``update``."""
    return "update" in getattr(value, "_fields", ())


def _in_sums(function: Callable[..., PyTree], value: PyTree, *others: PyTree) -> PyTree:
    """``function(name, sum, *others)`` of each sum in a part."""
    if not _has_sums(value):
        return function("update", value, *others)
    names = [name for name in value._fields if jax.tree.leaves(getattr(value, name))]
    new = {name: function(name, *(getattr(each, name) for each in (value, *others))) for name in names}
    return value._replace(**new)


def _by_role(task: Task, update: PyTree) -> tuple[PyTree, PyTree]:
    """The trained leaves of an update, and its statistics; a number beside the update (FedNova's) is as a statistic."""
    if jax.tree_util.all_leaves([update]):
        return None, update
    return trees.split(update, jax.tree.leaves(roles.trained_mask(task, update)))


ENTRY = Entry(
    robust,
    "the server takes a robust rule in place of the mean",
    {"bound": 0.5},
    (
        "allouah2023fixing",
        "blanchard2017machine",
        "cao2021fltrust",
        "elmhamdi2018hidden",
        "karimireddy2021learning",
        "karimireddy2022byzantine",
        "pillutla2022robust",
        "yin2018byzantine",
    ),
    ("bound",),
)
