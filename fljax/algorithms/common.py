"""Parts that algorithms share: uniform selection, checks, and the parts of an algorithm with one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real

from fljax.core import trees
from fljax.protocol import (
    Algorithm,
    Available,
    Census,
    Cohort,
    Info,
    InitServer,
    LocalData,
    Round,
    Seat,
    Select,
    Task,
    Train,
    along,
)
from fljax.protocol.messages import Report
from fljax.protocol.sums import Contribute, Part, Streamed, Total, divided, mean
from fljax.training import (
    Local,
    Optimizer,
    OptimizerSettings,
    bypass_statistics,
    named_optimizer,
    pick_distinct,
)

# Populations from here on draw cohorts of up to SMALL rows without an array over clients: a score for each client costs
# a CPU 3 to 10 ms for 10^5 to 10^6 of them. Smaller populations keep the draws that they have had.
LARGE, SMALL = 20_000, 1024


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
      build: ``build(task, local, **hyper_parameters) -> Algorithm``.
      summary: one line for tables.
      references: keys of its sources in ``references.bib``.
      example: hyper-parameters beyond the defaults with which the laws are tested; arrays are for 5 clients.
      needs_all: whether every client must be polled in every round.
      needs_all_unless: hyper-parameters with which a part of the clients is enough.
      differentiable: hyper-parameters that rounds are differentiable in (``fljax.rollout``), with the arguments of
        ``example``; a field of a NamedTuple by its dotted name, e.g. ``"tokens.initial"``.
      flat: floats with zero gradient by construction in ``fljax.rollout``: results depend on them only through
        rounding, ranks or discrete choices, or not at all.
    """

    build: Callable[..., Algorithm]
    summary: str
    references: tuple[str, ...]
    example: dict[str, Any] = {}
    needs_all: bool = False
    differentiable: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    needs_all_unless: dict[str, Any] = {}

    def asks_all(self, options: Mapping[str, Any]) -> bool:
        """Whether every client must be polled in every round, with these hyper-parameters."""
        return self.needs_all and not any(options.get(name) == it for name, it in self.needs_all_unless.items())


class SingleModel(NamedTuple):
    """The Server of an algorithm with a single model: the model and the state of the server's optimizer.

    Attributes:
      model: what ``single_model`` sends to clients.
      optimizer: the state of the server's optimizer, or whatever else the server keeps; ``()``: nothing.
    """

    model: PyTree
    optimizer: PyTree = ()


def cohort_size(clients_per_round: int | None, population: int) -> int:
    """Number of rows of the cohort: ``min(clients_per_round, population)``; None: the population.

    Raises:
      ValueError: if ``clients_per_round`` is not positive.
    """
    if clients_per_round is not None and clients_per_round < 1:
        raise ValueError(f"expected a positive clients_per_round, got {clients_per_round}")
    return population if clients_per_round is None else min(clients_per_round, population)


def sample_uniform(
    key: Key[Array, ""], available: Available, rows: int
) -> tuple[Int[Array, " rows"], Bool[Array, " rows"]]:
    """Draws ``min(rows, number available)`` clients without replacement: ids, and which rows are filled.

    The cost of a small cohort of a large population that is all available does not depend on the population.
    """
    if available.among is None and available.population >= LARGE and rows <= min(SMALL, available.population // 64):
        id = _draw_ids(key, available.population, rows)
        return id, jnp.ones(id.shape, bool)
    score = -jax.random.uniform(key, (available.population,), jnp.float32)
    if available.among is not None:
        score = jnp.where(available.among, score, -jnp.inf)
    # top_k, not a sort: sorting a million clients takes half a second. Ties go to the lower id.
    _, id = jax.lax.top_k(score, min(rows, available.population))
    id = id.astype(jnp.int32)
    return id, jnp.ones(id.shape, bool) if available.among is None else available.among[id]


def _draw_ids(key: Key[Array, ""], population: int, rows: int) -> Int[Array, " rows"]:
    """``rows`` distinct ids in random order, by Floyd's method: no array has one entry per client."""
    guess_key, order_key = jax.random.split(key)
    last = jnp.arange(population - rows, population, dtype=jnp.int32)
    guess = jax.random.randint(guess_key, (rows,), 0, last + 1, jnp.int32)
    # Floyd's picks are a uniform set, but late picks are large ids more often.
    return jax.random.permutation(order_key, pick_distinct(guess[:, None], last, SMALL)[0])


def select_uniform(clients_per_round: int | None) -> Select:
    """The usual ``select``: a uniform sample of available clients without replacement, each in slot 0."""

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        rows = cohort_size(clients_per_round, available.population)
        id, present = sample_uniform(key, available, rows)
        return server, Cohort(id, jnp.zeros_like(id), present), {}

    return select


class ServerOptimizer(NamedTuple):
    """How the server's model follows the aggregated update, as pure functions.

    Attributes:
      init: ``model -> state``.
      move: ``(model, state, step, present [S]) -> (model, state)``: the optimizer treats ``-step`` as the gradient. An
        empty round leaves model and state unchanged.
    """

    init: Callable[[PyTree], PyTree]
    move: Callable[..., tuple[PyTree, PyTree]]


def server_optimizer(rate: float | Array, chosen: Optimizer, task: Task | None = None) -> ServerOptimizer:
    """The server's optimizer by name: FedAvgM, FedAdam, FedYogi or any other optimizer of optax.

    Args:
      rate: the server's learning rate.
      chosen: the name of an optax optimizer ("sgd": ``model + rate * step``), a name with the optimizer's other
        arguments, e.g. ``OptimizerSettings("sgd", (("momentum", 0.9),))``, or
        ``learning_rate -> GradientTransformation``.
      task: its statistics move by ``step`` itself, whatever the rate and the optimizer. None: there are none.

    Raises:
      ValueError: if optax has no optimizer of that name.

    Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 1. Deviation: optax's adam
    corrects the bias of its moments, and starts the second one at 0.
    """
    name, options = chosen if isinstance(chosen, OptimizerSettings) else (chosen, ())
    transformation = named_optimizer(name, rate, dict(options))
    if task is not None:
        transformation = bypass_statistics(task, transformation)

    def move(model: PyTree, state: PyTree, step: PyTree, present: Bool[Array, " S"]) -> tuple[PyTree, PyTree]:
        gradient = jax.tree.map(lambda move, own: -move.astype(own.dtype), step, model)
        change, after = transformation.update(gradient, state, model)
        # A float64 learning rate must not change the dtype of float32 models.
        change, after = (
            jax.tree.map(lambda new, old: new.astype(old.dtype), *pair) for pair in ((change, model), (after, state))
        )
        return trees.where(jnp.any(present), (trees.add(model, change), after), (model, state))

    return ServerOptimizer(transformation.init, move)


def init_model(task: Task) -> InitServer:
    """``init_server`` of an algorithm with one model, the task's initial parameters."""
    return lambda key, census: SingleModel(task.init(key))


def init_optimized(task: Task, server_side: ServerOptimizer) -> InitServer:
    """Like ``init_model``, with the state of the server's optimizer."""

    def init_server(key: Key[Array, ""], census: Census) -> SingleModel:
        model = task.init(key)
        return SingleModel(model, server_side.init(model))

    return init_server


def send_model(server: Any, seat: Seat) -> PyTree:
    """``send`` of an algorithm whose Down is the global model, the field ``model`` of its Server."""
    return server.model


def received_model(down: PyTree) -> PyTree:
    """``common`` of an algorithm whose Down is the global model."""
    return down


def use_received_model(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
    """``personal`` of an algorithm whose Down is the client's own model."""
    return down


def single_model(
    task: Task,
    *,
    clients_per_round: int | None,
    train: Train,
    **others: Any,  # fields of Algorithm, each of a type of its own
) -> Algorithm:
    """An algorithm with one global model, sent to a uniform cohort and used by all clients; ``others`` replace fields.

    Down is the model. The default ``aggregate`` leaves the server unchanged, so most algorithms also pass the fields of
    ``with_server_optimizer``. Another ``aggregate`` gets and returns a Server that is a ``SingleModel``; with another
    ``init_server``, too, the Server is any NamedTuple with a field ``model``.
    """
    usual = Algorithm(
        task=task,
        init_server=init_model(task),
        send=send_model,
        train=train,
        aggregate=lambda server, up, round: (server, {}),
        select=select_uniform(clients_per_round),
        common=received_model,
    )
    return usual._replace(**others)


def with_server_optimizer(
    task: Task,
    contribute: Contribute,
    direction: Callable[..., tuple[PyTree, Info]],
    server_lr: float | Array,
    optimizer: Optimizer,
) -> dict[str, Any]:
    """``init_server`` and ``aggregate`` for one model and a server optimizer. A round of nobody changes no state.

    Args:
      task: gives the initial model.
      contribute: ``(server, seat, up) -> (Part(value, weight), row)``: the client's part of the sums of a round, as in
        ``Streamed``. A tuple as ``value`` gives several sums. ``row`` is any pytree.
      direction: ``(total, rows, cohort) -> (step, Info)``: the increment for a server learning rate of 1.
        ``mean(total)`` of ``fljax.protocol.sums`` is the weighted mean of the values; ``rows`` are the rows of the
        cohort, stacked ``[S, ...]``.
      server_lr: the server's learning rate.
      optimizer: see ``server_optimizer``.
    """
    server_side = server_optimizer(server_lr, optimizer, task)

    def finish(server: SingleModel, total: Total, rows: PyTree, round: Round) -> tuple[SingleModel, Info]:
        step, info = direction(total, rows, round.cohort)
        return SingleModel(*server_side.move(server.model, server.optimizer, step, round.cohort.present)), info

    return {"init_server": init_optimized(task, server_side), "aggregate": Streamed(contribute, finish)}


def contribute_weighted(weight: Callable[[PyTree], float | Array]) -> Contribute:
    """``contribute`` that adds the client's update with weight ``weight(up)`` and records the weight."""

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, Array]:
        mass = trees.wide(weight(up))
        return Part(up.update, mass), mass

    return contribute


def reported_size(weights: str, data: LocalData) -> Report:
    """A report with the client's number of training samples if ``weights`` is "size"; else an empty report."""
    return Report(size=data.train.rows.size) if weights == "size" else Report()


def mean_update(total: Total, rows: Float[Array, " S"], cohort: Cohort) -> tuple[PyTree, Info]:
    """The direction ``sum_k a_k update_k / sum_k a_k``, where ``rows`` are the ``a_k``; Info: ``weight`` [row].

    It belongs to ``contribute_update`` and ``contribute_weighted``, whose rows are plain weights.
    """
    return mean(total), along("row", weight=normalise_weights(rows))


def contribute_update(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, Array]:
    """``contribute`` that adds the client's update with weight 1, so ``mean_update`` is the plain mean over the cohort.

    ``contribute_weighted(lambda up: up.report.size)`` weights clients by their number of samples.
    """
    mass = trees.wide(1.0)
    return Part(up.update, mass), mass


def contribute_by(weights: str) -> Contribute:
    """``contribute`` with weights by the reported size ("size") or of 1 ("uniform").

    Raises:
      ValueError: if ``weights`` is not a valid name.
    """
    if weights not in ("size", "uniform"):
        raise ValueError(f"expected weights to be size or uniform, got {weights!r}")
    return contribute_weighted(lambda up: up.report.size) if weights == "size" else contribute_update


def with_checked_threshold(threshold: Array, init_server: InitServer) -> InitServer:
    """``init_server`` that first checks that ``threshold`` is one number or ``[N]``, and raises a ValueError if not."""

    def init(key: Key[Array, ""], census: Census) -> PyTree:
        population = census.train.shape[0]
        if threshold.shape not in ((), (population,)):
            raise ValueError(
                f"expected threshold to be one number or one for each of {population} clients, got shape "
                f"{threshold.shape}; thresholds of several seeds go to by_seed of a Plan"
            )
        return init_server(key, census)

    return init


def threshold_of(threshold: Real[Array, "*N"], id: Int[Array, "*S"]) -> Real[Array, "*of"]:
    """The thresholds of one or some clients: one number for all, or ``[N]`` by id."""
    return threshold if threshold.ndim == 0 else threshold[id]


def require_plain_sgd(local: Local, algorithm: str) -> None:
    """Raises a ValueError unless the local optimizer is plain SGD, whose step length the algorithm must know."""
    if local.optimizer != "sgd" or local.options:
        got = f"{local.optimizer!r}" + (f" with {dict(local.options)}" if local.options else "")
        raise ValueError(f"expected the local optimizer 'sgd' without options for {algorithm}, got {got}")


def shares_of_members(shares: Float[Array, " N"], available: Available) -> Float[Array, " N"]:
    """Shares of a whole, by client id, where the share of a client that left goes to the members in proportion.

    Where no client with a share has left, or no member has a share, the result is ``shares``.
    """
    if available.members is None:
        return shares
    own = jnp.where(available.members, shares, 0)
    moves = jnp.any(~available.members & (shares != 0)) & (jnp.sum(own) > 0)
    return jnp.where(moves, trees.ratio(own * jnp.sum(shares), jnp.sum(own)), shares).astype(shares.dtype)


def normalise_weights(weights: Float[Array, " S"]) -> Float[Array, " S"]:
    """Weights divided by their sum, for records; zeros if the sum is zero."""
    return divided(weights, jnp.sum(weights))
