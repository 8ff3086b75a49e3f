"""Arguments and records of an algorithm's functions: seats, cohorts, rounds, labelled values.

An absent client may come back, and is a member. Scenarios in which clients leave for good say so to ``init_server`` by
``Census.members`` and to ``select`` by ``Available.without``; a Server has room for members only there, so all other
programs stay as they are. ``Algorithm.peers`` names whose rows a client receives, so that the engine hands over these
alone. Dimensions of ``Labelled`` values are static, so no code reads them out of names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax.protocol.data import Held

Info = Mapping[str, "Array | Labelled"]


def usual_spacing(rounds: int) -> int:
    """Rounds between two evaluations where nobody chooses them: a tenth of all, rounded down, and at least 1."""
    return max(1, rounds // 10)


class Census(NamedTuple):
    """What the server knows about the population before round 0: sample counts by client id.

    Attributes:
      train: ``[N]``, numbers of training samples; ``train.shape[0]`` is the number of clients.
      valid: ``[N]``, numbers of validation samples.
      members: ``[N]``, who belongs to the federation before round 0; None: all clients, and nobody leaves. A scenario
        in which clients leave for good gives it to ``init_server``, so that the Server has room for
        ``Available.members``.
    """

    train: Int[Array, " N"]
    valid: Int[Array, " N"]
    members: Bool[Array, " N"] | None = None


class Seat(NamedTuple):
    """The place of one client in a call: round, client id and slot.

    Attributes:
      round: 0-based round.
      id: client id in 0..N-1, or -1 for an unseen client (do not index an ``[N]`` array with -1).
      slot: the client's task in the round, e.g. the cluster model that it trains; 0 if there is only one.
      known: a Python bool: False for an unseen client. Static, so ``if not seat.known`` is allowed.
      first: a Python bool, static: True where ``send`` gives what ``init_client`` needs, once before a client's first
        round.
    """

    round: Int[Array, ""]
    id: Int[Array, ""]
    slot: Int[Array, ""]
    known: bool = True
    first: bool = False


# "known" and "first" are not leaves: they stay Python bools under jit and vmap.
jax.tree_util.register_pytree_with_keys(
    Seat,
    lambda seat: (tuple(zip(map(jax.tree_util.GetAttrKey, Seat._fields[:3]), seat[:3], strict=True)), seat[3:]),
    lambda marks, leaves: Seat(*leaves, known=marks[0], first=marks[1]),
    lambda seat: (seat[:3], seat[3:]),
)


class Cohort(NamedTuple):
    """The clients that train in a round: a fixed number of rows S, each one (client, slot).

    A row with ``present`` False is empty: its id is ignored, its weight is zero and its results are discarded.
    An id may be in several rows (with different slots) only if training changes no client state.

    Attributes:
      id: ``[S]``, client ids.
      slot: ``[S]``, the client's task in the round; 0 if there is only one.
      present: ``[S]``, whether the row is a client that trains.
    """

    id: Int[Array, " S"]
    slot: Int[Array, " S"]
    present: Bool[Array, " S"]


class Round(NamedTuple):
    """What the aggregation of a round is given besides the server and the clients' messages.

    Attributes:
      key: ``[]``, the random key of this aggregation.
      number: ``[]``, the 0-based round.
      cohort: the clients whose messages are aggregated. A client whose message is dropped is not present.
      held: the server's own examples: names of rows and their Subsets.
    """

    key: Key[Array, ""]
    number: Int[Array, ""]
    cohort: Cohort
    held: Held


@functools.partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("dimensions",))
@dataclasses.dataclass(frozen=True)
class Labelled:
    """An entry of Info with the names of its dimensions, which are static.

    Attributes:
      values: an array with one dimension per name; the engine adds seeds and rounds in front.
      dimensions: names, e.g. ``("client",)``. Usual names are client, row (of the cohort) and cluster.
    """

    values: Any
    dimensions: tuple[str, ...]


def along(*dimensions: str, **values: Any) -> dict[str, Labelled]:
    """Entries of Info that share their dimensions: ``along("row", loss=loss, weight=weight)``.

    An array without names gets the dimensions ``NAME_axis_0``, ... in results; single numbers need no names.
    """
    return {name: Labelled(entry, dimensions) for name, entry in values.items()}


def unlabelled(info: Info) -> dict[str, Any]:
    """The values of Info alone, by name."""
    return {name: entry.values if isinstance(entry, Labelled) else entry for name, entry in info.items()}


class Available(NamedTuple):
    """The clients that can take part in a round, and those that belong to the federation.

    A client that cannot take part now is absent. It is still a member: an algorithm that rewards its clients rewards
    it, too. A client that left for good is no member. It keeps its model, gets no reward, and does not count in
    anything that is computed over the population. Available clients are members.

    Attributes:
      population: the number of clients, N, with those that left. A Python int, static.
      among: ``[N]`` by id, whether a client can take part; None: all clients. Read ``among`` only where the case of all
        clients is simpler, else call ``mask``.
      members: ``[N]`` by id, whether a client belongs to the federation; None: all clients, in all rounds. Else
        ``init_server`` got ``Census.members``. Read ``members`` only where the case of all clients is simpler, else
        call ``member``.
    """

    population: int
    among: Bool[Array, " N"] | None = None
    members: Bool[Array, " N"] | None = None

    def mask(self) -> Bool[Array, " N"]:
        """``[N]`` by id: whether a client can take part."""
        return jnp.ones(self.population, bool) if self.among is None else self.among

    def member(self) -> Bool[Array, " N"]:
        """``[N]`` by id: whether a client belongs to the federation."""
        return jnp.ones(self.population, bool) if self.members is None else self.members

    def only(self, some: Bool[Array, " N"]) -> Available:
        """The available clients that are also in ``some``; the others are absent and remain members."""
        return self._replace(among=some if self.among is None else self.among & some)

    def without(self, gone: Bool[Array, " N"]) -> Available:
        """The available clients and the members without those that have left for good."""
        return self.only(~gone)._replace(members=self.member() & ~gone)


jax.tree_util.register_pytree_node(
    Available,
    lambda available: ((available.among, available.members), available.population),
    lambda population, masks: Available(population, *masks),
)


class PerClient(NamedTuple):
    """A part of the Server with one row per client, for example the models that clients are rewarded with.

    In functions of one client (``send``, ``peers``, ``contribute``, ``counts``), this part is replaced by the client's
    own row, or by zeros for an unseen client. So no client's computation needs the rows of other clients.

    Attributes:
      values: leaves ``[N, ...]`` by id.
    """

    values: PyTree


class Exchanged(NamedTuple):
    """A part of the Server like ``PerClient``, of which a client receives rows of others, too: its peers' models.

    In ``send``, this part is replaced by a ``WithPeers`` with the rows of the clients that ``Algorithm.peers`` names.
    In other functions of one client it is replaced by the client's own row, or by zeros for an unseen client.

    Attributes:
      values: leaves ``[N, ...]`` by id.
    """

    values: PyTree


class WithPeers(NamedTuple):
    """What ``send`` sees of an ``Exchanged`` part.

    Attributes:
      own: the client's own row; zeros for an unseen client.
      peers: rows of the clients that are named, ``[M, ...]``; the own row may be among them.
      id: ``[M]``, whose rows these are. M is 0 for an unseen client, and for an algorithm without ``peers``.
    """

    own: PyTree
    peers: PyTree
    id: Int[Array, " M"]


class _OwnRow(NamedTuple):
    """A ``PerClient`` part of which the row of one client was taken."""

    values: PyTree


def is_per_client(part: Any) -> bool:
    """Whether a part of a Server has one row per client."""
    return isinstance(part, PerClient | Exchanged)


def rows_of(
    server: PyTree,
    id: Int[Array, "*rows"] | None = None,
    peers: Int[Array, "*rows M"] | None = None,
    pick: Callable[[Any, Any], Any] = lambda table, index: table[index],
) -> list[Any]:
    """The rows of clients ``id`` (None: all) in each part with one row per client; ``with_rows`` puts one's back.

    Args:
      server: a Server.
      id: ids of clients.
      peers: their peers' ids; needed if the Server has an ``Exchanged`` part.
      pick: ``(table, peers) -> rows`` of peers.
    """

    def rows(part: Any) -> Any:
        row = part.values if id is None else jax.tree.map(lambda leaf: leaf[id], part.values)
        if isinstance(part, PerClient):
            return row
        assert peers is not None
        return WithPeers(row, jax.tree.map(lambda leaf: pick(leaf, peers), part.values), peers)

    return [rows(part) for part in jax.tree.leaves(server, is_leaf=is_per_client) if is_per_client(part)]


def with_rows(server: PyTree, rows: Sequence[PyTree]) -> PyTree:
    """The Server of one client, whose parts with one row per client are the client's ``rows``."""
    left = iter(rows)

    def put(part: Any) -> Any:
        if not is_per_client(part):
            return part
        return _OwnRow(next(left)) if isinstance(part, PerClient) else next(left)

    return jax.tree.map(put, server, is_leaf=is_per_client)


def seen_from(server: PyTree, seat: Seat, peers: Int[Array, " M"] | None = None) -> PyTree:
    """The Server as functions of one client receive it: parts with one row per client hold the client's own.

    ``peers`` are the ids for ``send``, in which ``Exchanged`` parts become ``WithPeers``; None: for other functions.
    """

    def row_of(leaf: Array) -> Array:
        return leaf[seat.id] if seat.known else jnp.zeros(leaf.shape[1:], leaf.dtype)

    def look(part: Any) -> Any:
        if isinstance(part, _OwnRow):
            return part.values
        if isinstance(part, WithPeers):
            return part.own if peers is None else part
        if not is_per_client(part):
            return part
        row = jax.tree.map(row_of, part.values)
        if peers is None or isinstance(part, PerClient):
            return row
        return WithPeers(row, jax.tree.map(lambda leaf: leaf[peers], part.values), peers)

    return jax.tree.map(look, server, is_leaf=lambda part: isinstance(part, _OwnRow | WithPeers) or is_per_client(part))
