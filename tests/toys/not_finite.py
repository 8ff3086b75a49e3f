"""Clients whose messages and states are not finite, and the same clients absent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fljax.protocol import Algorithm
from fljax.protocol.messages import Report


def spoil(tree: Any, wrong: Any, value: float = jnp.nan) -> Any:
    """Every floating leaf outside of Reports becomes ``value`` where ``wrong``."""

    def one(part: Any) -> Any:
        if isinstance(part, Report) or not jnp.issubdtype(jnp.asarray(part).dtype, jnp.inexact):
            return part
        return jnp.where(wrong, value, part).astype(jnp.asarray(part).dtype)

    return jax.tree.map(one, tree, is_leaf=lambda part: isinstance(part, Report))


def sends_nan(algorithm: Algorithm, who: Any, rounds: Any = None, value: float = jnp.nan) -> Algorithm:
    """What the clients ``who [N]`` send, and their new states, are not finite in ``rounds [rounds]``; None: in all."""

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        up, new = algorithm.train(key, seat, down, client, data)
        wrong = jnp.asarray(who)[seat.id]
        wrong = wrong if rounds is None else wrong & jnp.asarray(rounds)[seat.round]
        return spoil(up, wrong, value), spoil(new, wrong, value)

    return algorithm._replace(train=train)


def breaks(algorithm: Algorithm, broken: Any) -> Algorithm:
    """The server's floats turn to NaN in round ``broken``."""

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        server, info = algorithm.aggregate(server, up, round)
        return spoil(server, round.number == broken), info

    return algorithm._replace(aggregate=aggregate)


def leaves_out(algorithm: Algorithm, who: Any) -> Algorithm:
    """The clients ``who [N]`` are selected and do not come."""

    def select(*arguments: Any) -> Any:
        server, cohort, info = algorithm.select(*arguments)
        return server, cohort._replace(present=cohort.present & ~jnp.asarray(who)[cohort.id]), info

    return algorithm._replace(select=select)
