"""Byzantine clients: some report inflated losses and send noisy updates.

Source: MaxFL, section 5 and Table 2. Deviations: neither the increase of the loss nor the noise is printed; both are
reconstructed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key, PyTree

from fljax import trees
from fljax.algorithms.common import MAXFL_REFERENCE, check_share
from fljax.messages import changed_report, changed_update
from fljax.scenarios.behaviour import Drawn, given, with_behaviour
from fljax.scenarios.common import BYZANTINE, Entry, add_normal, key_number
from fljax.types import Algorithm


def byzantine(
    inner: Algorithm,
    *,
    fraction: float = 0.1,
    loss_increase: float = 10.0,
    noise: float = 10.0,
    count_all: bool = False,
    who: Bool[Array, " N"] | Bool[Array, "rounds N"] | None = None,
) -> Algorithm:
    """``round(fraction N)`` clients report ``loss + loss_increase`` and send ``Delta_k + noise rms(Delta_k) N(0, I)``.

    Who they are is drawn from the seed and stays; one inside another draws on its own. Only ``update`` and the reported
    loss are touched, in what is sent and in ballots: around ``appeal_based`` they claim that the model does not appeal
    to them, and so leave the pool with their true loss hidden; inside of it they choose by their true loss.

    Args:
      inner: any algorithm.
      fraction: of the clients, rounded to a whole number of them.
      loss_increase: is added to every loss that they report; infinite is allowed.
      noise: standard deviation of the noise on each entry, as a multiple of the root mean square of the update.
      count_all: whether metrics count them as well; else they are over honest clients (of those seen).
      who: in place of a drawn fraction, which then is not read: who is Byzantine, by client id ``[N]``, or in which
        rounds as well, ``[rounds, N]``; row ``t % rounds`` is that of round t. Metrics leave out who is Byzantine in
        some row of the table.

    Returns:
      The algorithm.

    Raises:
      ValueError: if ``fraction`` is a number that is no share of 1, or ``who`` is of another number of clients.
    """
    check_share("fraction", fraction)
    number = key_number(inner, "byzantine", BYZANTINE)

    def inflated(is_byzantine: Array, message: PyTree) -> PyTree:
        more = lambda loss: jnp.where(is_byzantine, loss + loss_increase, loss).astype(loss.dtype)  # noqa: E731
        return changed_report(message, "loss", more)

    def spoilt(key: Key[Array, ""], is_byzantine: Array, up: PyTree) -> PyTree:
        def spoil(update: PyTree) -> PyTree:
            count = max(trees.size(update), 1)
            squares = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(update)), jnp.zeros(()))
            noisy = add_normal(jax.random.fold_in(key, number), update, noise * jnp.sqrt(squares / count))
            return trees.where(is_byzantine, noisy, update)

        return changed_update(inflated(is_byzantine, up), spoil)

    behaviour = Drawn(fraction, number) if who is None else given(who)
    return with_behaviour(inner, "byzantine", behaviour, sent=spoilt, answered=inflated, counted=count_all)


ENTRY = Entry(
    byzantine,
    "some clients report inflated losses and send noisy updates (MaxFL)",
    {"fraction": 0.2, "loss_increase": 1.0, "noise": 0.1},
    MAXFL_REFERENCE,
)
