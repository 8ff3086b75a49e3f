"""Attackers that collude: they know the honest updates of a round, and all send what an attack makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
from jaxtyping import Array, PyTree, Shaped

from fljax import aggregators
from fljax.core import trees, users
from fljax.core.values import NonNegative, Number, Share, arguments_for, checked
from fljax.protocol import Algorithm, AnyArray, Info, Round, Seat, roles
from fljax.protocol.algorithm import seen_from
from fljax.protocol.messages import changed_update
from fljax.protocol.sums import as_streamed
from fljax.scenarios import common


@checked
def colluding(
    inner: Algorithm,
    *,
    attack: Literal["a_little_is_enough", "inner_product_manipulation", "min_max", "min_sum", "mimic", "sign_flip"]
    | Callable[..., Any] = "a_little_is_enough",
    fraction: Share = 0.2,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
    scale: NonNegative = 1.0,
    deviations: Number | None = None,
    direction: Literal["deviation", "unit", "sign"] = "deviation",
) -> Algorithm:
    """Attackers know the ``update`` of each honest client of the round, and all send one that is made of these.

    Reports, other fields and statistics (running averages of BatchNorm) stay honest. A defence goes inside, so that it
    meets the attack: ``colluding(median_clipped(inner))``.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      attack: a function of ``fljax.aggregators``; "sign_flip": ``-scale`` times the attacker's own update; or your
        function ``(updates, honest, attackers, id)`` of leaves ``[S, ...]``, masks and client ids ``[S]``, that returns
        the leaves ``[...]`` which all attackers send. Rows that are neither honest nor attackers are absent.
      fraction: share of attackers, drawn from the seed once; their number is rounded.
      who: the attackers by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses row
        ``t % rounds``. If given, ``fraction`` is ignored.
      scale: of "sign_flip" and "inner_product_manipulation".
      deviations: of "a_little_is_enough", which needs it where clients are few.
      direction: of "min_max" and "min_sum".

    Returns:
      The algorithm. Metrics leave out clients that attack in any round. The server holds all updates of a round at
      once, also where the wrapped algorithm adds them up one by one.

    Raises:
      ValueError: if an option is not valid, ``who`` is for another number of clients, or your attack returns anything
        but one update.
    """
    drawn = common.Drawn(fraction, common.key_number(inner, "colluding", common.COLLUDING))
    known = common.with_known(inner, drawn if who is None else common.given(who))
    streamed = as_streamed(known.algorithm.aggregate)
    options = {"scale": scale, "deviations": deviations, "direction": direction}

    def aggregate(server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        def attacks(id: Array, slot: Array) -> Array:
            seat = Seat(round.number, id, slot)
            return known.behaves(seen_from(server, seat), seat)

        id, slot, present = round.cohort
        attackers = present & jax.vmap(attacks)(id, slot)
        honest = present & ~attackers

        def one(updates: PyTree) -> PyTree:
            if callable(attack):
                form, row = "(updates, honest, attackers, id)", jax.tree.map(lambda leaf: leaf[0], updates)
                found = users.call("the attack", form, attack, updates, honest, attackers, id)
                if trees.difference(row, found, exact=False):
                    raise users.refused("the attack", attack, "one update, a tree like a row of updates", found)
                return trees.like(found, row)
            function = getattr(aggregators, attack)
            return function(updates, honest, **arguments_for(function, {"attackers": attackers, "id": id, **options}))

        def changed(update: PyTree) -> PyTree:
            trained = roles.zero_statistics(inner.task, update)
            if attack == "sign_flip":
                sent = trees.scale(trained, -scale)
            else:
                sent = jax.tree.map(lambda leaf: leaf[None], one(trained))
            return roles.replace_statistics(inner.task, trees.where_rows(attackers, sent, update), update)

        return streamed(server, changed_update(up, changed), round)

    counts, scenarios = common.honest_counts(known), common.applied_scenarios(inner, "colluding")
    return known.algorithm._replace(aggregate=aggregate, counts=counts, scenarios=scenarios)


ENTRY = common.Entry(
    colluding,
    "attackers know the honest updates, and all send the same harmful one",
    {"attack": "min_max", "fraction": 0.4},
    ("baruch2019little", "karimireddy2022byzantine", "shejwalkar2021manipulating", "xie2020fall"),
    ("scale", "deviations"),
    ("fraction",),
)
