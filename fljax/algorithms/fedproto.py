"""FedProto: clients share the mean representation of each class, and never a model.

Source: Tan et al., "FedProto: federated prototype learning across heterogeneous clients" (AAAI 2022), Algorithm 1.
Deviations: a client computes its prototypes on all of its training rows once it has trained (the benchmark code
collects them during training, over all epochs); all clients start from the same model, so that without the penalty this
is standalone training; classes that nobody sends in a round keep the prototype they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training, trees
from fljax.algorithms.common import Entry, select_uniform
from fljax.loops import repeat
from fljax.streaming import Part, Streamed, Total, divided
from fljax.training import AT_ONCE, Local
from fljax.types import Algorithm, Census, Cohort, Held, Info, LocalData, Seat, Subset, Task

REFERENCE = """@inproceedings{tan2022fedproto,
  title = {{FedProto}: Federated Prototype Learning across Heterogeneous Clients},
  author = {Tan, Yue and Long, Guodong and Liu, Lu and Zhou, Tianyi and Lu, Qinghua and Jiang, Jing and
    Zhang, Chengqi},
  booktitle = {AAAI},
  year = {2022}
}"""

# The logit of a class without a prototype: finite, so that losses stay so, and far below minus any squared distance of
# a network that has not diverged.
UNKNOWN = -1e6
# What is folded into the key for the prototypes: ``training.train`` takes 0 and 1.
PROTOTYPES = 2


class FedProtoDown(NamedTuple):
    """The prototype of each class, and which classes have one."""

    prototypes: Float[Array, "classes width"]
    known: Bool[Array, " classes"]


class FedProtoServer(NamedTuple):
    """What clients are shown, and the model from which they start, shown once."""

    shown: FedProtoDown
    start: PyTree


class FedProtoUp(NamedTuple):
    """A client's mean representation of each class, and its number of rows of each; classes without rows hold 0."""

    prototypes: Float[Array, "classes width"]
    count: Int[Array, " classes"]


class FedProtoSums(NamedTuple):
    """What a client adds: its prototypes times their weights, and the weights."""

    prototypes: Float[Array, "classes width"]
    mass: Float[Array, " classes"]


class FedProtoClient(NamedTuple):
    """A client's own model, kept between rounds."""

    model: PyTree


class FedProtoDeployed(NamedTuple):
    """A client's model, and the prototypes among which it looks for the nearest."""

    model: PyTree
    shown: FedProtoDown


def fedproto(
    task: Task,
    local: Local,
    *,
    regularisation: float = 1.0,
    weights: Literal["count", "uniform"] = "count",
    predict: Literal["prototype", "head"] = "prototype",
    clients_per_round: int | None = 10,
) -> Algorithm:
    """Client loss: ``CE + lambda mean_z (rep(x) - Cbar_y)^2``; the server: ``Cbar_j`` is the clients' mean.

    Rows whose class has no prototype yet carry no penalty.

    Args:
      task: model and loss, with ``features``, and its ``classes`` and ``width``.
      local: how clients train.
      regularisation: lambda.
      weights: how clients weigh in the mean of a class: "count" by their rows of it; "uniform" all that have it alike.
      predict: "prototype": the logit of a class is minus the squared distance of the representation to its prototype,
        and -1e6 for a class without one; while no class has one, and with "head", logits are those of the model.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep their models.

    Returns:
      The algorithm. There is no model for an unseen client, nor a global one: metrics of unseen clients are NaN. Info:
      ``known_classes``, how many classes have a prototype.

    Raises:
      ValueError: if a name is not valid, or the task has no ``features`` or does not know its sizes.
    """
    for name, value, valid in (("weights", weights, ("count", "uniform")), ("predict", predict, ("prototype", "head"))):
        if value not in valid:
            raise ValueError(f"expected a valid {name}, got {value!r}; valid names are {', '.join(valid)}")
    features, classes, width = _sizes(task)

    def init_server(key: Key[Array, ""], census: Census) -> FedProtoServer:
        model = task.init(key)
        nothing = jnp.zeros((classes, width), jax.tree.leaves(model)[0].dtype)
        return FedProtoServer(FedProtoDown(nothing, jnp.zeros(classes, bool)), model)

    def penalised(
        down: FedProtoDown, params: PyTree, x: Array, y: Array, position: Array, key: Key[Array, ""]
    ) -> Array:
        loss = training.task_loss(task)(params, x, y, position, key)
        apart = features(params, x) - down.prototypes[y]
        penalty = jnp.where(down.known[y], jnp.mean(jnp.square(apart), axis=1), 0).astype(loss.dtype)
        return loss + jnp.asarray(regularisation).astype(loss.dtype) * penalty

    def train(
        key: Key[Array, ""], seat: Seat, down: FedProtoDown, client: FedProtoClient, data: LocalData
    ) -> tuple[FedProtoUp, FedProtoClient]:
        loss = lambda *arguments: penalised(down, *arguments)  # noqa: E731
        trained = training.train(key, client.model, data.train, task=task, local=local, round=seat.round, loss=loss)
        total, count = class_sums(task, trained.params, data.train, jax.random.fold_in(key, PROTOTYPES))
        means = total / jnp.maximum(count, 1).astype(total.dtype)[:, None]
        return FedProtoUp(means.astype(down.prototypes.dtype), count), FedProtoClient(trained.params)

    def contribute(server: FedProtoServer, seat: Seat, up: FedProtoUp) -> tuple[Part, tuple[()]]:
        mass = trees.wide(jnp.where(up.count > 0, up.count if weights == "count" else 1, 0))
        sums = mass[:, None] * jnp.where(up.count[:, None] > 0, trees.wide(up.prototypes), 0)
        return Part(FedProtoSums(sums, mass)), ()

    def finish(
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: FedProtoServer,
        total: Total,
        rows: PyTree,
        cohort: Cohort,
        held: Held,
    ) -> tuple[FedProtoServer, Info]:
        sums, mass = total.value
        old, means = server.shown, divided(sums, mass).astype(server.shown.prototypes.dtype)
        known = old.known | (mass > 0)
        shown = FedProtoDown(jnp.where((mass > 0)[:, None], means, old.prototypes), known)
        return server._replace(shown=shown), {"known_classes": jnp.sum(known, dtype=jnp.int32)}

    def logits(deployed: FedProtoDeployed, x: Array, key: Key[Array, ""] | None = None) -> Array:
        own = task.logits(deployed.model, x, key)
        if predict == "head":
            return own
        prototypes, known = deployed.shown
        apart = features(deployed.model, x)[:, None, :] - prototypes[None, :, :]
        nearness = jnp.where(known[None, :], -jnp.sum(jnp.square(apart), axis=2), UNKNOWN)
        return jnp.where(jnp.any(known), nearness.astype(own.dtype), own)

    return Algorithm(
        task=task._replace(logits=logits),
        init_server=init_server,
        init_client=lambda key, seat, down, data: FedProtoClient(down),
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
    """Sum of representations and number of rows of each class, over ALL rows of a subset, in parts."""
    features, classes, width = _sizes(task)
    dtype = jax.tree.leaves(params)[0].dtype
    capacity, size = subset.rows.index.shape[-1], subset.rows.size
    parts = -(-capacity // AT_ONCE)
    each = -(-capacity // parts)

    def one(part: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        position = part * each + jnp.arange(each)
        real = position < size
        x, y = training.fetch(task, subset, position, key)
        z = jnp.where(real[:, None], features(params, x), 0)
        of_class = (y[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
        sums = jnp.matmul(of_class.astype(z.dtype).T, z, precision=jax.lax.Precision.HIGHEST).astype(dtype)
        return total[0] + sums, total[1] + jnp.sum(of_class, axis=0, dtype=jnp.int32)

    begin = (jnp.zeros((classes, width), dtype), jnp.zeros(classes, jnp.int32))
    return repeat(-(-size // each), one, begin, most=parts)


def _sizes(task: Task) -> tuple[Callable[[PyTree, Array], Array], int, int]:
    """Features, classes and width of a task that has them all."""
    if task.features is None or task.classes is None or task.width is None:
        missing = [name for name in ("features", "classes", "width") if getattr(task, name) is None]
        raise ValueError(f"expected a task with features, classes and width, got one without {', '.join(missing)}")
    return task.features, task.classes, task.width


ENTRY = Entry(
    fedproto,
    "clients share the mean representation of each class, and never a model",
    REFERENCE,
    # Distances as logits are calibrated by nothing: with these numbers the toy of the laws does not overfit.
    {"regularisation": 3.0, "weights": "uniform"},
    differentiable=("regularisation",),
)
