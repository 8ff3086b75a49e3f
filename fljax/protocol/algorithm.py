"""The protocol of every algorithm: one value of pure functions, their arguments and their records.

Functions marked ONE are written for one client; the engine maps them over clients. Server, Client, Down, Ballot, Up and
Deployed are pytrees of the algorithm's choice. ``common`` is the model before a client changes it; without ``personal``
nothing is evaluated twice. What ``send`` shows a seat that is ``first`` does not count as sent.

An absent client may come back, and is a member. Scenarios in which clients leave for good say so to ``init_server`` by
``Census.members`` and to ``select`` by ``Available.without``; a Server has room for members only there, so all other
programs stay as they are. ``Algorithm.peers`` names whose rows a client receives, so that the engine hands over these
alone. Dimensions of ``Labelled`` values are static, so no code reads them out of names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.core import trees
from fljax.protocol.data import Held, LocalData, Subset
from fljax.protocol.roles import Task, TrainingKey

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


def unlabelled(info: Mapping[str, Any]) -> dict[str, Any]:
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


@runtime_checkable
class InitServer(Protocol):
    """``(key, census) -> Server``: the server before round 0.

    Parts with one row per client are ``PerClient`` or ``Exchanged``.
    """

    def __call__(self, key: Key[Array, ""], census: Census, /) -> PyTree: ...


@runtime_checkable
class Send(Protocol):
    """ONE ``(server, seat) -> Down``: everything that the server sends this client.

    ``PerClient`` parts of ``server`` hold the client's own row, and ``Exchanged`` parts are ``WithPeers``. If
    ``seat.first``, the result is what ``init_client`` needs; its bytes are not counted.
    """

    def __call__(self, server: PyTree, seat: Seat, /) -> PyTree: ...


@runtime_checkable
class Peers(Protocol):
    """ONE ``(server, seat) -> [M]``: the clients whose rows of ``Exchanged`` parts ``send`` gets for this client.

    M is the same for all clients and rounds. Ids are in 0..N-1 and may repeat; where there are fewer peers, ``send``
    marks the others as padding. ``PerClient`` and ``Exchanged`` parts of ``server`` hold the client's own row. Unseen
    clients have no peers.
    """

    def __call__(self, server: PyTree, seat: Seat, /) -> Int[Array, " M"]: ...


@runtime_checkable
class InitClient(Protocol):
    """ONE ``(key, seat, down, data) -> Client``: the client's state before its first round.

    ``down`` is the result of ``send`` for a seat with ``first``. A Client of ``()`` keeps nothing between rounds.
    """

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData, /) -> PyTree: ...


@runtime_checkable
class Ask(Protocol):
    """ONE ``(key, seat, down, client, data) -> Ballot``: the client's answer to a poll, before selection."""

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /) -> PyTree: ...


@runtime_checkable
class Select(Protocol):
    """``(key, round, server, ballots, available) -> (Server, Cohort, Info)``: selects the cohort of a round.

    ``round`` is ``[]``. ``ballots`` are the latest answers ``[N, ...]`` by id, ``()`` without a poll. The cohort is
    selected from ``available`` clients and has the same number of rows in every round. The returned Server may differ
    from ``server``: a market settles the last round here. ``available.members`` are the clients that belong to the
    federation; others have left for good, and do not count in what is computed over the population.
    """

    def __call__(
        self, key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available, /
    ) -> tuple[PyTree, Cohort, Info]: ...


@runtime_checkable
class Train(Protocol):
    """ONE ``(key, seat, down, client, data) -> (Up, Client)``: local training; the client's message and new state."""

    def __call__(
        self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /
    ) -> tuple[PyTree, PyTree]: ...


@runtime_checkable
class Aggregate(Protocol):
    """``(server, up, round) -> (Server, Info)``: updates the server with the cohort's messages.

    ``up`` is ``[S, ...]`` by row of ``round.cohort``; empty rows are zeros. If the aggregation is a sum over clients,
    use a ``fljax.protocol.sums.Streamed``.
    """

    def __call__(self, server: PyTree, up: PyTree, round: Round, /) -> tuple[PyTree, Info]: ...


@runtime_checkable
class Common(Protocol):
    """``(down) -> Deployed``: the global model, before personalisation."""

    def __call__(self, down: PyTree, /) -> PyTree: ...


@runtime_checkable
class Personal(Protocol):
    """ONE ``(key, seat, down, client, data) -> Deployed``: the model that the client would use; may train."""

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /) -> PyTree: ...


@runtime_checkable
class Models(Protocol):
    """``(server) -> {name: Judged}``: further models of the server to judge, e.g. a reference model."""

    def __call__(self, server: PyTree, /) -> Mapping[str, Judged]: ...


@runtime_checkable
class Counts(Protocol):
    """ONE ``(server, seat) -> []``: whether metrics count this client. ``server`` is as for ``peers``."""

    def __call__(self, server: PyTree, seat: Seat, /) -> Bool[Array, ""]: ...


class Poll(NamedTuple):
    """A poll of clients before the cohort is selected.

    Attributes:
      ask: see Ask; every client that is available and has data is polled.
      every: rounds between two polls; rounds between reuse the last ballots.
      shown: whether clients receive Down before they answer. If not, ``down`` is ``()``, its bytes are not counted, and
        all clients are polled.
    """

    ask: Ask
    every: int = 1
    shown: bool = True


class Judged(NamedTuple):
    """A model of the server to judge on rows of the server.

    Attributes:
      model: a Deployed; ``[C, ...]`` for several models.
      rows: the name of the rows in ``Federation.held``. Each of several models is judged on each of
        ``held[f"{rows}_0"]``, ``held[f"{rows}_1"]`` and so on.
      several: whether there are several models.
    """

    model: PyTree
    rows: str
    several: bool = False


class Probe(NamedTuple):
    """A further metric of the models that clients would use, on test rows that a scenario changes.

    Attributes:
      name: of the metric ``[client]``, ``sum(hits) / sum(counted)`` over its rows; NaN where the divisor is 0.
      rows: the rows that are judged in place of a client's test rows.
      counted: ``(outputs, y) -> [b]``, 1 for rows that count, else 0.
      hits: ``(outputs, y) -> [b]``, 1 for those of them in which the model does what the metric is about, else 0.
    """

    name: str
    rows: Callable[[Subset], Subset]
    counted: Callable[[Array, Array], Float[Array, " b"]]
    hits: Callable[[Array, Array], Float[Array, " b"]]


class Applied(NamedTuple):
    """A scenario that is wrapped around an algorithm.

    Attributes:
      name: name of the scenario.
      rounds: number of rounds that its table covers; None: any number.
      tunes: whether clients train what they are given before they use it; training rows then judge their models, too.
      probe: its own metric of clients' models; None: it has none.
    """

    name: str
    rounds: int | None = None
    tunes: bool = False
    probe: Probe | None = None


def keep_nothing(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> tuple[()]:
    """``init_client`` of an algorithm whose clients keep nothing between rounds."""
    return ()


class Algorithm(NamedTuple):
    """A federated algorithm: one value, a handful of pure functions.

    Only the results of ``send`` (Down), ``poll`` (Ballot) and ``train`` (Up) cross between server and client, so their
    sizes are the bytes on the wire. Scenarios know two parts of Up and Ballot: the field ``update``, a model change
    (new minus old), and any ``fljax.protocol.messages.Report``, the client's report about itself. A builder closes over
    its hyper-parameters; floats among them may be traced.

    A complete algorithm, FedSGD, in which each client takes one step along its full gradient:

    >>> import jax.numpy as jnp
    >>> from fljax import data, models, simulate, training, trees
    >>> from fljax.protocol.messages import Report, Sent
    >>> from fljax.protocol.sums import Part, Streamed, mean
    >>> from fljax.protocol import Algorithm, Cohort
    >>>
    >>> def fedsgd(task, *, learning_rate):
    ...     def select(key, round, server, ballots, available):  # everybody who can
    ...         id = jnp.arange(available.population, dtype=jnp.int32)
    ...         return server, Cohort(id, jnp.zeros_like(id), available.mask()), {}
    ...
    ...     def train(key, seat, down, client, data):  # one client
    ...         gradient = training.full_gradient(task, down, data.train, key)
    ...         update = trees.scale(gradient, -learning_rate)
    ...         return Sent(update, Report(size=data.train.rows.size)), client
    ...
    ...     def contribute(server, seat, up):  # what one client adds to the sums of the round
    ...         return Part(up.update, weight=up.report.size), ()
    ...
    ...     def finish(server, total, rows, round):
    ...         return trees.add(server, mean(total)), {}
    ...
    ...     return Algorithm(
    ...         task=task,
    ...         init_server=lambda key, census: task.init(key),
    ...         send=lambda server, seat: server,
    ...         train=train,
    ...         aggregate=Streamed(contribute, finish),
    ...         select=select,
    ...         common=lambda down: down,
    ...     )
    >>>
    >>> federation = data.federate(data.load("blobs"), "iid", clients=4)
    >>> task = models.logistic_regression(federation.examples.x.shape[1:], classes=3)
    >>> result = simulate(fedsgd(task, learning_rate=0.5), federation, rounds=5, evaluate_every=5)
    >>> before, after = result.metrics["test_loss"].mean("client").values.ravel()
    >>> bool(after < before)
    True

    Attributes:
      task: judges the deployed models: ``task.logits(deployed, x, key)`` are their predictions.
      init_server: see InitServer.
      send: see Send.
      train: see Train.
      aggregate: see Aggregate; a ``fljax.protocol.sums.Streamed`` if the aggregation is a sum over clients.
      select: see Select.
      init_client: see InitClient.
      poll: see Poll; None: no client is polled and the ballots are ``()``.
      common: see Common; the model is recorded as the global model. None: there is no global model. If all clients have
        the same test rows, the model is judged once for all of them.
      personal: see Personal; None: a client uses ``common(down)``.
      models: see Models; for example IAFL's reference model or cluster models. None: there are none.
      counts: see Counts; None: metrics count all clients.
      peers: see Peers; None: no client receives rows of others.
      scenarios: the scenarios that are wrapped around the algorithm, the innermost first. A scenario counts its own
        name here, so that a scenario nested in itself draws other random numbers.
    """

    task: Task
    init_server: InitServer
    send: Send
    train: Train
    aggregate: Aggregate
    select: Select
    init_client: InitClient = keep_nothing
    poll: Poll | None = None
    common: Common | None = None
    personal: Personal | None = None
    models: Models | None = None
    counts: Counts | None = None
    peers: Peers | None = None
    scenarios: tuple[Applied, ...] = ()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The metrics of its scenarios."""
        return tuple(scenario.probe for scenario in self.scenarios if scenario.probe is not None)

    def down(self, server: PyTree, seat: Seat) -> PyTree:
        """ONE: what this client receives. ``server`` is the whole Server, and not what ``send`` sees of it."""
        if self.peers is not None and seat.known:
            id = self.peers(seen_from(server, seat), seat)
        else:
            id = jnp.zeros(0, jnp.int32)
        return self.send(seen_from(server, seat, id), seat)

    def deploy(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        """ONE: the model that this client would use.

        Raises:
          ValueError: if the algorithm has neither a common nor a personal model.
        """
        if self.personal is not None:
            return self.personal(key, seat, down, client, data)
        if self.common is None:
            raise ValueError("expected an algorithm with a common or a personal model, got one with neither")
        return self.common(down)

    def predict(self, deployed: PyTree, x: Array, key: TrainingKey | None = None) -> Float[Array, "b ..."]:
        """The predictions of a deployed model for prepared ``x``, in float32 or wider; a key means training mode."""
        return trees.widened(self.task.logits(deployed, x, key))


# Static: the fields are functions, nothing is traced. Equal algorithms share a program.
jax.tree_util.register_static(Algorithm)
