"""Byzantine clients: some report inflated losses and send noisy updates.

Source: MaxFL, section 5 and Table 2. Deviations: neither the increase of the loss nor the noise is printed; both are
reconstructed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import trees
from fljax.algorithms.common import MAXFL_REFERENCE, check_share
from fljax.scenarios.common import BYZANTINE, Entry, add_normal, altered, applied, stream, with_server
from fljax.types import Algorithm, Census, Poll

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, PyTree


class ByzantineServer(NamedTuple):
    """The wrapped algorithm's Server, and who is Byzantine, which no algorithm reads."""

    inner: PyTree
    byzantine: Bool[Array, " N"]


class ByzantineDown(NamedTuple):
    """The wrapped algorithm's Down, and whether this client is Byzantine (one byte that no real server would send)."""

    inner: PyTree
    byzantine: Bool[Array, ""]


def byzantine(
    inner: Algorithm,
    *,
    fraction: float = 0.1,
    loss_increase: float = 10.0,
    noise: float = 10.0,
    count_all: bool = False,
) -> Algorithm:
    """``round(fraction N)`` clients report ``loss + loss_increase`` and send ``Delta_k + noise rms(Delta_k) N(0, I)``.

    Who they are is drawn from the seed and stays; one inside another draws on its own. Only the reserved fields
    ``loss`` and ``update`` are touched, in what is sent and in ballots: around ``appeal_based`` they claim that the
    model does not appeal to them, and so leave the pool with their true loss hidden; inside of it they choose by their
    true loss.

    Args:
      inner: any algorithm.
      fraction: of the clients, rounded to a whole number of them.
      loss_increase: is added to every loss that they report; infinite is allowed.
      noise: standard deviation of the noise on each entry, as a multiple of the root mean square of the update.
      count_all: whether metrics count them as well; else they are over honest clients (of those seen).

    Returns:
      The algorithm.

    Raises:
      ValueError: if ``fraction`` is a number that is no share of 1.
    """
    check_share("fraction", fraction)
    number = stream(inner, "byzantine", BYZANTINE)
    own = with_server(inner, lambda server: server.inner, lambda server, new: server._replace(inner=new))

    def init_server(key: Any, census: Census) -> ByzantineServer:
        population = census.train.shape[0]
        score = jax.random.uniform(jax.random.fold_in(key, number), (population,))
        place = jnp.argsort(jnp.argsort(score))
        count = jnp.round(jnp.asarray(fraction, score.dtype) * population)
        return ByzantineServer(inner.init_server(key, census), place < count)

    def send(server: ByzantineServer, seat: Any) -> ByzantineDown:
        return ByzantineDown(own.send(server, seat), server.byzantine[seat.id] if seat.known else jnp.asarray(False))

    def inflated(message: PyTree, is_byzantine: Any) -> PyTree:
        return altered(
            message, "loss", lambda loss: jnp.where(is_byzantine, loss + loss_increase, loss).astype(loss.dtype)
        )

    def poll(key: Any, seat: Any, down: ByzantineDown, client: Any, data: Any) -> PyTree:
        assert inner.poll is not None
        return inflated(inner.poll.ask(key, seat, down.inner, client, data), down.byzantine)

    def train(key: Any, seat: Any, down: ByzantineDown, client: Any, data: Any) -> tuple[PyTree, PyTree]:
        up, client = inner.train(key, seat, down.inner, client, data)

        def spoil(update: PyTree) -> PyTree:
            count = max(trees.size(update), 1)
            squares = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(update)), jnp.zeros(()))
            noisy = add_normal(jax.random.fold_in(key, number), update, noise * jnp.sqrt(squares / count))
            return trees.where(down.byzantine, noisy, update)

        return altered(inflated(up, down.byzantine), "update", spoil), client

    def counts(server: ByzantineServer, seat: Any) -> Any:
        honest = ~server.byzantine[seat.id] if seat.known else jnp.asarray(True)
        return honest if own.counts is None else honest & own.counts(server, seat)

    def init_client(key: Any, seat: Any, down: ByzantineDown, data: Any) -> PyTree:
        return inner.init_client(key, seat, down.inner, data)

    def personal(key: Any, seat: Any, down: ByzantineDown, client: Any, data: Any) -> PyTree:
        return inner.deploy(key, seat, down.inner, client, data)

    common = inner.common

    return own._replace(
        init_server=init_server,
        send=send,
        init_client=init_client,
        poll=None if inner.poll is None else Poll(poll, inner.poll.every),
        train=train,
        common=None if common is None else lambda down: common(down.inner),
        personal=None if inner.personal is None else personal,
        counts=own.counts if count_all else counts,
        scenarios=applied(inner, "byzantine"),
    )


ENTRY = Entry(
    byzantine,
    "some clients report inflated losses and send noisy updates (MaxFL)",
    {"fraction": 0.2, "loss_increase": 1.0, "noise": 0.1},
    MAXFL_REFERENCE,
)
