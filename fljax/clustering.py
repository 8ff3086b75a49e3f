"""Initial clusters: clients grouped by their models' F1 scores by class after a few rounds of FedAvg.

Source: "IP-FL: Incentivized and Personalized Federated Learning", appendix C.1, equation (14), which its evaluation
leaves out. Deviation: F1 is of each class against all others; the authors' code computes F1 on rows of one class only,
which makes it a function of recall.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax import training, trees
from fljax.aggregators import cluster_means
from fljax.algorithms import fedavg
from fljax.algorithms.market import Clustering
from fljax.engine import Execution, is_stacked, simulate
from fljax.engine.layout import products_of
from fljax.engine.offload.host_data import server_rows
from fljax.scenarios.common import with_server
from fljax.seeds import Seeds, seeds_of
from fljax.training import Local
from fljax.types import Algorithm, Cohort, Federation, Rows, Subset, Task


class _Pretrained(NamedTuple):
    """FedAvg's server, each client's last local model, and whether the client has trained."""

    inner: Any
    models: PyTree  # [N, ...]
    answered: Bool[Array, " N"]


class ByF1(NamedTuple):
    """The settings of ``by_f1``, which explains them."""

    rounds: int = 5
    features: int = 10
    rows: str = "validation"


def by_f1(
    task: Task,
    local: Local,
    federation: Federation,
    *,
    clusters: int,
    seeds: Seeds = (0,),
    rounds: int = 5,
    features: int = 10,
    rows: str = "validation",
    execution: Execution | None = None,
) -> Clustering:
    """K-means on the F1 scores of every client's model, class by class, on the server's rows.

    All clients train for ``rounds`` rounds of FedAvg. The features of a client are the F1 scores of its last local
    model, for the ``features`` classes with the largest variance over clients. K-means (k-means++, best of 10) finds
    the clusters. A cluster's model is the mean of its members' last local models, or of all clients' if it is empty.

    Args:
      task: model and loss, with its number of classes.
      local: how clients train.
      federation: shared by all seeds, or one per seed (``fljax.data.stack``).
      clusters: C.
      seeds: those of the run that uses the clusters; 3 means the seeds 0, 1 and 2.
      rounds: rounds of pre-training.
      features: number of classes used; all if the task has fewer.
      rows: name of the server's rows in ``federation.held``.
      execution: as for ``simulate``.

    Returns:
      A Clustering with a leading axis of seeds, for ``Plan(..., by_seed={"clustering": ...})``: member ``[seeds, N]``
      by id and models ``[seeds, C, ...]``. Clients that never trained are in a random cluster.

    Raises:
      ValueError: if the server has no rows of that name, the task has no ``classes``, or there are fewer clients with
        data than clusters.
    """
    check(federation, rows, clusters)
    training.check_classes(task, "clustering by F1")
    seeds = seeds_of(seeds)
    result = simulate(_remembering(task, local), federation, rounds=rounds, seeds=seeds, execution=execution)
    members, models = [], []
    for place, seed in enumerate(seeds):
        found = jax.tree.map(lambda leaf, place=place: leaf[place], result.state.server)
        held, moments = Rows(*federation.held[rows]), federation.moments
        if is_stacked(federation):
            held, moments = jax.tree.map(lambda leaf, place=place: leaf[place], (held, moments))
        with products_of(execution.precision if execution else "default"):
            scores = np.asarray(_scores(task, found.models, Subset(*server_rows(federation, held), moments=moments)))
        answered = np.asarray(found.answered)
        member = _members(scores, answered, clusters, features, seed)
        members.append(member)
        belongs = (member[:, None] == np.arange(clusters)[None, :]) & answered[:, None]
        belongs[:, ~belongs.any(axis=0)] = answered[:, None]  # equal scores may leave clusters empty
        models.append(cluster_means(found.models, jnp.asarray(belongs), jnp.ones(len(member))))
    return Clustering(jnp.asarray(np.stack(members), jnp.int32), jax.tree.map(lambda *each: jnp.stack(each), *models))


def check(federation: Federation, rows: str, clusters: int | None) -> None:
    """Raises a ValueError unless the server has rows of that name, and as many clients with data as clusters."""
    if rows not in federation.held:
        names = ", ".join(federation.held) or "none"
        advice = "; held_fraction above 0 keeps some for validation" if rows == "validation" else ""
        raise ValueError(
            f"expected clustering on rows that the server has, got {rows!r}; valid names are {names}{advice}"
        )
    least = int(np.min(np.sum(np.asarray(federation.clients.train.size) > 0, axis=-1)))
    if clusters is None or least < clusters:
        raise ValueError(f"expected a client with data for each of {clusters} clusters, got {least} of them")


def f1_scores(
    predicted: Int[Array, " n"], y: Int[Array, " n"], real: Bool[Array, " n"], classes: int
) -> Float[Array, " K"]:
    """``2 TP / (2 TP + FP + FN)`` of each class against all others; 0 for a class without true or predicted rows.

    Args:
      predicted: ``[n]`` predicted classes.
      y: ``[n]`` true classes.
      real: ``[n]``, False for padding.
      classes: K.
    """
    said = (predicted[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
    true = (y[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
    hits = jnp.sum(said & true, axis=0)
    both = jnp.sum(said, axis=0) + jnp.sum(true, axis=0)  # 2 TP + FP + FN
    return jnp.where(both > 0, 2 * hits / jnp.maximum(both, 1), 0)


def _remembering(task: Task, local: Local) -> Algorithm:
    """FedAvg of all clients, with a server that keeps each client's last local model."""
    inner = fedavg(task, local, clients_per_round=None)
    wrapped = with_server(inner, lambda server: server.inner, lambda server, new: server._replace(inner=new))

    def init_server(key: Any, census: Any) -> _Pretrained:
        server, population = inner.init_server(key, census), census.train.shape[0]
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population, *leaf.shape)), server.model)
        return _Pretrained(server, models, jnp.zeros(population, bool))

    def aggregate(key: Any, round: Any, server: _Pretrained, up: Any, cohort: Cohort, held: Any) -> Any:
        after, info = wrapped.aggregate(key, round, server, up, cohort, held)
        sent = jax.tree.map(lambda start, move: start[None] + move, server.inner.model, up.update)
        models = trees.set_rows(server.models, cohort.id, cohort.present, sent)
        answered = trees.set_rows(server.answered, cohort.id, cohort.present, True)
        return after._replace(models=models, answered=answered), info

    return wrapped._replace(init_server=init_server, aggregate=aggregate)


def _scores(task: Task, models: PyTree, subset: Subset) -> Float[Array, "N K"]:
    """F1 scores of every client's model, by class."""
    classes = task.classes or 0
    capacity = subset.rows.index.shape[-1]
    position = jnp.arange(capacity)

    @jax.jit
    def all_of_them(models: PyTree, subset: Subset) -> Array:
        def one(model: PyTree) -> Array:
            x, y = training.fetch(task, subset, position)
            predicted = jnp.argmax(task.logits(model, x), axis=-1)
            return f1_scores(predicted, y, position < subset.rows.size, classes)

        return jax.lax.map(one, models)

    return all_of_them(models, subset)


def _members(scores: np.ndarray, answered: np.ndarray, clusters: int, features: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    kept = np.argsort(-scores[answered].var(axis=0), kind="stable")[:features]
    # Its type stubs allow only a string for n_init.
    found: Any = KMeans(clusters, init="k-means++", n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    member = np.random.default_rng((seed, 2)).integers(0, clusters, len(answered))
    member[answered] = found.fit_predict(scores[answered][:, kept])
    return member


def placeholder(task: Task, clusters: int, population: int, seeds: int) -> Clustering:
    """A Clustering of the right shapes, to check a program before any training."""
    model = task.init(jax.random.key(0))
    models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, clusters, *leaf.shape)), model)
    return Clustering(jnp.broadcast_to(jnp.arange(population, dtype=jnp.int32) % clusters, (seeds, population)), models)
