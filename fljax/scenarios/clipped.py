"""Bounded and noisy updates: each client's update is clipped in norm, and Gaussian noise is added.

Source: McMahan et al., "Learning differentially private recurrent language models" (ICLR 2018), Algorithm 1 (flat
clipping). Deviation: each client adds the noise (local privacy); the paper adds it to the mean.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from fljax.aggregators.arrays import row_norms
from fljax.core import trees
from fljax.core.values import NonNegative, Range, checked
from fljax.protocol import Algorithm, AnyArray, roles
from fljax.protocol.messages import changed_update
from fljax.scenarios.common import Entry, add_normal, everybody, given, key_number, with_behaviour


@checked
def clipped(
    inner: Algorithm,
    *,
    norm: Annotated[float | Float[Array, ""], Range(0, above=True, infinite=True)],
    noise: NonNegative = 0.0,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``Delta_k <- Delta_k min(1, norm / ||Delta_k||) + N(0, (noise norm)^2 I)``.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      norm: the largest Euclidean norm of an update, over all entries of trained leaves. Statistics (running averages of
        BatchNorm) are sent as they are, so they tell means of the client's data; a task with ``statistics="frozen"``,
        or ``fedbn``, sends none.
      noise: standard deviation of the noise on each such entry, as a multiple of ``norm``.
      who: the clients whose updates are clipped, by client id ``[N]``, or by round and client id ``[rounds, N]``, where
        round t uses row ``t % rounds``. None: all clients.

    Returns:
      The algorithm. Nested scenarios draw independent noise.

    Raises:
      ValueError: if ``who`` is for another number of clients.
    """
    number = key_number(inner, "clipped")

    def sent(key: Key[Array, ""], bounds: Array, up: PyTree) -> PyTree:
        def bound(update: PyTree) -> PyTree:
            leaves = jax.tree.leaves(trees.widened(roles.zero_statistics(inner.task, update)))
            if not leaves:
                return update
            length = row_norms([leaf[None] for leaf in leaves])[0]
            is_long = length >= norm
            factor = jnp.where(is_long, jnp.minimum(norm / jnp.where(is_long, length, 1), 1), 1)
            shorter = trees.scale(update, factor)
            noisy = add_normal(jax.random.fold_in(key, number), shorter, noise * jnp.asarray(norm))
            return trees.where(bounds, roles.replace_statistics(inner.task, noisy, update), update)

        return changed_update(up, bound)

    return with_behaviour(inner, "clipped", everybody if who is None else given(who), sent=sent)


ENTRY = Entry(
    clipped,
    "updates are bounded in norm, with Gaussian noise",
    {"norm": 1.0, "noise": 0.01},
    ("mcmahan2018learning",),
    ("norm", "noise"),
)
