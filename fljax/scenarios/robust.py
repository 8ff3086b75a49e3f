"""A server that replaces the mean of its clients' updates by a robust rule.

Sources: those of the rules in ``fljax.aggregators``. Deviation: the papers' servers take one mean of one update. Here a
rule replaces every sum of an algorithm, and the algorithm's step from the mean stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import aggregators
from fljax.aggregators.robust import assumed_byzantine, number_of
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Positive, checked
from fljax.protocol import Algorithm, Census, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.algorithm import seen_from
from fljax.protocol.messages import changed_update, is_not_finite
from fljax.protocol.sums import Part, Streamed, Total, divided
from fljax.scenarios.common import ROBUST, Entry, applied_scenarios, key_number, one_update, with_server

Counting = Literal["trimmed_mean", "krum", "multi_krum", "bulyan"]
Middle = Literal["mean", "coordinate_median", "geometric_median", "clipped_mean", "centred_clipping", "fltrust"]
# (a, b): with f Byzantine clients it needs a f + b updates.
_NEEDED = {"trimmed_mean": (2, 1), "krum": (2, 3), "multi_krum": (2, 3), "bulyan": (4, 3), "mixing": (2, 1)}


class Centred(NamedTuple):
    """The wrapped algorithm's Server, and the result of the last round, in float32 or wider."""

    inner: PyTree
    centre: PyTree


class Row(NamedTuple):
    """What the server keeps of one client: its record, its weights, and the parts of its sums that rules read."""

    inner: PyTree
    weight: Array
    value: PyTree


@checked
def robust(
    inner: Algorithm,
    *,
    rule: Counting | Middle | Callable[[PyTree, Array], PyTree] = "trimmed_mean",
    byzantine: NonNegative = 0.2,
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
    ``before``. Each model of FedEM and each sum of SCAFFOLD is a vector of its own. Statistics (running averages of
    BatchNorm) take the coordinate median.

    Args:
      inner: an algorithm whose server adds up its clients' updates.
      rule: a rule of ``fljax.aggregators``, or a function ``(updates [S, ...], present [S]) -> update``.
      byzantine: f, for how many attackers a rule allows: a number, or a share of the clients in each sum, rounded down.
        Where fewer clients come than the rule needs for f, f is the largest number that it allows.
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
      ValueError: if the server does not add up updates, a cohort has fewer rows than the rule needs, the server has no
        ``rows``, or "centred_clipping" meets several models.
    """
    if not isinstance(inner.aggregate, Streamed):
        around = f" in {inner.scenarios[-1].name}" if inner.scenarios else ""
        raise ValueError(f"expected an algorithm that adds up updates for robust, got one{around} that reads each")
    if rule == "centred_clipping" and inner.aggregate.stacked:
        raise ValueError("expected an algorithm of one model for centred_clipping in robust, got one of several")
    task, streamed, number = inner.task, inner.aggregate, key_number(inner, "robust", ROBUST)
    centred, weighs = rule == "centred_clipping", rule in ("mean", "clipped_mean")
    in_turn = before is None and (weighs or (centred and iterations in (None, 1)))
    each_model = jax.vmap if streamed.stacked else _unchanged
    needed = [_NEEDED[name] for name in (before, rule) if isinstance(name, str) and name in _NEEDED]

    def own(server: PyTree) -> PyTree:
        return server.inner if centred else server

    def init_server(key: Key[Array, ""], census: Census) -> Centred:
        model = trees.widened(task.init(key))
        return Centred(inner.init_server(key, census), trees.zeros_like(model))

    def centre_of(server: PyTree, name: str, trained: PyTree) -> PyTree:
        """The centre of a sum, for its trained leaves; None for zeros, and where no rule has one."""
        if not centred or name != "update":
            return None
        pair = (trained, server.centre)
        return jax.tree.map(lambda leaf, centre: None if leaf is None else centre, *pair, is_leaf=_is_none)

    def shorten(update: PyTree, centre: PyTree) -> PyTree:
        """One client's trained leaves as a sum reads them, in float32 or wider."""
        wide = trees.widened(update)
        apart = wide if centre is None else trees.subtract(wide, centre)
        if rule != "mean":
            apart = trees.take(aggregators.clip(jax.tree.map(lambda leaf: leaf[None], apart), bound), 0)
        return apart if centre is None else trees.add(centre, apart)

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, Row]:
        part, record = streamed.contribute(own(server), seat, up)
        _check_is_update(part.value, up)
        weight = trees.wide(part.weight)
        if centred and weight.ndim:
            raise ValueError(f"expected an algorithm of one model for centred_clipping, got {len(weight)} clusters")
        if not in_turn:
            return Part(()), Row(record, weight, part.value)

        def moved(name: str, update: PyTree) -> PyTree:
            trained, statistics = _by_role(task, update)
            return trees.merge(each_model(shorten)(trained, centre_of(server, name, trained)), statistics)

        statistics = _in_sums(lambda _, update: _by_role(task, update)[1], part.value)
        counts = jnp.where(is_not_finite(part.value), 0, weight if weighs else (weight != 0).astype(weight.dtype))
        return Part(_in_sums(moved, part.value), counts), Row(record, weight, statistics)

    def assumed(present: Bool[Array, " S"]) -> Int[Array, ""]:
        """The f of one sum: at most the largest for which the rule has enough updates."""
        count = jnp.sum(present, dtype=jnp.int32)
        f = assumed_byzantine(byzantine, present)
        left = -(-count // bucket_size) if before == "bucketing" else count
        for many, more in needed:
            f = jnp.minimum(f, (left - more) // many)
        return jnp.maximum(f, 0)

    def combine(sent: PyTree, served: PyTree, weight: Float[Array, " S"], round: Round) -> PyTree:
        """The rule on the updates of one model in one sum; ``served`` is the centre or the server's own update."""
        present = weight != 0
        f = assumed(present)
        if before == "mixing":
            sent = aggregators.nearest_neighbour_mixing(sent, f, present=present)
        elif before == "bucketing":
            key = jax.random.fold_in(round.key, number)
            sent, present = aggregators.bucketing(key, sent, bucket_size, id=round.cohort.id, present=present)
        weight = weight if before is None else present.astype(weight.dtype)
        weighted = {
            "mean": lambda: aggregators.weighted_mean(sent, weight),
            "coordinate_median": lambda: aggregators.coordinate_median(sent, present=present),
            "geometric_median": lambda: aggregators.geometric_median(
                sent, weight, iterations=iterations or 4, present=present
            ),
            "clipped_mean": lambda: aggregators.clipped_mean(sent, bound, weight, present=present),
            "centred_clipping": lambda: aggregators.centred_clipping(
                sent, bound, served, iterations=iterations or 1, present=present
            ),
            "fltrust": lambda: aggregators.weighted_sum(
                sent, aggregators.fltrust_weights(sent, served, present=present)
            ),
        }
        if isinstance(rule, str):
            return weighted[rule]() if rule in weighted else getattr(aggregators, rule)(sent, f, present=present)
        return one_update("the rule", "(updates [S, ...], present [S])", rule, sent, present)

    def trained_by_server(server: PyTree, round: Round) -> PyTree:
        """The part of the sums of an unseen client that has the server's rows."""
        if rows not in round.held:
            raise ValueError(f"expected rows of the server for fltrust, one of {sorted(round.held)}, got {rows!r}")
        data, nobody = LocalData(*[round.held[rows]] * 3), jnp.full((), -1, jnp.int32)
        seat = Seat(round.number, nobody, jnp.zeros_like(nobody), known=False)
        start, key = jax.random.split(jax.random.fold_in(round.key, number))
        client = inner.init_client(start, seat, inner.down(server, seat._replace(first=True)), data)
        up, _ = inner.train(key, seat, inner.down(server, seat), client, data)
        return streamed.contribute(seen_from(server, seat), seat, up)[0].value

    def finish(server: PyTree, total: Total, rows: Row, round: Round) -> tuple[PyTree, Info]:
        present = round.cohort.present
        _check_enough(byzantine, present.shape[0], bucket_size if before == "bucketing" else 1, needed)
        weight = jnp.where(present.reshape(-1, *[1] * (rows.weight.ndim - 1)), rows.weight, 0)
        served = trained_by_server(own(server), round) if rule == "fltrust" else rows.value
        across, names = (_unchanged, ()) if weight.ndim == 1 else (lambda one: jax.vmap(one, in_axes=1), ("cluster",))

        def of_cluster(weight: Float[Array, " S"]) -> PyTree:
            def of_sum(name: str, sent: PyTree, served: PyTree) -> PyTree:
                trained, statistics = _by_role(task, sent)
                if jax.tree.leaves(statistics):
                    statistics = aggregators.coordinate_median(statistics, present=weight != 0)
                if in_turn or not jax.tree.leaves(trained):
                    return statistics
                beside = _by_role(task, served)[0] if rule == "fltrust" else centre_of(server, name, trained)
                one = functools.partial(combine, weight=weight, round=round)
                of_models = jax.vmap(one, in_axes=(1, 0)) if streamed.stacked else one
                return trees.merge(of_models(trained, beside), statistics)

            return _in_sums(of_sum, rows.value, served)

        found = across(of_cluster)(weight)
        if in_turn:
            mean = divided(total.value, total.weight)
            found = _in_sums(lambda _, mean, middle: trees.merge(middle, mean), mean, found)
        mass = jnp.sum(weight, axis=0)
        value = jax.tree.map(lambda leaf: mass.reshape(mass.shape + (1,) * (leaf.ndim - mass.ndim)) * leaf, found)
        after, info = streamed.finish(own(server), Total(value, mass), rows.inner, round)
        if centred:
            moved = trees.widened(_by_role(task, found.update if _has_sums(found) else found)[0])
            after = Centred(after, trees.where(jnp.any(present), trees.merge(moved, server.centre), server.centre))
        if needed:
            used = across(lambda weight: assumed(weight != 0))(weight)
            info = {**info, **along(*names, assumed_byzantine=used)}
        return after, info

    algorithm = with_server(inner)._replace(init_server=init_server) if centred else inner
    return algorithm._replace(
        aggregate=streamed._replace(contribute=contribute, finish=finish),
        scenarios=applied_scenarios(inner, "robust"),
    )


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _has_sums(value: PyTree) -> bool:
    """Whether a part of the sums is a message with several sums, of which one is the ``update``."""
    return "update" in getattr(value, "_fields", ())


def _in_sums(function: Callable[..., PyTree], value: PyTree, *others: PyTree) -> PyTree:
    """``function(name, sum, *others)`` of each sum in a part."""
    if not _has_sums(value):
        return function("update", value, *others)
    names = [name for name in value._fields if jax.tree.leaves(getattr(value, name))]
    return value._replace(
        **{name: function(name, *(getattr(each, name) for each in (value, *others))) for name in names}
    )


def _by_role(task: Task, update: PyTree) -> tuple[PyTree, PyTree]:
    """The trained leaves of an update, and its statistics; a single number beside the update has none."""
    if jax.tree_util.all_leaves([update]):
        return update, None
    return trees.split(update, jax.tree.leaves(roles.trained_mask(task, update)))


def _check_is_update(value: PyTree, up: PyTree) -> None:
    """Raises a ValueError unless what a client adds to the sums is its update."""
    updates: list[PyTree] = []
    changed_update(up, lambda update: (updates.append(update), update)[1])
    if not (updates and (_has_sums(value) or jax.tree.structure(value) == jax.tree.structure(updates[0]))):
        raise ValueError(
            f"expected an algorithm that adds up the field update of its messages for robust, got {type(up).__name__}"
        )


def _check_enough(byzantine: Any, clients: int, bucket: int, needed: list[tuple[int, int]]) -> None:
    """Raises a ValueError if the rule needs more updates than a cohort of so many clients has."""
    if isinstance(byzantine, jax.core.Tracer):
        return

    def lacks(clients: int) -> bool:
        f = int(number_of(byzantine, clients))
        return f > 0 and any(-(-clients // bucket) < many * f + more for many, more in needed)

    if lacks(clients):
        least = next((count for count in range(clients, 100_000) if not lacks(count)), None)
        wanted = "a smaller byzantine" if least is None else f"at least {least} clients in a round"
        raise ValueError(f"expected {wanted} for robust with byzantine = {byzantine}, got {clients}")


ENTRY = Entry(
    robust,
    "the server takes a robust rule in place of the mean",
    {"byzantine": 0.25},
    ("yin2018byzantine",),
    ("bound",),
    ("byzantine",),
)
