"""Evaluation of ALL clients, seen and unseen: what each of them would use, on its own test rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from fljax import local, trees
from fljax.engine.execution import Lanes
from fljax.engine.keys import Purpose, client_key, round_key
from fljax.engine.lanes import map_lanes
from fljax.engine.round import State, local_data
from fljax.types import Algorithm, ClientData, Federation, Seat

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PyTree


def deploy_seen(
    algorithm: Algorithm, federation: Federation, state: State, round: Array, client: ClientData, kept: PyTree
) -> tuple[PyTree, PyTree | None]:
    """(Deployed, shared model or None) of one seen client."""
    return _deploy(algorithm, federation, state, round, client, Purpose.DEPLOY, lambda seat, down, key: kept)


def deploy_unseen(
    algorithm: Algorithm, federation: Federation, state: State, round: Array, client: ClientData
) -> tuple[PyTree, PyTree | None]:
    """(Deployed, shared model or None) of one unseen client, which starts from a fresh Client."""
    data = local_data(federation, client)
    init_key = client_key(round_key(state.seed, Purpose.UNSEEN_INIT_CLIENT), client.id)
    return _deploy(
        algorithm,
        federation,
        state,
        round,
        client,
        Purpose.UNSEEN_DEPLOY,
        lambda seat, down, key: algorithm.init_client(init_key, seat, down, data),
    )


def _deploy(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    round: Array,
    client: ClientData,
    purpose: Purpose,
    own: Callable[..., PyTree],
) -> tuple[PyTree, PyTree | None]:
    seat = _seat(round, client, purpose is Purpose.DEPLOY)
    down = algorithm.send(state.server, seat)
    key = client_key(round_key(state.seed, purpose, round), client.id)
    arguments = (key, seat, down, own(seat, down, key), local_data(federation, client))
    deployed = algorithm.deploy(*arguments)
    if algorithm.shared is None or algorithm.shared is algorithm.deploy:
        return deployed, None
    return deployed, algorithm.shared(*arguments)


def _seat(round: Array, client: ClientData, known: bool) -> Seat:
    return Seat(round, client.id if known else jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32), known)


def evaluate(
    algorithm: Algorithm,
    federation: Federation,
    lanes: Lanes,
    state: State,
    round: Int[Array, ""] | None = None,
    valid: bool = False,
) -> dict[str, Array]:
    """Test loss and accuracy of every client.

    Args:
      algorithm: any value of the protocol.
      federation: stored by id.
      lanes: how many run side by side.
      state: whose models are judged.
      round: equals ``state.round``, as in ``one_round``.
      valid: whether seen clients are judged on their validation rows as well.

    Returns:
      ``test_loss`` and ``test_accuracy`` [N] of what each seen client would use, by id; the same with the prefix
      ``global_`` of the model that all share (where the algorithm has one); and all of them with the prefix
      ``unseen_`` [U] in the order of ``federation.unseen``. With ``valid``, ``valid_loss`` and ``valid_accuracy`` [N]
      of what seen clients would use. NaN for clients without training rows or without such rows, and for those whom
      the algorithm does not count; a loss that is not a number counts as infinite.
    """
    round = state.round if round is None else round

    def judge(client: ClientData, models: tuple[PyTree, PyTree | None], known: bool) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for prefix, model in zip(("", "global_"), models, strict=True):
            if model is not None:
                found |= score(client, model, "test", known, prefix)
        return found

    def score(client: ClientData, model: PyTree, part: str, known: bool, prefix: str = "") -> dict[str, Array]:
        rows = getattr(local_data(federation, client), part)
        counts = (client.train.size > 0) & (rows.rows.size > 0)
        if algorithm.counted is not None:
            counts = counts & algorithm.counted(state.server, _seat(round, client, known))
        loss, accuracy = local.evaluate(algorithm.task, lambda x: algorithm.predict(model, x), rows)
        loss, accuracy = local.judged(loss, accuracy, counts)
        return {f"{prefix}{part}_loss": loss, f"{prefix}{part}_accuracy": accuracy}

    def seen(row: tuple[ClientData, Any]) -> dict[str, Array]:
        client, kept = row
        models = deploy_seen(algorithm, federation, state, round, client, kept)
        return judge(client, models, True) | (score(client, models[0], "valid", True) if valid else {})

    def unseen(client: ClientData) -> dict[str, Array]:
        return judge(client, deploy_unseen(algorithm, federation, state, round, client), False)

    found = map_lanes(seen, (federation.clients, state.clients), lanes.evaluation, lanes.devices)
    if federation.unseen is not None:
        fresh = map_lanes(unseen, federation.unseen, lanes.evaluation, lanes.devices)
        found |= {"unseen_" + name: values for name, values in fresh.items()}
    if algorithm.shared is not None and algorithm.shared is algorithm.deploy:
        for name in [name for name in found if "test_" in name]:
            prefix, _, rest = name.rpartition("test_")
            found[f"{prefix}global_test_{rest}"] = found[name]
    return found


def deployed(
    algorithm: Algorithm, federation: Federation, state: State, position: Int[Array, ""], known: bool
) -> PyTree:
    """What one client would use: seen client ``position`` by id, or unseen client ``position`` in its order."""
    if known:
        client, kept = trees.take((federation.clients, state.clients), position)
        return deploy_seen(algorithm, federation, state, state.round, client, kept)[0]
    return deploy_unseen(algorithm, federation, state, state.round, trees.take(federation.unseen, position))[0]
