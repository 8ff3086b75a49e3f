"""Parts of algorithms with one global model: what is sent, how updates are weighted, and the server's optimizer.

Clients may share some leaves of the model alone and keep the others (``partly_shared``). The shared part and a client's
own part are trees like the model, each with None in place of the other's leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import select_uniform
from fljax.core import trees
from fljax.protocol import (
    Algorithm,
    Census,
    Cohort,
    Info,
    InitClient,
    InitServer,
    LocalData,
    Round,
    Seat,
    Task,
    Train,
    along,
)
from fljax.protocol.messages import Report, Sent
from fljax.protocol.sums import Contribute, Part, Streamed, Total, divided, mean
from fljax.training import Local, Optimizer, OptimizerSettings, Trained, bypass_statistics, named_optimizer


class SingleModel(NamedTuple):
    """The Server of an algorithm with a single model: the model and the state of the server's optimizer.

    Attributes:
      model: what ``single_model`` sends to clients.
      optimizer: the state of the server's optimizer, or whatever else the server keeps; ``()``: nothing.
    """

    model: PyTree
    optimizer: PyTree = ()


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
        wide = trees.widened(model)  # the state adds up what happens in many rounds
        gradient = jax.tree.map(lambda move, leaf: -move.astype(leaf.dtype), step, wide)
        change, after = transformation.update(gradient, state, wide)
        # A float64 learning rate must not change the dtype of float32 models.
        change, after = trees.like(change, wide), trees.like(after, state)
        moved = trees.like(trees.add(wide, change), model)
        return trees.where(jnp.any(present), (moved, after), (model, state))

    return ServerOptimizer(lambda model: transformation.init(trees.widened(model)), move)


def init_optimized(task: Task, server_side: ServerOptimizer) -> InitServer:
    """``init_server`` of an algorithm with one model and a server's optimizer."""

    def init_server(key: Key[Array, ""], census: Census) -> SingleModel:
        model = task.init(key)
        return SingleModel(model, server_side.init(model))

    return init_server


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
        init_server=lambda key, census: SingleModel(task.init(key)),
        send=lambda server, seat: server.model,
        train=train,
        aggregate=lambda server, up, round: (server, {}),
        select=select_uniform(clients_per_round),
        common=received_model,
    )
    return usual._replace(**others)


class Learning(NamedTuple):
    """A client's local training.

    Attributes:
      first: ``model -> state``: what its optimizers keep before a client's first round.
      train: ``(key, seat, model, data, state=None) -> Trained``.
    """

    first: Callable[[PyTree], PyTree]
    train: Callable[..., Trained]


def learning_by(task: Task, local: Local) -> Learning:
    """Local training by ``local``. ``train`` takes ``loss``, ``adjust`` and ``steps`` of ``training.train``, too."""

    def train(
        key: Key[Array, ""], seat: Seat, model: PyTree, data: LocalData, state: PyTree = None, **how: Any
    ) -> Trained:
        return training.train(key, model, data.train, task=task, local=local, round=seat.round, state=state, **how)

    return Learning(functools.partial(training.first_state, task, local), train)


def keeping(task: Task, local: Local, received: Callable[[PyTree], PyTree] = received_model) -> InitClient:
    """``init_client`` of clients that keep their optimizer's state, if ``local.keep``, and nothing else.

    ``received(down)`` is the model that a client trains.
    """
    return lambda key, seat, down, data: training.first_state(task, local, received(down))


def tuned(algorithm: Algorithm, local: Local, epochs: int, *, all_clients: bool = True) -> Algorithm:
    """``algorithm`` with local training of deployed models, for some epochs at the first learning rate of ``local``.

    0 epochs: as it is. All clients tune, or unseen ones alone.
    """
    tuning = local._replace(steps=None, epochs=epochs, schedule=None)

    def personal(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        model = algorithm.deploy(key, seat, down, client, data)
        if seat.known and not all_clients:
            return model
        return training.train(key, model, data.train, task=algorithm.task, local=tuning).params

    return algorithm if epochs == 0 else algorithm._replace(personal=personal)


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
    """``contribute`` with weights by the reported size ("size") or of 1 ("uniform")."""
    return contribute_weighted(lambda up: up.report.size) if weights == "size" else contribute_update


def normalise_weights(weights: Float[Array, " S"]) -> Float[Array, " S"]:
    """Weights divided by their sum, for records; zeros if the sum is zero."""
    return divided(weights, jnp.sum(weights))


# --- Some leaves are shared ----------------------------------------------------------------------------------


class PartlySharedServer(NamedTuple):
    """The shared leaves, and the initial values of the clients' own leaves."""

    shared: PyTree
    start: PyTree


class PartlySharedClient(NamedTuple):
    """A client's own leaves, kept between rounds, and the kept state of its optimizer."""

    own: PyTree
    optimizer: PyTree = ()


def partly_shared(
    task: Task,
    local: Local,
    shared: Sequence[bool],
    *,
    clients_per_round: int | None,
    weights: str = "uniform",
    learning: Learning | None = None,
) -> Algorithm:
    """An algorithm that averages updates of shared leaves; clients train the whole model and keep the other leaves.

    ``learning`` replaces the local training by ``local``.
    """
    first, learn = learning or learning_by(task, local)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: PartlySharedClient, data: LocalData
    ) -> tuple[Sent, PartlySharedClient]:
        trained = learn(key, seat, trees.merge(down, client.own), data, client.optimizer)
        common, private = trees.split(trained.params, shared)
        after = PartlySharedClient(private, trained.state)
        return Sent(trees.subtract(common, down), reported_size(weights, data)), after

    def init_client(key: Key[Array, ""], seat: Seat, down: PartlySharedServer, data: LocalData) -> PartlySharedClient:
        return PartlySharedClient(down.start, first(trees.merge(down.shared, down.start)))

    def finish(server: PartlySharedServer, total: Total, rows: PyTree, round: Round) -> tuple[PartlySharedServer, Info]:
        step, info = mean_update(total, rows, round.cohort)
        return server._replace(shared=trees.add_scaled(server.shared, step)), info

    return Algorithm(
        task=task,
        init_server=lambda key, census: PartlySharedServer(*trees.split(task.init(key), shared)),
        init_client=init_client,
        send=lambda server, seat: server if seat.first else server.shared,
        train=train,
        aggregate=Streamed(contribute_by(weights), finish),
        select=select_uniform(clients_per_round),
        personal=lambda key, seat, down, client, data: trees.merge(down, client.own),
    )


def is_under(path: str, name: object) -> bool:
    """Whether a leaf is ``name``, or inside of the layer ``name``."""
    return path == name or path.startswith(f"{name}/")
