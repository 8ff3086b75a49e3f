"""What each client's model predicts on the client's test rows, for scores that the host computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fljax import training
from fljax.engine.devices.client_mapping import map_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import within
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.federations import local_data
from fljax.engine.rounds.states import State, every_seat, own_server
from fljax.protocol import Algorithm, ClientData, Federation
from fljax.training.evaluation import AT_ONCE


class Predictions(NamedTuple):
    """Predictions for N clients, with room for n test rows of each.

    Attributes:
      outputs: ``[N, n, ...]`` what the model that the client would use says; beyond ``size`` anything.
      labels: ``[N, n, ...]``.
      size: ``[N]`` the number of real rows.
      counts: ``[N]`` whether metrics count the client.
    """

    outputs: Array
    labels: Array
    size: Int[Array, " N"]
    counts: Bool[Array, " N"]


def predict_tests(
    algorithm: Algorithm, federation: Federation, layout: Layout, state: State, round: Int[Array, ""]
) -> dict[str, Predictions]:
    """Predictions of all clients, under "client", and of unseen ones, under "unseen" if there are any.

    The models are those of ``evaluate``: what each client would use after ``round`` rounds, personal or global.
    """
    judge = Judge(algorithm, federation, state, round)
    predicted = {"client": predict_seen(judge, layout)}
    if federation.unseen is None:
        return predicted
    return predicted | {"unseen": predict_unseen(judge._replace(known=False), layout)}


def predict_seen(judge: Judge, layout: Layout, id: Int[Array, " clients"] | None = None) -> Predictions:
    """Predictions of the seen clients in ``judge.federation``, whose ids are ``id``; None: all clients of the run."""
    state, clients = judge.state, judge.federation.clients
    seats = every_seat(judge.round, clients.id)
    rows, server_of = own_server(judge.algorithm, state.server, layout.devices, seats, whole=id is None)

    def one(row: tuple[ClientData, Any, Any]) -> Predictions:
        client, client_state, server_row = row
        judge_of_client = judge._replace(state=state._replace(server=server_of(server_row)))
        return _predicted(judge_of_client, client, judge_of_client.deploy(client, client_state)[0])

    return map_lanes(one, (clients, state.clients, rows), layout.evaluation, layout.devices)


def predict_unseen(judge: Judge, layout: Layout) -> Predictions:
    """Predictions of the unseen clients in ``judge.federation``."""

    def one(client: ClientData) -> Predictions:
        return _predicted(judge, client, judge.deploy(client)[0])

    return map_lanes(one, judge.federation.unseen, layout.evaluation, layout.devices)


def _predicted(judge: Judge, client: ClientData, model: Any) -> Predictions:
    """The predictions of one client, computed for some rows at a time as ``fljax.training.evaluate`` does."""
    subset, task = local_data(judge.federation, client).test, judge.algorithm.task
    capacity = subset.rows.index.shape[-1]

    def of_rows(position: Array) -> tuple[Array, Array]:
        x, y = training.fetch(task, subset, position)
        return judge.algorithm.predict(model, x), y

    parts = max(-(-capacity // AT_ONCE), 1)
    length = -(-capacity // parts)
    with within("evaluation", client=client.id, unseen=not judge.known, round=judge.round, seed=judge.state.seed):
        if parts == 1:
            outputs, labels = of_rows(jnp.arange(capacity))
        else:
            places = jnp.arange(parts * length).reshape(parts, length)
            outputs, labels = (
                leaf.reshape(parts * length, *leaf.shape[2:])[:capacity] for leaf in jax.lax.map(of_rows, places)
            )
    return Predictions(outputs, labels, subset.rows.size, judge.counts(client, "test"))
