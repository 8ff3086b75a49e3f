"""Parts that scenarios share: registry entries, scores of deployed models, noise, and wrapped Servers.

The appeal of deployed models (``deployed_model_appeal``) is by training loss, as what clients require is by default: a
test loss is seldom below a standalone training loss. The loss is another pass over the training rows, so only scenarios
that mark themselves ask for it (``Applied.tunes``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.core import trees
from fljax.protocol import Algorithm, Applied, Available, Cohort, Info, LocalData, Seat, Subset, Task, roles, sums
from fljax.protocol.rounds import is_per_client

# Scenarios fold these numbers into keys that the wrapped algorithm also uses, with small numbers. A scenario nested in
# itself uses numbers that are ``NESTED`` apart, so these numbers must differ by less than ``NESTED``.
BYZANTINE, DROPOUT, CLIPPED, FREE_RIDING, MISREPORTING, STRATEGIC, ADAPTIVE_EFFORT = range(1001, 1008)
NESTED = 1000


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
      build: ``build(inner, **options) -> Algorithm``.
      summary: one line for tables.
      example: options beyond the defaults with which the laws are tested; arrays are for 5 clients.
      references: keys of its sources in ``references.bib`` of ``fljax.algorithms``.
      differentiable: options in which what clients send is differentiable, fields by their dotted names. An algorithm
        may still round what clients report.
      flat: floats with zero gradient by construction.
    """

    build: Callable[..., Algorithm]
    summary: str
    example: dict[str, Any] = {}
    references: tuple[str, ...] = ()
    differentiable: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()


def applied_scenarios(
    inner: Algorithm, name: str, rounds: int | None = None, tunes: bool = False
) -> tuple[Applied, ...]:
    """``Algorithm.scenarios`` after one more scenario is wrapped around ``inner``."""
    return (*inner.scenarios, Applied(name, rounds, tunes))


def key_number(inner: Algorithm, name: str, number: int) -> int:
    """The number that a scenario folds into a key, so that one nested in itself draws independent random numbers."""
    return number + NESTED * sum(scenario.name == name for scenario in inner.scenarios)


def deployed_scores(
    inner: Algorithm, split: str, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData
) -> tuple[Float[Array, ""], Float[Array, ""] | None]:
    """Loss and accuracy, if the task has one, of a client's deployed model on rows of a split (without any: train)."""
    deployed = inner.deploy(key, seat, down, client, data)

    def scores(rows: Subset) -> tuple[Array, Array | None]:
        return training.evaluate(inner.task, lambda x: inner.predict(deployed, x), rows, key=key)

    judged = scores(getattr(data, split))
    if split == "train":
        return judged
    some, known = getattr(data, split).rows.size > 0, scores(data.train)
    return jax.tree.map(lambda score, other: jnp.where(some, score, other), judged, known)


def add_normal(key: Key[Array, ""], tree: PyTree, deviation: float | Float[Array, ""]) -> PyTree:
    """Adds independent Gaussian noise to every entry."""
    leaves, structure = jax.tree.flatten(tree)
    noisy = [
        leaf
        + jax.numpy.asarray(deviation, leaf.dtype)
        * jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)


def root_mean_square(task: Task, update: PyTree) -> Float[Array, ""]:
    """``sqrt(sum_j u_j^2 / d)`` over the d trained entries of an update; 0 without any, as its derivative is at 0."""
    trained = roles.trained_leaves(task, update)
    count = max(trees.size(trained), 1)
    squares = sum((jnp.sum(jnp.square(trees.wide(leaf))) for leaf in jax.tree.leaves(trained)), jnp.zeros(()))
    return trees.root(squares / count)


def with_clients(
    inner: Algorithm,
    own: Callable[[Seat, PyTree, LocalData], tuple[Algorithm, PyTree, LocalData]],
    keep: Callable[[PyTree, PyTree], PyTree] = lambda client, new: new,
    said: Callable[[Seat, PyTree], PyTree] = lambda seat, message: message,
) -> Algorithm:
    """``inner``, of which each client runs its own variant with a Client and data: ``own(seat, client, data)``."""

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> PyTree:
        return inner.init_client(key, seat, down, own(seat, None, data)[2])

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        variant, state, seen = own(seat, client, data)
        assert variant.poll is not None
        return said(seat, variant.poll.ask(key, seat, down, state, seen))

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        variant, state, seen = own(seat, client, data)
        up, new = variant.train(key, seat, down, state, seen)
        return said(seat, up), keep(client, new)

    def personal(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        variant, state, seen = own(seat, client, data)
        return variant.deploy(key, seat, down, state, seen)

    return inner._replace(
        init_client=init_client,
        poll=None if inner.poll is None else inner.poll._replace(ask=ask),
        train=train,
        personal=None if inner.personal is None else personal,
    )


def with_server(inner: Algorithm) -> Algorithm:
    """``inner`` in a larger Server, a NamedTuple that has inner's Server in its field ``inner``."""

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: Any, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        own, cohort, info = inner.select(key, round, server.inner, ballots, available)
        return server._replace(inner=own), cohort, info

    counts, models, peers = inner.counts, inner.models, inner.peers
    return inner._replace(
        send=lambda server, seat: inner.send(server.inner, seat),
        select=select,
        aggregate=sums.within(
            inner.aggregate, lambda server: server.inner, lambda server, own: server._replace(inner=own)
        ),
        models=None if models is None else lambda server: models(server.inner),
        counts=None if counts is None else lambda server, seat: counts(server.inner, seat),
        peers=None if peers is None else lambda server, seat: peers(server.inner, seat),
    )


def keep_rows(gone: Bool[Array, " N"], before: PyTree, after: PyTree) -> PyTree:
    """The Server ``after`` a step, whose ``PerClient`` and ``Exchanged`` parts keep rows of clients that are gone."""
    # Every scenario in which clients leave must use this, so that all algorithms keep the rows of those that left.

    def keep(old: Any, new: Any) -> Any:
        return trees.where_rows(gone, old, new) if is_per_client(new) else new

    return jax.tree.map(keep, before, after, is_leaf=is_per_client)
