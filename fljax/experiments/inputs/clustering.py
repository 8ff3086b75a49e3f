"""Initial clusters: clients grouped by their models' F1 scores by class after a few rounds of FedAvg.

Source: "IP-FL: Incentivized and Personalized Federated Learning", appendix C.1, equation (14), which its evaluation
leaves out. Only clients that reply within a threshold of time are clustered; the others join random clusters, and later
settle by their bids. Deviations: who is late is an argument, and no matter of time; F1 is of each class against all
others. The authors' code computes F1 on rows of one class only, which makes it a function of recall.

Clusters are computed before a run, with scikit-learn's K-means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax import training
from fljax.aggregators import cluster_means
from fljax.algorithms import fedavg
from fljax.algorithms.market import Clustering
from fljax.core import trees
from fljax.core.names import shown
from fljax.core.values import as_number, as_whole
from fljax.engine import Execution, Plan, is_stacked, simulate
from fljax.engine.devices.layout import products_of
from fljax.engine.offload.host_data import server_rows
from fljax.protocol import Algorithm, Federation, Round, Rows, Subset, Task
from fljax.protocol.data import Seeds, seeds_of
from fljax.scenarios import availability
from fljax.scenarios.common import with_server
from fljax.training import Local


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
    late: float | Sequence[int] = 0.0


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
    late: float | Sequence[int] = 0.0,
    execution: Execution | None = None,
) -> Clustering:
    """K-means on the F1 scores of every client's model, class by class, on the server's rows.

    All clients but the late ones train for ``rounds`` rounds of FedAvg. The features of a client are the F1 scores of
    its last local model, for the ``features`` classes with the largest variance over clients. K-means (k-means++, best
    of 10) finds the clusters. A cluster's model is the mean of its members' last local models, or of all clients' if it
    is empty. A late client joins a random cluster, in whose model it has no part.

    Args:
      task: model and loss, with its number of classes.
      local: how clients train.
      federation: shared by all seeds, or one per seed (``fljax.data.stack``).
      clusters: C.
      seeds: those of the run that uses the clusters; 3 means the seeds 0, 1 and 2.
      rounds: rounds of pre-training.
      features: number of classes used; all if the task has fewer.
      rows: name of the server's rows in ``federation.held``.
      late: the clients that do not answer in time: their share of the clients with training rows, drawn for each seed,
        or their ids.
      execution: as for ``simulate``.

    Returns:
      A Clustering with a leading axis of seeds, for ``Plan(..., by_seed={"clustering": ...})``: member ``[seeds, N]``
      by id and models ``[seeds, C, ...]``. Clients that never trained are in a random cluster.
    """
    seeds = seeds_of(seeds)
    check_clustering(federation, rows, clusters, late, seeds)
    training.check_classes(task, "clustering by F1")
    trace = ~late_clients(federation, late, seeds)[:, None]
    plan = Plan(_remembering, {"task": task, "local": local}, {"trace": trace})
    result = simulate(plan, federation, rounds=rounds, seeds=seeds, evaluate_every=max(rounds, 1), execution=execution)
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


def late_clients(federation: Federation, late: float | Sequence[int], seeds: Seeds) -> Bool[np.ndarray, "seeds N"]:
    """Which clients are late, by id; see ``by_f1`` for the arguments."""
    has_rows, seeds = _has_rows(federation, seeds), seeds_of(seeds)
    found, share = np.zeros(has_rows.shape, bool), as_number(late)
    if share is None:
        found[:, _ids(late, has_rows.shape[1])] = True
        return found
    if not 0 <= share < 1:
        raise ValueError(f"expected late to be a share from 0 to below 1, or a list of clients' ids, got {late}")
    for place, seed in enumerate(seeds):
        able = np.flatnonzero(has_rows[place])
        found[place, np.random.default_rng((seed, 3)).permutation(able)[: round(share * len(able))]] = True
    return found


def _ids(late: Any, population: int) -> list[int]:
    """A list of different ids of clients, as ints."""
    given = late if isinstance(late, Sequence | np.ndarray) and not isinstance(late, str) else [None]
    found = [as_whole(each) for each in given]
    ids = [each for each in found if each is not None and 0 <= each < population]
    if len(set(ids)) < len(found):
        ids_allowed = f"different ids from 0 to {population - 1}"
        raise ValueError(f"expected late to be a share of the clients, or {ids_allowed}, got {shown(late)}")
    return ids


def _has_rows(federation: Federation, seeds: Seeds) -> Bool[np.ndarray, "seeds N"]:
    """Which clients have training rows, by id."""
    ids, size = np.asarray(federation.clients.id), np.asarray(federation.clients.train.size)
    found, runs = np.take_along_axis(size > 0, np.argsort(ids, axis=-1), axis=-1), len(seeds_of(seeds))
    if found.ndim == 2 and len(found) != runs:
        raise ValueError(f"expected one federation, or one for each of {runs} seeds, got {len(found)}")
    return np.broadcast_to(found, (runs, found.shape[-1]))


def check_clustering(
    federation: Federation, rows: str, clusters: int | None, late: float | Sequence[int], seeds: Seeds
) -> None:
    """Raises a ValueError unless the server has rows of that name, and enough clients with data are in time.

    The arguments are those of ``by_f1``.
    """
    if rows not in federation.held:
        names = ", ".join(federation.held) or "none"
        advice = "; held_fraction above 0 keeps some for validation" if rows == "validation" else ""
        raise ValueError(
            f"expected clustering on rows that the server has, got {rows!r}; valid names are {names}{advice}"
        )
    absent = late_clients(federation, late, seeds)
    least = int(np.min(np.sum(_has_rows(federation, seeds) & ~absent, axis=-1)))
    if clusters is None or least < clusters:
        others = f" in time and {int(absent.sum(axis=-1).max())} late ones" if absent.any() else ""
        raise ValueError(f"expected a client with data for each of {clusters} clusters, got {least} of them{others}")


def f1_scores(
    predicted: Int[Array, " n"], y: Int[Array, " n"], real: Bool[Array, " n"], classes: int
) -> Float[Array, " K"]:
    """``2 TP / (2 TP + FP + FN)`` of each class against all others; 0 for a class without true or predicted rows.

    ``predicted`` and ``y`` are classes ``[n]``; ``real`` is False for padding.
    """
    said = (predicted[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
    true = (y[:, None] == jnp.arange(classes)[None, :]) & real[:, None]
    hits = jnp.sum(said & true, axis=0)
    both = jnp.sum(said, axis=0) + jnp.sum(true, axis=0)  # 2 TP + FP + FN
    return jnp.where(both > 0, 2 * hits / jnp.maximum(both, 1), 0)


def _remembering(task: Task, local: Local, trace: Bool[Array, "1 N"]) -> Algorithm:
    """FedAvg of the clients in ``trace``, with a server that keeps each client's last local model."""
    inner = availability(fedavg(task, local, clients_per_round=None), trace=trace)
    wrapped = with_server(inner)

    def init_server(key: Any, census: Any) -> _Pretrained:
        server, population = inner.init_server(key, census), census.train.shape[0]
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population, *leaf.shape)), server.model)
        return _Pretrained(server, models, jnp.zeros(population, bool))

    def aggregate(server: _Pretrained, up: Any, round: Round) -> Any:
        after, info = wrapped.aggregate(server, up, round)
        cohort = round.cohort
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
