"""The record of a run: the server's models and the single updates of clients, for estimators that look at rounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax.contributions import RunRecord
from fljax.core import trees
from fljax.engine import Plan, is_stacked, rollout
from fljax.engine.rounds.federations import by_id, with_shared, without_shared
from fljax.protocol import Algorithm, Federation, Info, Round, Seat
from fljax.protocol.sums import Part, Total, as_streamed

_UPDATE, _MODEL, _WEIGHT = "recorded_update_", "recorded_model_", "recorded_weight"


class _Row(NamedTuple):
    """A client's row in the aggregation, with its update and its weight."""

    inner: PyTree
    update: PyTree
    weight: Array


def of_seed(federation: Federation, place: Array) -> Federation:
    """The federation of one of several seeds; one that all seeds share is returned as it is."""
    if not is_stacked(federation):
        return federation
    return with_shared(trees.take(without_shared(federation), place), federation)


def recording(algorithm: Algorithm) -> Algorithm:
    """The algorithm, whose Info also has every client's update and weight, and the model before the round.

    The weight is that of the client's part of the sum; of an aggregation that is no sum it is 1.
    """
    inner = as_streamed(algorithm.aggregate)

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        part, row = inner.contribute(server, seat, up)
        if not hasattr(up, "update"):
            raise ValueError("expected an algorithm whose clients send an update, got messages without one")
        weight = jnp.asarray(part.weight, jnp.result_type(float))
        return part, _Row(row, up.update, weight if weight.ndim == 0 else jnp.ones((), weight.dtype))

    def finish(server: PyTree, total: Total, rows: PyTree, round: Round) -> tuple[PyTree, Info]:
        if not hasattr(server, "model"):
            raise ValueError("expected an algorithm whose server has one model, got a server without one")
        after, info = inner.finish(server, total, rows.inner, round)
        updates = {f"{_UPDATE}{place}": leaf for place, leaf in enumerate(jax.tree.leaves(rows.update))}
        models = {f"{_MODEL}{place}": leaf for place, leaf in enumerate(jax.tree.leaves(server.model))}
        return after, {**info, **updates, **models, _WEIGHT: rows.weight}

    return algorithm._replace(aggregate=inner._replace(contribute=contribute, finish=finish))


def record_runs(
    plan: Plan, federation: Federation, *, rounds: int, seeds: tuple[int, ...], server_rate: float = 1.0
) -> RunRecord:
    """The records of the runs of several seeds, ``[R, T, ...]``: full runs of all clients.

    Args:
      plan: of an algorithm whose server has one model, and whose clients send updates.
      federation: shared by all seeds or one per seed.
      rounds: T.
      seeds: R of them.
      server_rate: ``eta_g`` of the record.
    """
    if rounds < 1:
        raise ValueError(f"expected at least one round for a record of rounds, got {rounds}")
    federation = by_id(federation)

    def one(seed: Array, by_seed: Any, place: Array) -> RunRecord:
        data = of_seed(federation, place)
        algorithm = plan.build(**plan.arguments, **by_seed)
        state, records = rollout(recording(algorithm), data, rounds=rounds, seed=seed)
        structure = jax.tree.structure(state.server.model)

        def tree(prefix: str) -> PyTree:
            return jax.tree.unflatten(structure, [records[f"{prefix}{i}"] for i in range(structure.num_leaves)])

        last = jax.tree.map(lambda leaf: leaf[None], state.server.model)
        models = jax.tree.map(lambda *parts: jnp.concatenate(parts), tree(_MODEL), last)
        present = jnp.asarray(records["cohort_present"], bool)
        weights = jnp.where(present, records[_WEIGHT], 0)
        rate = jnp.asarray(server_rate, weights.dtype)
        return RunRecord(models, tree(_UPDATE), weights, present, records["cohort_id"], rate)

    rows = {name: jax.tree.map(jnp.asarray, values) for name, values in plan.by_seed.items()}
    numbers = jnp.asarray(seeds, jnp.uint32)
    mapped = jax.jit(lambda *arguments: jax.lax.map(lambda row: one(*row), arguments))
    return mapped(numbers, rows, jnp.arange(len(seeds)))
