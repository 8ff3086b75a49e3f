"""Parts of algorithms whose server keeps one model per client and moves it by rewards: IAFL, CGSV, Rank.

Statistics that clients sent are averaged, and not their changes, which are relative to different models.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.aggregators import iafl_rates, iafl_reference, iafl_subsets, mix
from fljax.algorithms.cohorts import select_after, select_uniform
from fljax.algorithms.single_model import keeping, use_received_model
from fljax.core import trees
from fljax.protocol import (
    Aggregate,
    Algorithm,
    Available,
    Census,
    Cohort,
    Info,
    InitServer,
    Judged,
    LocalData,
    PerClient,
    Round,
    Seat,
    Select,
    Task,
    along,
    roles,
)
from fljax.protocol.messages import Sent
from fljax.training import Local

# Streams: of the key of ``select``, whose uniform choice of a cohort uses the key itself; and of the key of
# ``aggregate``, beyond the ids of ``iafl_subsets``.
_JOINING, _RECOVERY = 2, 2**31 - 3


class Models(NamedTuple):
    """Server: a model for every client, the reference model, and any other state of the algorithm (``book``)."""

    models: PerClient
    reference: PyTree
    book: PyTree = ()
    members: Bool[Array, " N"] | None = None  # in this round; None: all clients, in all rounds


class Sharing(NamedTuple):
    """How contributions become rewards in IAFL; see ``iafl`` for what its fields mean."""

    ceiling: float | Array | Literal["max"]
    kappa: float | Array
    recovery: float | Array
    reference_rule: Literal["max", "median"]
    reference_draw: Literal["own", "copied"]


def per_client_models(task: Task, local: Local, select: Select, aggregate: Aggregate) -> Algorithm:
    """An algorithm whose clients start alike and train a model each; unseen clients use ``reference``."""

    def init_server(key: Key[Array, ""], census: Census) -> Models:
        model = task.init(key)
        return Models(PerClient(replicate_model(model, census.train.shape[0])), model, members=census.members)

    # ``select`` and ``aggregate`` get a Server with the members of the round.
    def of_members(server: Models, available: Available) -> Models:
        return server._replace(members=available.members if server.members is None else available.member())

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round, state=client)
        return Sent(trees.subtract(trained.params, down)), trained.state

    return Algorithm(
        task=task,
        init_server=init_server,
        send=lambda server, seat: server.models if seat.known else server.reference,
        train=train,
        init_client=keeping(task, local),
        aggregate=aggregate,
        select=select_after(of_members, select),
        personal=use_received_model,
    )


def reference_model(server: Models) -> dict[str, Judged]:
    """``models`` of an algorithm whose reference model is judged as the server's own."""
    return {"server_test": Judged(server.reference, "test")}


def replicate_model(model: PyTree, population: int) -> PyTree:
    """``[N, ...]`` copies of a model."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population, *leaf.shape)), model)


def select_joining(joining: Float[Array, " N"] | None, clients_per_round: int | None) -> Select:
    """``select_uniform`` among joining clients: client k joins with probability ``joining[k]``; None: all join."""
    uniform = select_uniform(clients_per_round)
    if joining is None:
        return uniform
    probability = jnp.asarray(joining)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        drawn = jax.random.uniform(jax.random.fold_in(key, _JOINING), (available.population,), jnp.float32)
        return uniform(key, round, server, ballots, available.only(drawn < probability))

    return select


def with_recovery(inner: Aggregate, probability: float | Array) -> Aggregate:
    """``inner``, after which each member gets the reference model with this probability, if anybody took part."""

    def aggregate(server: Models, up: Sent, round: Round) -> tuple[Models, Info]:
        server, info = inner(server, up, round)
        population = jax.tree.leaves(server.models.values)[0].shape[0]
        drawn = jax.random.uniform(jax.random.fold_in(round.key, _RECOVERY), (population,), jnp.float32)
        chosen = (drawn < probability) & jnp.any(round.cohort.present)
        chosen = chosen if server.members is None else chosen & server.members
        models = trees.where_rows(chosen, replicate_model(server.reference, population), server.models.values)
        return server._replace(models=PerClient(models)), {**info, **along("client", recovered=chosen)}

    return aggregate


def reward_rates(
    contribution: Float[Array, " N"], sharing: Sharing, members: Bool[Array, " N"] | None = None
) -> Float[Array, " N"]:
    """IAFL's rates, from 0 to 1. A client that left has rate 0, and its contribution is no ceiling."""
    if members is None:
        return iafl_rates(contribution, ceiling=sharing.ceiling, kappa=sharing.kappa)
    known = jnp.where(members, contribution, 0)
    return jnp.where(members, iafl_rates(known, ceiling=sharing.ceiling, kappa=sharing.kappa), 0)


def with_statistics_sent(task: Task, server: Models, update: PyTree, cohort: Cohort) -> PyTree:
    """``update`` with the statistics of the trained models: their changes are relative to different models."""
    models = trees.take(server.models.values, cohort.id)
    return roles.replace_statistics(task, update, trees.add(models, update))


def move_models(task: Task, models: PyTree, steps: PyTree, rewarded: Bool[Array, "*R"]) -> PyTree:
    """``models + steps`` ``[R, ...]``; statistics of rewarded models become those of ``steps``, others stay."""
    moved = roles.replace_statistics(task, trees.add(models, steps), models)
    return roles.replace_statistics(task, moved, trees.where_rows(rewarded, steps, moved))


def share_rewards(
    task: Task,
    key: Key[Array, ""],
    server: Models,
    update: PyTree,
    cohort: Cohort,
    rates: Float[Array, " N"],
    sharing: Sharing,
) -> Models:
    """IAFL's ServerAgg: all members' rewards and the reference model's step in one matrix product."""
    population, members = rates.shape[0], server.members
    update = with_statistics_sent(task, server, update, cohort)
    subsets = iafl_subsets(key, rates, ids=cohort.id, present=cohort.present)
    if sharing.reference_draw == "own":
        reference_row = iafl_reference(
            key, rates, ids=cohort.id, present=cohort.present, rule=sharing.reference_rule, members=members
        )
    else:
        reference_row = subsets[_reference_client(rates, sharing.reference_rule, members)][None]
    matrix = jnp.concatenate([subsets, reference_row])
    steps, rewarded = mix(matrix, update), jnp.any(matrix > 0, axis=1)
    rewards, step = (jax.tree.map(lambda leaf, at=at: leaf[at], steps) for at in (slice(population), population))
    models = PerClient(move_models(task, server.models.values, rewards, rewarded[:population]))
    reference = move_models(task, server.reference, step, rewarded[population])
    return server._replace(models=models, reference=reference)


def _reference_client(
    rates: Float[Array, " N"], rule: Literal["max", "median"], members: Bool[Array, " N"] | None
) -> Int[Array, ""]:
    """The member with the largest or the median rate; ties for the largest go to the lower id."""
    if rule == "max":
        return jnp.argmax(rates if members is None else jnp.where(members, rates, -1))
    if members is None:
        return jnp.argsort(rates)[rates.shape[0] // 2]
    return jnp.argsort(jnp.where(members, rates, 2))[jnp.sum(members) // 2]


def with_checked_length(name: str, values: Array | None, init_server: InitServer) -> InitServer:
    """``init_server`` that first checks that the last axis of ``values`` has one entry per client; None: no check."""
    if values is None:
        return init_server

    def init(key: Key[Array, ""], census: Census) -> PyTree:
        population = census.train.shape[0]
        if values.ndim == 0 or values.shape[-1] != population:
            raise ValueError(
                f"expected {name} to have one entry for each of {population} clients, got shape {values.shape}"
            )
        return init_server(key, census)

    return init
