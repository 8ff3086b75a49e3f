"""The words of fljax: data, tasks, and the protocol that every algorithm speaks.

Floor 0: imports JAX only. Functions marked ONE are written for one client; the engine maps them over clients.
Everything here is a pytree and may cross ``jit``, ``vmap`` and ``lax.scan``. ``Seat.known`` is static there, and so are
``Task`` and ``Algorithm`` as a whole: they have no leaves, and those that compare equal share a program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key, PyTree

    Info = Mapping[str, "Array | Labelled"]


# --- Data ---------------------------------------------------------------------------------------------------


class Examples(NamedTuple):
    """All examples of a federation, stored once on the device; clients are index lists into them."""

    x: Array  # [n, ...]; images stay uint8 until Task.prepare
    y: Array  # [n, ...]; class labels are whole numbers [n], other tasks have labels of their own shape and dtype


class Rows(NamedTuple):
    """An index list padded to a fixed length: only the first ``size`` entries are real."""

    index: Int[Array, "*batch n_max"]
    size: Int[Array, "*batch"]


class ClientData(NamedTuple):
    """What one client owns, as index lists; stacked over clients inside a Federation.

    ``id`` is a permutation of 0..N-1 for seen clients. Unseen clients have ids of their own (0..U-1), which only
    separate their random keys: algorithms see the id -1 for them.
    """

    id: Int[Array, "*batch"]
    train: Rows
    valid: Rows
    test: Rows
    noise: Float[Array, "*batch"] | None = None  # std of noise on prepared training features; None: nowhere


class Federation(NamedTuple):
    """A partitioned data set: examples, seen clients [N], unseen clients [U] (None: none), the server's rows by name.

    Several federations (one per seed) that share ``examples`` may be stacked: see ``fljax.data.stack``.
    """

    examples: Examples
    clients: ClientData
    unseen: ClientData | None = None
    held: Mapping[str, Rows] = {}


class Subset(NamedTuple):
    """Some rows of the shared examples, as one client (or the server) reads them: see ``fljax.local.fetch``."""

    examples: Examples
    rows: Rows
    noise: Float[Array, ""] | None = None


class LocalData(NamedTuple):
    """Everything that one client can read: the ``data`` argument of the protocol's functions."""

    train: Subset
    valid: Subset
    test: Subset


# --- Task ---------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A model and how it is judged, as pure functions. ``fljax.models`` makes one from a flax module.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, x, key=None) -> [b, ...]`` on prepared ``x``: what the model says, ``[b, classes]`` where it
        classifies. A key means training mode (dropout).
      loss: ``(logits, y) -> [b]``, per sample.
      features: ``(params, x) -> [b, z]``, the representation in front of the last layer.
      prepare: ``raw x -> x``: cast and standardise a batch of stored examples.
      augment: ``(key, x) -> x`` on a prepared training batch.
      is_head: ``params -> pytree of bool`` with the structure of params, True for the last layer.
      classes: how many classes there are. Labels are then whole numbers ``[n]`` below it. None: not known, or the task
        has no classes. Algorithms that keep something for each class ask for it.
      width: how long a representation is (z); None: not known.
      score: ``(logits, y) -> [b]``, how right each sample is, from 0 to 1. Its mean is the accuracy. None: the task has
        no accuracy, and no metric that is made of accuracies exists.
    """

    init: Callable[[Key[Array, ""]], PyTree]
    logits: Callable[..., Float[Array, "b ..."]]
    loss: Callable[[Float[Array, "b ..."], Array], Float[Array, " b"]]
    features: Callable[[PyTree, Array], Float[Array, "b z"]] | None = None
    prepare: Callable[[Array], Array] | None = None
    augment: Callable[[Key[Array, ""], Array], Array] | None = None
    is_head: Callable[[PyTree], PyTree] | None = None
    classes: int | None = None
    width: int | None = None
    score: Callable[[Float[Array, "b ..."], Array], Array] | None = None


# --- Protocol -----------------------------------------------------------------------------------------------


class Census(NamedTuple):
    """What the server knows of the population before round 0: sample counts by client id."""

    train: Int[Array, " N"]
    valid: Int[Array, " N"]


class Seat(NamedTuple):
    """Where one client sits in a call.

    Attributes:
      round: 0-based round.
      id: client id in 0..N-1, or -1 for an unseen client (then index no ``[N]`` array with it).
      slot: what the client is asked for, e.g. which cluster model it trains; 0 where there is only one thing.
      known: a Python bool: False for an unseen client. Static, so ``if not seat.known`` is allowed.
      first: a Python bool, static: True where ``send`` shows what ``init_client`` needs once, before a client's first
        round.
    """

    round: Int[Array, ""]
    id: Int[Array, ""]
    slot: Int[Array, ""]
    known: bool = True
    first: bool = False


_MARKS = tuple[bool, bool]


def _flatten_seat(seat: Seat) -> tuple[tuple[Any, Any, Any], _MARKS]:
    return (seat.round, seat.id, seat.slot), (seat.known, seat.first)


def _flatten_seat_with_keys(seat: Seat) -> tuple[Any, _MARKS]:
    leaves, marks = _flatten_seat(seat)
    names = map(jax.tree_util.GetAttrKey, ("round", "id", "slot"))
    return tuple(zip(names, leaves, strict=True)), marks


# "known" and "first" are no leaves: they stay Python bools under jit and vmap.
jax.tree_util.register_pytree_with_keys(
    Seat, _flatten_seat_with_keys, lambda marks, leaves: Seat(*leaves, known=marks[0], first=marks[1]), _flatten_seat
)


class Cohort(NamedTuple):
    """Who trains in a round: a fixed number of rows S, each one (client, slot).

    Where ``present`` is False the row is empty: its id is ignored, its weight is zero and nothing of it is kept.
    An id may stand in several rows (with different slots) only if training changes no client state.
    """

    id: Int[Array, " S"]
    slot: Int[Array, " S"]
    present: Bool[Array, " S"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("dimensions",))
@dataclasses.dataclass(frozen=True)
class Labelled:
    """An entry of Info with the names of its dimensions, which are static.

    Attributes:
      values: as many dimensions as there are names; the engine adds seeds and rounds in front.
      dimensions: such as ``("client",)``. Usual names are client, row (of the cohort) and cluster.
    """

    values: Any
    dimensions: tuple[str, ...]


def along(*dimensions: str, **values: Any) -> dict[str, Labelled]:
    """Entries of Info that share their dimensions: ``along("row", loss=loss, weight=weight)``."""
    return {name: Labelled(entry, dimensions) for name, entry in values.items()}


def unlabelled(info: Info) -> dict[str, Any]:
    """The values of Info alone, by name."""
    return {name: entry.values if isinstance(entry, Labelled) else entry for name, entry in info.items()}


class Applied(NamedTuple):
    """A scenario that is wrapped around an algorithm.

    Attributes:
      name: of the scenario.
      rounds: how many rounds the tables cover that it was given; None: any number.
    """

    name: str
    rounds: int | None = None


class Available(NamedTuple):
    """Who can take part in a round.

    Attributes:
      population: how many clients there are, N. A Python int, static.
      among: ``[N]`` by id, who can; None: everybody. Ask for it where everybody is a simpler case, else for ``mask``.
    """

    population: int
    among: Bool[Array, " N"] | None = None

    def mask(self) -> Bool[Array, " N"]:
        """``[N]`` by id, who can."""
        return jnp.ones(self.population, bool) if self.among is None else self.among

    def only(self, some: Bool[Array, " N"]) -> Available:
        """Those of them who are also among ``some``."""
        return Available(self.population, some if self.among is None else self.among & some)


jax.tree_util.register_pytree_node(
    Available, lambda each: ((each.among,), each.population), lambda population, among: Available(population, *among)
)


class PerClient(NamedTuple):
    """What of the Server belongs to one client each, such as the models that clients are rewarded with.

    Where one client is looked at (``send``, ``contribute``, ``counts``), its own row stands here instead; for an unseen
    client zeros. So no client's part of a round needs the rows of others.

    Attributes:
      values: leaves ``[N, ...]`` by id.
    """

    values: PyTree


def seen_from(server: PyTree, seat: Seat) -> PyTree:
    """The Server as ``send``, ``contribute`` and ``counts`` see it from a seat: of ``PerClient`` the client's row."""

    def own(leaf: Array) -> Array:
        return leaf[seat.id] if seat.known else jnp.zeros(leaf.shape[1:], leaf.dtype)

    def look(part: Any) -> Any:
        return jax.tree.map(own, part.values) if isinstance(part, PerClient) else part

    return jax.tree.map(look, server, is_leaf=lambda part: isinstance(part, PerClient))


class Select(Protocol):
    """Chooses the cohort from those ``available``; may settle the ballots of the last round in the server."""

    def __call__(
        self, key: Any, round: Any, server: Any, ballots: Any, available: Available
    ) -> tuple[Any, Cohort, Info]: ...


class Aggregate(Protocol):
    """Folds what the cohort sent, ``up`` [S, ...], into the server.

    Rows that are not present arrive as zeros. ``held`` maps names to Subsets of the server's own examples.
    """

    def __call__(
        self, key: Any, round: Any, server: Any, up: Any, cohort: Cohort, held: Mapping[str, Subset]
    ) -> tuple[Any, Info]: ...


class Poll(NamedTuple):
    """What clients are asked before a cohort is selected.

    Attributes:
      ask: ONE ``(key, seat, down, client, data) -> Ballot``, of every client that is available and has data.
      every: rounds between two polls; rounds between reuse the last ballots.
      shown: whether clients are shown Down before they answer. If not, ``down`` is ``()``, no bytes count for it, and
        all clients are asked.
    """

    ask: Callable[..., Any]
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

    model: Any
    rows: str
    several: bool = False


class Algorithm(NamedTuple):
    """A federated algorithm: one value, a handful of pure functions.

    Only ``send`` (Down), ``poll`` (Ballot) and ``train`` (Up) cross between server and client, so the bytes on the wire
    are the sizes of what they return (what ``send`` shows once, to a seat that is ``first``, is not counted). Scenarios
    know two parts of Up and Ballot: the field ``update``, a model change (new minus old), and any
    ``fljax.messages.Report``, which is what a client says of itself. A builder closes over its hyper-parameters; floats
    among them may be traced. Server, Client, Down, Ballot, Up and Deployed are pytrees of the algorithm's choice.

    Attributes:
      task: what the deployed models are judged by: ``task.logits(deployed, x, key)`` is what they predict.
      init_server: ``(key, census) -> Server``; what belongs to one client each is ``PerClient`` there.
      send: ONE ``(server, seat) -> Down``: everything that the server shows this client; of ``PerClient`` it is handed
        the client's row.
      train: ONE ``(key, seat, down, client, data) -> (Up, Client)``.
      aggregate: a ``fljax.streaming.Streamed``, where what clients send is added up; else see Aggregate.
      select: see Select.
      init_client: ONE ``(key, seat, down, data) -> Client``, kept between rounds; ``()`` where nothing is kept. Here
        ``down`` is what ``send`` shows to a seat that is ``first``.
      poll: see Poll; None: nobody is asked and the ballots are ``()``.
      common: ``(down) -> Deployed``: the model that all clients have in common before any of them changes it, recorded
        as the global model; None where there is none. Where all clients have the same test rows it is judged once, and
        that holds for everybody.
      personal: ONE ``(key, seat, down, client, data) -> Deployed``: what the client would use; may train. None: it uses
        ``common(down)``.
      models: ``(server) -> {name: Judged}``: models of the server's own that need not be any client's, such as IAFL's
        reference or the models of clusters. None: there are none.
      counts: ONE ``(server, seat) -> bool``: whether metrics count this client; None: all count.
      scenarios: which scenarios are wrapped around the algorithm, the innermost first. A scenario that draws random
        numbers counts its own name here, so that it draws others when it is nested in itself.
    """

    task: Task
    init_server: Callable[[Any, Census], Any]
    send: Callable[[Any, Seat], Any]
    train: Callable[..., tuple[Any, Any]]
    aggregate: Aggregate
    select: Select
    init_client: Callable[..., Any] = lambda key, seat, down, data: ()
    poll: Poll | None = None
    common: Callable[[Any], Any] | None = None
    personal: Callable[..., Any] | None = None
    models: Callable[[Any], Mapping[str, Judged]] | None = None
    counts: Callable[[Any, Seat], Any] | None = None
    scenarios: tuple[Applied, ...] = ()

    def deploy(self, key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        """ONE: what this client would use."""
        if self.personal is not None:
            return self.personal(key, seat, down, client, data)
        if self.common is None:
            raise ValueError("expected an algorithm with a common or a personal model, got one with neither")
        return self.common(down)

    def predict(self, deployed: Any, x: Any, key: Any = None) -> Any:
        """What a deployed model says of prepared ``x``; a key means training mode."""
        return self.task.logits(deployed, x, key)


# Functions and numbers of classes: nothing that could be traced.
jax.tree_util.register_static(Task)
jax.tree_util.register_static(Algorithm)
