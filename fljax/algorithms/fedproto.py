"""FedProto: clients share the mean representation of each class, and never a model.

Source: Tan et al., "FedProto: federated prototype learning across heterogeneous clients" (AAAI 2022), Algorithm 1.
Deviations: a client computes its prototypes on all of its training rows after training (the benchmark code collects
them during training, over all epochs); representations are those of evaluation mode, also in the penalty; all clients
start from the same model, so without the penalty this is standalone training; a class without rows in the cohort keeps
its previous prototype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import learning_by
from fljax.core import trees
from fljax.core.loops import repeat
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Census, Info, LocalData, Round, Seat, Subset, Task, TrainingKey, roles
from fljax.protocol.sums import Part, Streamed, Total, divided
from fljax.training import AT_ONCE, Local, Stream

# The logit of a class without a prototype: finite, so that losses stay finite, and far below the negative squared
# distances of a network that has not diverged.
UNKNOWN = -1e6


class FedProtoDown(NamedTuple):
    """The prototype of each class, and which classes have one."""

    prototypes: Float[Array, "classes width"]
    known: Bool[Array, " classes"]


class FedProtoServer(NamedTuple):
    """The prototypes that clients receive, and the initial model, which each client receives once."""

    shown: FedProtoDown
    start: PyTree


class FedProtoUp(NamedTuple):
    """A client's mean representation and number of rows of each class; zeros for classes without rows."""

    prototypes: Float[Array, "classes width"]
    count: Int[Array, " classes"]  # pyright: ignore[reportIncompatibleMethodOverride] - tuple.count is not needed


class FedProtoClient(NamedTuple):
    """A client's own model, kept between rounds."""

    model: PyTree
    optimizer: PyTree = ()  # its kept state


class FedProtoDeployed(NamedTuple):
    """A client's model, and the prototypes for nearest-prototype prediction."""

    model: PyTree
    shown: FedProtoDown


@checked
def fedproto(
    task: Task,
    local: Local,
    *,
    regularisation: NonNegative = 1.0,
    weights: Literal["count", "uniform"] = "count",
    predict: Literal["prototype", "head"] = "prototype",
    clients_per_round: Count | None = 10,
) -> Algorithm:
    """Client loss: ``CE + lambda mean_z (rep(x) - Cbar_y)^2``; the server: ``Cbar_j`` is the clients' mean.

    Rows whose class has no prototype yet carry no penalty.

    Args:
      task: model and loss, with ``features``, and its ``classes`` and ``width``.
      local: how clients train.
      regularisation: lambda.
      weights: client weights in the mean of a class: "count": the client's number of rows of the class; "uniform":
        equal weights of all clients with rows of the class.
      predict: "prototype": the logit of a class is minus the squared distance of the representation to its prototype,
        and -1e6 for a class without a prototype. With "head", or while no class has a prototype, logits are those of
        the model.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep their models.

    Returns:
      The algorithm. There is no global model and no model for unseen clients: metrics of unseen clients are NaN. Info:
      ``known_classes``, the number of classes with a prototype.

    Raises:
      ValueError: if a name is not valid, or the task has no ``features``, ``classes`` or ``width``.
    """
    (features, classes, width), learning = _sizes(task), learning_by(task, local)

    def init_server(key: Key[Array, ""], census: Census) -> FedProtoServer:
        model = task.init(key)
        nothing = jnp.zeros((classes, width), trees.wide(jax.tree.leaves(model)[0]).dtype)
        return FedProtoServer(FedProtoDown(nothing, jnp.zeros(classes, bool)), model)

    def penalised(down: FedProtoDown, params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
        loss = training.task_loss(task)(params, x, y, position, key)
        # Representations of evaluation mode, as prototypes are; the loss moves no statistics through them.
        apart = trees.wide(features(roles.hold_statistics(task, params), x)) - down.prototypes[y]
        penalty = jnp.where(down.known[y], jnp.mean(jnp.square(apart), axis=1), 0).astype(loss.dtype)
        return loss + jnp.asarray(regularisation).astype(loss.dtype) * penalty

    def train(
        key: Key[Array, ""], seat: Seat, down: FedProtoDown, client: FedProtoClient, data: LocalData
    ) -> tuple[FedProtoUp, FedProtoClient]:
        loss = functools.partial(penalised, down)
        trained = learning.train(key, seat, client.model, data, client.optimizer, loss=loss)
        total, count = class_sums(task, trained.params, data.train, training.stream(key, Stream.PROTOTYPES))
        means = total / jnp.maximum(count, 1).astype(total.dtype)[:, None]
        after = FedProtoClient(trained.params, trained.state)
        return FedProtoUp(means.astype(down.prototypes.dtype), count), after

    def contribute(server: FedProtoServer, seat: Seat, up: FedProtoUp) -> tuple[Part, tuple[()]]:
        mass = trees.wide(jnp.where(up.count > 0, up.count if weights == "count" else 1, 0))
        sums = mass[:, None] * jnp.where(up.count[:, None] > 0, trees.wide(up.prototypes), 0)
        return Part((sums, mass)), ()

    def finish(server: FedProtoServer, total: Total, rows: PyTree, round: Round) -> tuple[FedProtoServer, Info]:
        sums, mass = total.value
        old, means = server.shown, divided(sums, mass).astype(server.shown.prototypes.dtype)
        known = old.known | (mass > 0)
        shown = FedProtoDown(jnp.where((mass > 0)[:, None], means, old.prototypes), known)
        return server._replace(shown=shown), {"known_classes": jnp.sum(known, dtype=jnp.int32)}

    def logits(deployed: FedProtoDeployed, x: Array, key: TrainingKey | None = None) -> Array:
        output = trees.widened(task.logits(deployed.model, x, key))
        if predict == "head":
            return output
        prototypes, known = deployed.shown
        apart = trees.wide(features(deployed.model, x))[:, None, :] - prototypes[None, :, :]
        nearness = jnp.where(known[None, :], -jnp.sum(jnp.square(apart), axis=2), UNKNOWN)
        return jnp.where(jnp.any(known), nearness.astype(output.dtype), output)

    def roles_of(tree: PyTree) -> PyTree:  # a deployed model with its prototypes, or a model
        assert task.roles is not None
        if not isinstance(tree, FedProtoDeployed):
            return task.roles(tree)
        others = jax.tree.map(lambda _: "trained", tree.shown, is_leaf=lambda leaf: leaf is None)
        return FedProtoDeployed(task.roles(tree.model), others)

    return Algorithm(
        task=task._replace(logits=logits, roles=None if task.roles is None else roles_of),
        init_server=init_server,
        init_client=lambda key, seat, down, data: FedProtoClient(down, learning.first(down)),
        send=lambda server, seat: server.start if seat.first else server.shown,
        train=train,
        aggregate=Streamed(contribute, finish),
        select=select_uniform(clients_per_round),
        personal=lambda key, seat, down, client, data: FedProtoDeployed(client.model, down),
        counts=lambda server, seat: jnp.asarray(seat.known),
    )


def class_sums(
    task: Task, params: PyTree, subset: Subset, key: Key[Array, ""]
) -> tuple[Float[Array, "classes width"], Int[Array, " classes"]]:
    """Sum of representations and number of rows of each class, over ALL rows of a subset, read in parts."""
    features, classes, width = _sizes(task)
    dtype = trees.wide(jax.tree.leaves(params)[0]).dtype
    capacity, size = subset.rows.index.shape[-1], subset.rows.size
    parts = -(-capacity // AT_ONCE)
    rows = -(-capacity // parts)

    def one(part: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        position = part * rows + jnp.arange(rows)
        real = position < size
        x, y = training.fetch(task, subset, position, key)
        z = jnp.where(real[:, None], trees.wide(features(params, x)), 0)
        of_class = (y[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
        sums = jnp.matmul(of_class.astype(z.dtype).T, z, precision=jax.lax.Precision.HIGHEST).astype(dtype)
        return total[0] + sums, total[1] + jnp.sum(of_class, axis=0, dtype=jnp.int32)

    begin = (jnp.zeros((classes, width), dtype), jnp.zeros(classes, jnp.int32))
    return repeat(-(-size // rows), one, begin, most=parts)


def _sizes(task: Task) -> tuple[Callable[[PyTree, Array], Array], int, int]:
    """Features, classes and width of a task; raises a ValueError if the task lacks one of them."""
    if task.features is None or task.classes is None or task.width is None:
        missing = [name for name in ("features", "classes", "width") if getattr(task, name) is None]
        raise ValueError(f"expected a task with features, classes and width, got one without {', '.join(missing)}")
    return task.features, task.classes, task.width


ENTRY = Entry(
    fedproto,
    "clients share the mean representation of each class, and never a model",
    ("tan2022fedproto",),
    # Distances as logits are not calibrated; with these numbers the toy model of the laws does not overfit.
    {"regularisation": 3.0, "weights": "uniform"},
    differentiable=("regularisation",),
)
