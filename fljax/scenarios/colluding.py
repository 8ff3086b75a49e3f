"""Attackers that collude: they know the honest updates of a round, and all send what an attack makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
from jaxtyping import PyTree, Shaped

from fljax import aggregators
from fljax.core import trees
from fljax.core.values import NonNegative, Number, Share, arguments_for, checked
from fljax.protocol import Algorithm, AnyArray, Info, Round, roles
from fljax.protocol.messages import changed_update
from fljax.protocol.sums import as_streamed
from fljax.scenarios.common import COLLUDING, Drawn, Entry, given, key_number, of_round, one_update, with_behaviour


@checked
def colluding(
    inner: Algorithm,
    *,
    attack: Literal["a_little_is_enough", "inner_product_manipulation", "min_max", "min_sum", "mimic", "sign_flip"]
    | Callable[..., Any] = "a_little_is_enough",
    fraction: Share = 0.2,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
    scale: NonNegative | None = None,
    deviations: Number | None = None,
    direction: Literal["deviation", "unit", "sign"] = "deviation",
) -> Algorithm:
    """Attackers know the ``update`` of each honest client of the round, and all send one that is made of these.

    Reports, other fields and statistics (running averages of BatchNorm) stay honest. A defence goes inside, where it
    meets the attack: ``colluding(median_clipped(inner))``.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      attack: a function of ``fljax.aggregators``; "sign_flip": ``-scale`` times the attacker's own update; or your
        function ``(updates, honest, attackers, id)`` of leaves ``[S, ...]``, masks and client ids ``[S]``. It returns
        the leaves ``[...]`` that all attackers send. Rows that are neither honest nor attackers are absent.
      fraction: share of attackers, drawn from the seed once; their number is rounded.
      who: the attackers by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses row
        ``t % rounds``. If given, ``fraction`` is ignored.
      scale: of "sign_flip" (None: 1) and "inner_product_manipulation" (None: 0.5).
      deviations: of "a_little_is_enough", which needs it where clients are few.
      direction: of "min_max" and "min_sum".

    Returns:
      The algorithm. Metrics leave out clients that attack in any round. The server holds all updates of a round at
      once, also where the wrapped algorithm adds them up one by one.

    Raises:
      ValueError: if an option is not valid, or your attack returns anything but one update.
    """
    number = key_number(inner, "colluding", COLLUDING)
    known = None if who is None else given(who)
    behaviour = known or Drawn(fraction, number)  # clients send what is their own; the server changes it
    algorithm = with_behaviour(inner, "colluding", behaviour, sent=lambda key, attacks, up: up, counted=False)
    streamed = as_streamed(algorithm.aggregate)

    def aggregate(server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        (id, _, present), now = round.cohort, round.number
        bad = server.behaviour.values[id] if known is None else jax.vmap(lambda k, f=known.row: of_round(f(k), now))(id)
        honest, attackers = present & ~bad, present & bad
        options = {"attackers": attackers, "id": id, "deviations": deviations, "direction": direction}
        options |= {} if scale is None else {"scale": scale}

        def one(updates: PyTree) -> PyTree:
            if not callable(attack):
                function = getattr(aggregators, attack)
                return function(updates, honest, **arguments_for(function, options))
            return one_update("the attack", "(updates, honest, attackers, id)", attack, updates, honest, attackers, id)

        def changed(update: PyTree) -> PyTree:
            trained = roles.zero_statistics(inner.task, update)
            new = (
                trees.scale(trained, -1.0 if scale is None else -scale)
                if attack == "sign_flip"
                else jax.tree.map(lambda x: x[None], one(trained))
            )
            return roles.replace_statistics(inner.task, trees.where_rows(attackers, new, update), update)

        return streamed(server, changed_update(up, changed), round)

    return algorithm._replace(aggregate=aggregate)


ENTRY = Entry(
    colluding,
    "attackers know the honest updates, and all send the same harmful one",
    {"attack": "min_max", "fraction": 0.4},
    ("baruch2019little", "karimireddy2022byzantine", "shejwalkar2021manipulating", "xie2020fall"),
    ("scale", "deviations"),
    ("fraction",),
)
