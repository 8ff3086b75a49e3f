"""The protocol of every algorithm: one value of pure functions.

Functions marked ONE are written for one client; the engine maps them over clients. Server, Client, Down, Ballot, Up and
Deployed are pytrees of the algorithm's choice. ``common`` is the model before a client changes it; without ``personal``
nothing is evaluated twice. What ``send`` shows a seat that is ``first`` does not count as sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.core import trees
from fljax.protocol.data import LocalData
from fljax.protocol.roles import Task, TrainingKey
from fljax.protocol.rounds import Available, Census, Cohort, Info, Round, Seat, seen_from


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


class Applied(NamedTuple):
    """A scenario that is wrapped around an algorithm.

    Attributes:
      name: name of the scenario.
      rounds: number of rounds that its table covers; None: any number.
      tunes: whether clients train what they are given before they use it; training rows then judge their models, too.
    """

    name: str
    rounds: int | None = None
    tunes: bool = False


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
