"""Parts that scenarios share: registry entries, scores of deployed models, behaviours, noise, and wrapped Servers.

The appeal of deployed models (``deployed_model_appeal``) is by training loss, as what clients require is by default: a
test loss is seldom below a standalone training loss. The loss is another pass over the training rows, so only scenarios
that mark themselves ask for it (``Applied.tunes``).

Behaviours are data: an array says which clients misbehave (send something else than they should), and in which rounds.
So runs with different arrays share a program. A given array is not part of the state: a run that continues from
``initial`` uses the array of its own plan. A drawn one is part of the clients' states: the server sends each client its
own row once, before its first round, so the size of later messages does not change. Scenarios find the field ``update``
by name and a ``Report`` by type, also inside ballots that carry other ballots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real, Shaped

from fljax import training
from fljax.core import trees, users
from fljax.core.values import check_flags
from fljax.protocol import (
    Algorithm,
    AnyArray,
    Applied,
    Available,
    Census,
    Cohort,
    Info,
    LocalData,
    PerClient,
    Probe,
    Seat,
    Subset,
    Task,
    roles,
    sums,
)
from fljax.protocol.algorithm import is_per_client
from fljax.protocol.messages import Report

# Scenarios that draw fold 1001 and their place here into keys that the wrapped algorithm also uses, with small numbers.
# A scenario nested in itself uses numbers that are ``NESTED`` apart, so there are fewer names than ``NESTED``.
_FIRST = ("byzantine", "dropout", "clipped", "free_riding", "misreporting", "strategic", "adaptive_effort")
DRAWING = (*_FIRST, "client_sampling", "robust", "colluding", "backdoor")
NESTED = 1000


class WithReport(NamedTuple):
    """What clients report for a scenario's select, and the wrapped algorithm's ballot or Server."""

    report: Report
    inner: PyTree


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
    inner: Algorithm, name: str, rounds: int | None = None, tunes: bool = False, probe: Probe | None = None
) -> tuple[Applied, ...]:
    """``Algorithm.scenarios`` after one more scenario is wrapped around ``inner``."""
    return (*inner.scenarios, Applied(name, rounds, tunes, probe))


def key_number(inner: Algorithm, name: str) -> int:
    """The number that a scenario folds into a key, so that one nested in itself draws independent random numbers."""
    return 1001 + DRAWING.index(name) + NESTED * sum(scenario.name == name for scenario in inner.scenarios)


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


def one_update(kind: str, form: str, function: Callable[..., PyTree], updates: PyTree, *others: Any) -> PyTree:
    """The one update that a user's function makes of stacked ``updates``, in their dtypes."""
    row, found = trees.take(updates, 0), users.call(kind, form, function, updates, *others)
    if trees.difference(row, found, exact=False):
        raise users.refused(kind, function, "one update, a tree like a row of updates", found)
    return trees.like(found, row)


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


# One number for all clients, one per client id, or one per round and client id.
ByRound = Real[AnyArray, "*rounds N"] | Sequence[float] | Sequence[Sequence[float]] | float | Float[Array, ""]


class Given(NamedTuple):
    """The misbehaving clients, given by the user."""

    check: Callable[[int], None]  # (population); a ValueError if the array or the ids do not fit it
    row: Callable[[Int[Array, ""]], Bool[Array, "*rounds"]]  # (id) -> [] or [rounds], one client's column


class Drawn(NamedTuple):
    """``round(fraction N)`` misbehaving clients, drawn with the key ``fold_in(key of init_server, number)``."""

    fraction: float | Float[Array, ""]
    number: int


def given(who: Shaped[AnyArray, "*rounds N"]) -> Given:
    """The misbehaving clients by an array ``[N]`` or ``[rounds, N]`` of bools or zeros and ones."""
    try:
        array = jnp.asarray(who)
    except (TypeError, ValueError):
        raise ValueError(f"expected who to be [clients] or [rounds, clients] of numbers, got {who!r}") from None
    if array.ndim not in (1, 2) or array.shape[0] == 0:
        raise ValueError(f"expected who to be [clients] or [rounds, clients], got shape {array.shape}")
    check_flags("who", array)

    def check(population: int) -> None:
        if array.shape[-1] != population:
            raise ValueError(f"expected who to have an entry for each of {population} clients, got {array.shape[-1]}")

    return Given(check, lambda id: array[..., id] != 0)


# All clients in all rounds; not an array, so it fits any number of clients.
everybody = Given(lambda population: None, lambda id: jnp.asarray(True))


def _is_id(id: object) -> bool:
    return isinstance(id, int | np.integer) and bool(id >= 0)


def of_ids(ids: Sequence[int]) -> Given:
    """The misbehaving clients by their ids."""
    chosen = tuple(ids)
    if len(set(chosen)) != len(chosen) or any(not _is_id(id) for id in chosen):
        raise ValueError(f"expected different ids of clients from 0 for ids, got {list(chosen)}")

    def check(population: int) -> None:
        if max(chosen, default=-1) >= population:
            raise ValueError(f"expected ids of clients from 0 to {population - 1} for ids, got {list(chosen)}")

    return Given(check, lambda id: jnp.any(jnp.asarray(chosen, jnp.int32) == id))


def chosen_by(
    inner: Algorithm,
    name: str,
    *,
    ids: Sequence[int] | None,
    who: Shaped[AnyArray, "*rounds N"] | None,
    fraction: float | Float[Array, ""] | None,
) -> Given | Drawn:
    """The misbehaving clients by the one of ``ids``, ``who`` and ``fraction`` that is not None."""
    if (ids is not None) + (who is not None) + (fraction is not None) != 1:
        raise ValueError(f"expected exactly one of ids, who and fraction for {name}")
    if who is not None:
        return given(who)
    if ids is not None:
        return of_ids(ids)
    assert fraction is not None
    return Drawn(fraction, key_number(inner, name))


def with_behaviour(
    inner: Algorithm,
    name: str,
    behaviour: Given | Drawn,  # unseen clients never misbehave
    *,
    sent: Callable[[Key[Array, ""], Bool[Array, ""], PyTree], PyTree],  # (key of its training, behaves [], up) -> up
    answered: Callable[[Bool[Array, ""], PyTree], PyTree] | None = None,  # (behaves, ballot) -> ballot
    counted: bool = True,  # whether metrics count the clients that misbehave in at least one round
    rounds: Sequence[int] | None = None,  # (first, end): they misbehave from ``first`` to before ``end``
) -> Algorithm:
    """``inner`` with changed messages from the misbehaving clients, of as many bytes."""
    behaving = with_known(inner, behaviour)
    algorithm = behaving.algorithm
    if rounds is not None and (len(rounds) != 2 or not all(map(_is_id, rounds)) or rounds[0] >= rounds[1]):
        raise ValueError(
            f"expected rounds of {name} to be the first round and the one after the last, got {list(rounds)}"
        )

    def behaves(client: PyTree, seat: Seat) -> Bool[Array, ""]:
        now = behaving.behaves(client, seat)
        return now if rounds is None else now & (rounds[0] <= seat.round) & (seat.round < rounds[1])

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        assert algorithm.poll is not None
        ballot = algorithm.poll.ask(key, seat, down, client, data)
        return ballot if answered is None else answered(behaves(client, seat), ballot)

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        up, new = algorithm.train(key, seat, down, client, data)
        return sent(key, behaves(client, seat), up), new

    return algorithm._replace(
        poll=None if algorithm.poll is None else algorithm.poll._replace(ask=ask),
        train=train,
        counts=algorithm.counts if counted else behaving.counts,
        scenarios=applied_scenarios(inner, name),
    )


class Known(NamedTuple):
    """An algorithm, and whether each of its clients misbehaves."""

    algorithm: Algorithm
    behaves: Callable[[PyTree, Seat], Bool[Array, ""]]  # (client or its view of the Server, seat), in this round
    ever: Callable[[PyTree, Seat], Bool[Array, ""]]  # (server, seat), in some round

    def counts(self, server: PyTree, seat: Seat) -> Bool[Array, ""]:
        """``Algorithm.counts`` without clients that misbehave in at least one round."""
        honest, counts = ~self.ever(server, seat), self.algorithm.counts
        return honest if counts is None else honest & counts(server, seat)


def with_known(inner: Algorithm, behaviour: Given | Drawn) -> Known:
    """``inner`` that first checks the number of clients of a given behaviour; unseen clients never misbehave."""
    if isinstance(behaviour, Drawn):
        return _drawing(inner, behaviour)

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        behaviour.check(census.train.shape[0])
        return inner.init_server(key, census)

    def behaves(client: PyTree, seat: Seat) -> Array:
        if not seat.known:
            return jnp.asarray(False)
        return of_round(behaviour.row(seat.id), seat.round)

    def ever(server: PyTree, seat: Seat) -> Array:
        return jnp.any(behaviour.row(seat.id)) if seat.known else jnp.asarray(False)

    return Known(inner._replace(init_server=init_server), behaves, ever)


def of_round(row: Shaped[Array, "*rounds_N"], round: Int[Array, ""]) -> Shaped[Array, "*N"]:
    """A client's entry in a round, or a row of clients: one for all rounds, or that of ``round % rounds``."""
    return row if row.ndim == 0 else row[round % row.shape[0]]


def of_client(numbers: PyTree, seat: Seat) -> PyTree:
    """A client's entries in a round, of arrays of one number for all, ``[N]`` or ``[rounds, N]``."""
    return jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else of_round(leaf[..., seat.id], seat.round), numbers)


class DrawnServer(NamedTuple):
    """The wrapped algorithm's Server and the drawn clients, which no algorithm reads."""

    inner: PyTree
    behaviour: PerClient


class DrawnClient(NamedTuple):
    """The wrapped algorithm's Client (or its Down before the first round), and whether the client was drawn."""

    inner: PyTree
    behaviour: Bool[Array, ""]


def _drawing(inner: Algorithm, behaviour: Drawn) -> Known:
    wrapped = with_server(inner)

    def init_server(key: Key[Array, ""], census: Census) -> DrawnServer:
        population = census.train.shape[0]
        score = jax.random.uniform(jax.random.fold_in(key, behaviour.number), (population,), jnp.float32)
        place = jnp.argsort(jnp.argsort(score))
        drawn = place < jnp.round(jnp.asarray(behaviour.fraction, score.dtype) * population)
        return DrawnServer(inner.init_server(key, census), PerClient(drawn))

    def send(server: PyTree, seat: Seat) -> PyTree:
        down = wrapped.send(server, seat)
        return DrawnClient(down, server.behaviour) if seat.first else down  # its own row

    def init_client(key: Key[Array, ""], seat: Seat, down: DrawnClient, data: LocalData) -> DrawnClient:
        return DrawnClient(inner.init_client(key, seat, down.inner, data), down.behaviour)

    algorithm = with_clients(
        wrapped, lambda seat, client, data: (inner, client.inner, data), lambda client, new: client._replace(inner=new)
    )._replace(init_server=init_server, send=send, init_client=init_client)
    return Known(algorithm, lambda client, seat: client.behaviour, lambda server, seat: server.behaviour)
