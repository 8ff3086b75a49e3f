"""Attackers that collude: they know the honest updates of a round, and all send what an attack makes of them.

Source: "A little is enough", "Fall of empires", "Manipulating the Byzantine", "Byzantine-robust learning on
heterogeneous datasets via bucketing" (mimic).
"""

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
from fljax.scenarios.common import Drawn, Entry, given, key_number, of_round, one_update, with_behaviour


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

    All else stays honest, also statistics (BatchNorm). A defence goes inside: ``colluding(median_clipped(inner))``.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      attack: a function of ``fljax.aggregators``; "sign_flip": ``-scale`` times the attacker's own update; or your
        ``(updates [S, ...], honest [S], attackers [S], id [S]) -> [...]``, what all send. Other rows are absent.
      fraction: share of attackers, drawn from the seed once; their number is rounded.
      who: in place of ``fraction``, the attackers ``[N]`` or ``[rounds, N]``, where round t uses row ``t % rounds``.
      scale: of "sign_flip" (None: 1) and "inner_product_manipulation" (None: 0.5).
      deviations: of "a_little_is_enough", which needs it where clients are few.
      direction: of "min_max" and "min_sum".

    Returns:
      The algorithm. Metrics leave out clients that attack in any round. The server holds all updates of a round.

    Raises:
      ValueError: if an option is not valid, or your attack returns anything but one update.
    """
    known = None if who is None else given(who)
    behaviour = known or Drawn(fraction, key_number(inner, "colluding"))  # the server changes what clients send
    algorithm = with_behaviour(inner, "colluding", behaviour, sent=lambda key, attacks, up: up, counted=False)
    streamed = as_streamed(algorithm.aggregate)

    def aggregate(server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        (id, _, present), now = round.cohort, round.number
        bad = server.behaviour.values[id] if known is None else jax.vmap(lambda k, f=known.row: of_round(f(k), now))(id)
        honest, attackers = present & ~bad, present & bad
        options = {"attackers": attackers, "id": id, "deviations": deviations, "direction": direction}
        options |= {} if scale is None else {"scale": scale}

        def attacked(updates: PyTree) -> PyTree:
            if attack == "sign_flip":
                return trees.scale(updates, -1.0 if scale is None else -scale)
            if callable(attack):
                form = "(updates, honest, attackers, id)"
                one = one_update("the attack", form, attack, updates, honest, attackers, id)
            else:
                function = getattr(aggregators, attack)
                one = function(updates, honest, **arguments_for(function, options))
            return jax.tree.map(lambda leaf: leaf[None], one)

        def changed(update: PyTree) -> PyTree:
            new = attacked(roles.zero_statistics(inner.task, update))
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
