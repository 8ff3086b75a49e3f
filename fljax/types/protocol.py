"""The protocol that every algorithm speaks: one value of pure functions.

Functions marked ONE are written for one client; the engine maps them over clients. Server, Client, Down, Ballot, Up and
Deployed are pytrees of the algorithm's choice, so they are ``PyTree`` here and have types of their own in an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.types.data import Held, LocalData
from fljax.types.rounds import Available, Census, Cohort, Info, Seat
from fljax.types.task import Task


class InitServer(Protocol):
    """``(key, census) -> Server``: the server before round 0. What belongs to one client each is ``PerClient``."""

    def __call__(self, key: Key[Array, ""], census: Census, /) -> PyTree: ...


class Send(Protocol):
    """ONE ``(server, seat) -> Down``: everything that the server shows this client.

    Of what is ``PerClient`` in the server it is handed the client's own row. To a seat that is ``first`` it shows what
    ``init_client`` needs; that does not count as sent.
    """

    def __call__(self, server: PyTree, seat: Seat, /) -> PyTree: ...


class InitClient(Protocol):
    """ONE ``(key, seat, down, data) -> Client``: what a client keeps between rounds, before its first round.

    ``down`` is what ``send`` shows to a seat that is ``first``. A Client of ``()`` keeps nothing.
    """

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData, /) -> PyTree: ...


class Ask(Protocol):
    """ONE ``(key, seat, down, client, data) -> Ballot``: what a client answers before a cohort is selected."""

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /) -> PyTree: ...


class Select(Protocol):
    """``(key, round, server, ballots, available) -> (Server, Cohort, Info)``: chooses who trains in a round.

    ``round`` is ``[]``. ``ballots`` are the latest answers ``[N, ...]`` by id, ``()`` without a poll. The cohort is
    chosen from those ``available`` and has the same number of rows in every round. The returned Server may be another
    one: a market settles the last round here.
    """

    def __call__(
        self, key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available, /
    ) -> tuple[PyTree, Cohort, Info]: ...


class Train(Protocol):
    """ONE ``(key, seat, down, client, data) -> (Up, Client)``: local training, what it sends and what it keeps."""

    def __call__(
        self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /
    ) -> tuple[PyTree, PyTree]: ...


class Aggregate(Protocol):
    """``(key, round, server, up, cohort, held) -> (Server, Info)``: folds what the cohort sent into the server.

    ``up`` is ``[S, ...]`` by row of the cohort; rows that are not present arrive as zeros. ``held`` maps names to
    Subsets of the server's own examples. Where what clients send is added up, it is a ``fljax.streaming.Streamed``.
    """

    def __call__(
        self,
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PyTree,
        up: PyTree,
        cohort: Cohort,
        held: Held,
        /,
    ) -> tuple[PyTree, Info]: ...


class Common(Protocol):
    """``(down) -> Deployed``: the model that all clients have in common, before any of them changes it."""

    def __call__(self, down: PyTree, /) -> PyTree: ...


class Personal(Protocol):
    """ONE ``(key, seat, down, client, data) -> Deployed``: what the client would use; may train."""

    def __call__(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, /) -> PyTree: ...


class Models(Protocol):
    """``(server) -> {name: Judged}``: models of the server's own that need not be any client's."""

    def __call__(self, server: PyTree, /) -> Mapping[str, Judged]: ...


class Counts(Protocol):
    """ONE ``(server, seat) -> []``: whether metrics count this client. ``server`` is as for ``send``."""

    def __call__(self, server: PyTree, seat: Seat, /) -> Bool[Array, ""]: ...


class Poll(NamedTuple):
    """What clients are asked before a cohort is selected.

    Attributes:
      ask: see Ask; every client that is available and has data is asked.
      every: rounds between two polls; rounds between reuse the last ballots.
      shown: whether clients are shown Down before they answer. If not, ``down`` is ``()``, no bytes count for it, and
        all clients are asked.
    """

    ask: Ask
    every: int = 1
    shown: bool = True


class Judged(NamedTuple):
    """A model of the server's own that is judged, on rows of the server.

    Attributes:
      model: a Deployed; ``[C, ...]`` where there are several.
      rows: their name in ``Federation.held``. Of several models each is judged on each of ``held[f"{rows}_0"]``,
        ``held[f"{rows}_1"]`` and so on.
      several: whether there are several models.
    """

    model: PyTree
    rows: str
    several: bool = False


class Applied(NamedTuple):
    """A scenario that is wrapped around an algorithm.

    Attributes:
      name: of the scenario.
      rounds: how many rounds the tables cover that it was given; None: any number.
    """

    name: str
    rounds: int | None = None


def keep_nothing(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> tuple[()]:
    """``init_client`` of an algorithm whose clients keep nothing between rounds."""
    return ()


class Algorithm(NamedTuple):
    """A federated algorithm: one value, a handful of pure functions.

    Only ``send`` (Down), ``poll`` (Ballot) and ``train`` (Up) cross between server and client, so the bytes on the wire
    are the sizes of what they return. Scenarios know two parts of Up and Ballot: the field ``update``, a model change
    (new minus old), and any ``fljax.messages.Report``, which is what a client says of itself. A builder closes over its
    hyper-parameters; floats among them may be traced.

    A complete algorithm, FedSGD, in which each client takes one step along its full gradient:

    >>> import jax.numpy as jnp
    >>> from fljax import data, models, simulate, training, trees
    >>> from fljax.messages import Report, Sent
    >>> from fljax.streaming import Part, Streamed, mean
    >>> from fljax.types import Algorithm, Cohort
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
    ...     def finish(key, round, server, total, rows, cohort, held):
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
      task: what the deployed models are judged by: ``task.logits(deployed, x, key)`` is what they predict.
      init_server: see InitServer.
      send: see Send.
      train: see Train.
      aggregate: see Aggregate; a ``fljax.streaming.Streamed`` where what clients send is added up.
      select: see Select.
      init_client: see InitClient.
      poll: see Poll; None: nobody is asked and the ballots are ``()``.
      common: see Common. It is recorded as the global model; None where there is none. Where all clients have the same
        test rows it is judged once, and that holds for everybody.
      personal: see Personal; None: a client uses ``common(down)``.
      models: see Models; such as IAFL's reference or the models of clusters. None: there are none.
      counts: see Counts; None: metrics count all clients.
      scenarios: which scenarios are wrapped around the algorithm, the innermost first. A scenario that draws random
        numbers counts its own name here, so that it draws others when it is nested in itself.
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
    scenarios: tuple[Applied, ...] = ()

    def deploy(self, key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        """ONE: what this client would use.

        Raises:
          ValueError: if the algorithm has neither a common nor a personal model.
        """
        if self.personal is not None:
            return self.personal(key, seat, down, client, data)
        if self.common is None:
            raise ValueError("expected an algorithm with a common or a personal model, got one with neither")
        return self.common(down)

    def predict(self, deployed: PyTree, x: Array, key: Key[Array, ""] | None = None) -> Float[Array, "b ..."]:
        """What a deployed model says of prepared ``x``; a key means training mode."""
        return self.task.logits(deployed, x, key)


# Functions: nothing that could be traced. Algorithms that compare equal share a program.
jax.tree_util.register_static(Algorithm)
