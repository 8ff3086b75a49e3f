"""Attacks at the threshold of INCFL, and defences that were tried.

The federation is that of the quick start with 5 % of the training rows at the server. Rules that are not part of the
package stand here. ``results/current/attacks.md`` has the numbers, with what they mean.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import fljax
from benchmarks.reporting import Row, names_in
from fljax import aggregators, data, models, training
from fljax.core import trees
from fljax.protocol import Algorithm, Seat
from fljax.protocol.messages import Report, changed_reports, changed_update
from fljax.protocol.sums import as_streamed
from fljax.scenarios import median_clipped
from fljax.scenarios.common import BYZANTINE, Drawn, with_behaviour

ROWS = "validation"


def only_where(inner: Algorithm, accepts: Callable[..., Array]) -> Algorithm:
    """``inner`` whose server leaves out updates: ``accepts(key, models, updates, present, rows)`` is ``[S]``."""
    streamed = as_streamed(inner.aggregate)

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        cohort = round.cohort
        received = jax.vmap(lambda id, slot: inner.down(server, Seat(round.number, id, slot)))(cohort.id, cohort.slot)
        fine = accepts(round.key, received, up.update, cohort.present, round.held[ROWS])
        accepted = cohort._replace(present=cohort.present & fine)
        return streamed(server, up, round._replace(cohort=accepted))

    return inner._replace(aggregate=aggregate)


def by_loss(inner: Algorithm, *, more: float) -> Algorithm:
    """Updates that raise the loss on the server's rows by at most a share ``more`` of it."""

    def accepts(key: Any, before: Any, updates: Any, present: Any, rows: Any) -> Array:
        after = jax.vmap(trees.add)(before, updates)
        losses = [training.evaluate_each(inner.task, each, rows)[0] for each in (before, after)]
        return losses[1] <= (1 + more) * losses[0]

    return only_where(inner, accepts)


def by_rank(inner: Algorithm, *, without: int) -> Algorithm:
    """All but the updates of largest loss on the server's rows."""

    def accepts(key: Any, before: Any, updates: Any, present: Any, rows: Any) -> Array:
        loss = training.evaluate_each(inner.task, jax.vmap(trees.add)(before, updates), rows)[0]
        place = jnp.argsort(jnp.argsort(jnp.where(present, loss, jnp.inf)))
        return place < loss.shape[0] - without

    return only_where(inner, accepts)


def by_gradient(inner: Algorithm) -> Algorithm:
    """Updates whose inner product with the server's negative gradient is above 0."""

    def accepts(key: Any, before: Any, updates: Any, present: Any, rows: Any) -> Array:
        def one(model: Any, update: Any) -> Array:
            slope = training.full_gradient(inner.task, model, rows, key)
            products = jax.tree.map(jnp.vdot, update, slope)
            return -sum(jax.tree.leaves(products)) > 0  # pyright: ignore[reportReturnType]

        return jax.vmap(one)(before, updates)

    return only_where(inner, accepts)


def capped(inner: Algorithm, *, times: float, of: str = "median") -> Algorithm:
    """INCFL whose weights are at most ``times`` the median or mean weight of the round."""

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        weight = aggregators.incfl_weights(up.report.loss - up.report.threshold)
        known = jnp.where(round.cohort.present, weight, jnp.nan)
        most = times * (jnp.nanmedian(known) if of == "median" else jnp.nanmean(known))
        kept = jnp.where(round.cohort.present, jnp.minimum(weight, most), 0)
        step = aggregators.weighted_mean(up.update, kept)
        return server._replace(model=trees.add(server.model, step)), {}

    return inner._replace(aggregate=aggregate)


def opposite(inner: Algorithm, *, times: float) -> Algorithm:
    """A fifth of the clients report their threshold and send ``-times`` their update."""

    def sent(key: Any, attacks: Array, up: Any) -> Any:
        def lie(honest: Report) -> Report:
            known = honest.loss is not None and honest.threshold is not None  # pyright: ignore
            return honest._replace(loss=jnp.where(attacks, honest.threshold, honest.loss)) if known else honest

        turn = lambda update: trees.where(attacks, trees.scale(update, -times), update)  # noqa: E731
        return changed_update(changed_reports(up, lie), turn)

    return with_behaviour(inner, "opposite", Drawn(0.2, BYZANTINE), sent=sent, counted=False)


INCFL, FEDAVG = ("incfl", {}), ("fedavg", {"weights": "uniform"})
MEDIAN, TWICE = (median_clipped, {"times": 1.0}), (median_clipped, {"times": 2.0})
# The scenarios of a server act on what arrives; the last one acts first.
DEFENCES: dict[str, Any] = {
    "fedavg": (*FEDAVG, []),
    "fedavg_median": (*FEDAVG, [MEDIAN]),
    "fedavg_twice_median": (*FEDAVG, [TWICE]),
    "fedavg_gradient_twice_median": (*FEDAVG, [TWICE, by_gradient]),
    "mwfed": ("mwfed", {}, []),
    "incfl": (*INCFL, []),
    "incfl_weight_median": (*INCFL, [(capped, {"times": 1.0})]),
    "incfl_weight_twice_median": (*INCFL, [(capped, {"times": 2.0})]),
    "incfl_weight_mean": (*INCFL, [(capped, {"times": 1.0, "of": "mean"})]),
    "incfl_loss": (*INCFL, [(by_loss, {"more": 0.0})]),
    "incfl_loss_20": (*INCFL, [(by_loss, {"more": 0.2})]),
    "incfl_gradient": (*INCFL, [by_gradient]),
    "incfl_without_2": (*INCFL, [(by_rank, {"without": 2})]),
    "incfl_without_4": (*INCFL, [(by_rank, {"without": 4})]),
    "incfl_median": (*INCFL, [MEDIAN]),
    "incfl_twice_median": (*INCFL, [TWICE]),
    "incfl_median_and_weight": (*INCFL, [(capped, {"times": 1.0}), MEDIAN]),
    "incfl_gradient_twice_median": (*INCFL, [TWICE, by_gradient]),
    **{f"incfl_clipped_{norm}": (*INCFL, [("clipped", {"norm": norm})]) for norm in (0.1, 0.3, 1.0, 3.0)},
}
ATTACKS: dict[str, list[Any]] = {
    "noise": [("byzantine", {"fraction": 0.2, "noise": 40.0, "report": "threshold"})],
    "opposite": [(opposite, {"times": 1.0})],
    "opposite_5": [(opposite, {"times": 5.0})],
    "none": [],
}


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each attack and defence."""
    defences = names_in(options.defences or ",".join(DEFENCES), tuple(DEFENCES), "defence")
    digits = data.load("digits")
    split: Any = {"clients": 40, "unseen": 40, "alpha": 0.3, "minimum": 8, "train_fraction": 0.6, "held_fraction": 0.05}
    federations = data.federations(digits, "dirichlet", seeds=options.seeds, **split)
    scale = models.standardise(digits.mean, digits.std)
    task = models.mlp(digits.x.shape[1:], 10, hidden=[32], dropout=0.0, prepare=scale)
    local = fljax.Local(learning_rate=0.01, batch_size=16, steps=30)
    alone = local._replace(learning_rate=0.1, steps=100)
    for attack in names_in(options.attacks or ",".join(ATTACKS), tuple(ATTACKS), "attack"):
        entries: dict[str, Any] = {}
        for label in defences:
            name, given, rules = DEFENCES[label]
            # `clipped` changes what clients send, so it must stand around the attack; the others act at the server.
            both = (ATTACKS[attack], rules) if "clipped" in label else (rules, ATTACKS[attack])
            entries[label] = (name, given, [*both[0], *both[1]])
        found = fljax.compare(
            entries, federations, task, local, standalone=alone,
            rounds=options.rounds, seeds=options.seeds, clients_per_round=10, progress=False,
        )  # fmt: skip
        shown = found.table()[["IPR", "average"]]
        yield from ((attack, label, *map(str, cells)) for label, cells in zip(shown.index, shown.values, strict=True))
