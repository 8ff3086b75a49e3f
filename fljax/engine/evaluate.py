"""Evaluation of ALL clients, seen and unseen, on their own test rows, and of the server's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fljax import training, trees
from fljax.engine import eager
from fljax.engine.errors import within
from fljax.engine.federations import held_data, local_data
from fljax.engine.keys import Purpose, client_key, round_key
from fljax.engine.lanes import map_lanes
from fljax.engine.layout import Layout
from fljax.engine.servers import own_server
from fljax.engine.states import State, first_down
from fljax.types import Algorithm, ClientData, Federation, Judged, Labelled, Seat, Spans, along, seen_from

Scores = tuple[Array, Array | None]  # losses, and accuracies if the task has a score


class Judgement(NamedTuple):
    """A model and the rows that judge it.

    Attributes:
      model: "own": the model that each client would use; "common": the global model, before personalisation.
      rows: the client's rows.
    """

    model: Literal["own", "common"]
    rows: Literal["test", "valid"]

    def name(self) -> str:
        """The metric's name before ``_loss`` and ``_accuracy``."""
        return f"global_{self.rows}" if self.model == "common" else self.rows


_OWN, _COMMON, _VALID = Judgement("own", "test"), Judgement("common", "test"), Judgement("own", "valid")


def deploy_seen(
    algorithm: Algorithm, federation: Federation, state: State, round: Array, client: ClientData, kept: PyTree
) -> tuple[PyTree, PyTree | None]:
    """(Deployed, common model) of one seen client; None for no common model, or if Deployed is the common model."""
    return _deploy(algorithm, federation, state, round, client, Purpose.DEPLOY, lambda seat, down, key: kept)


def deploy_unseen(
    algorithm: Algorithm, federation: Federation, state: State, round: Array, client: ClientData
) -> tuple[PyTree, PyTree | None]:
    """Like ``deploy_seen``, for one unseen client, with a fresh Client."""
    data = local_data(federation, client)
    init_key = client_key(round_key(state.seed, Purpose.UNSEEN_INIT_CLIENT), client.id)

    def own(seat: Seat, down: PyTree, key: Array) -> PyTree:
        return algorithm.init_client(init_key, seat, first_down(algorithm, state.server, seat), data)

    with within("evaluation", checked=False, client=client.id, unseen=True):  # the seat of an unseen client has no id
        return _deploy(algorithm, federation, state, round, client, Purpose.UNSEEN_DEPLOY, own)


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
    down = algorithm.send(seen_from(state.server, seat), seat)
    key = client_key(round_key(state.seed, purpose, round), client.id)
    arguments = (key, seat, down, own(seat, down, key), local_data(federation, client))
    deployed = algorithm.deploy(*arguments)
    if algorithm.common is None or algorithm.personal is None:
        return deployed, None
    return deployed, algorithm.common(down)


def _seat(round: Array, client: ClientData, known: bool) -> Seat:
    return Seat(round, client.id if known else jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32), known)


def evaluate(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Int[Array, ""] | None = None,
    valid: bool = False,
    common: bool = False,
) -> dict[str, Labelled]:
    """Test loss and accuracy of every client.

    Args:
      algorithm: any value of the protocol.
      federation: stored by id.
      layout: how many clients run side by side.
      state: the state whose models are judged.
      round: equals ``state.round``, as in ``one_round``.
      valid: whether seen clients are also judged on their validation rows.
      common: whether all clients with test rows, seen and unseen, have the same test rows (``same_tests``). The global
        model is then judged once for all clients.

    Returns:
      Info: ``test_loss`` and ``test_accuracy`` [N] of the model that each seen client would use, by id; the same with
      the prefix ``global_`` for the global model (if the algorithm has one); and all of these with the prefix
      ``unseen_`` [U] in the order of ``federation.unseen``. With ``valid``, ``valid_loss`` and ``valid_accuracy`` [N]
      of the models that seen clients would use. ``server_test_loss`` and ``server_test_accuracy`` [] of the server's
      own model on ``held["test"]``, if both exist. ``cluster_loss`` and ``cluster_accuracy`` [C, distributions] of the
      algorithm's cluster models on ``held["distribution_0"]``, ..., if both exist. NaN for clients without training
      rows, without rows of the split, or not counted by the algorithm. A NaN loss becomes infinite.
    """
    round = state.round if round is None else round

    same = algorithm.personal is None  # all clients use the common model
    once = common and algorithm.common is not None

    def counts(client: ClientData, rows: str, state: State, known: bool) -> Array:
        there = (client.train.size > 0) & (getattr(client, rows).size > 0)
        if algorithm.counts is None:
            return there
        seat = _seat(round, client, known)
        return there & algorithm.counts(seen_from(state.server, seat), seat)

    def scores(client: ClientData, model: PyTree, rows: str, known: bool = True) -> Scores:
        own = getattr(local_data(federation, client), rows)
        with within("evaluation", client=client.id, unseen=not known, round=round, seed=state.seed):
            return training.evaluate(algorithm.task, lambda x: algorithm.predict(model, x), own)

    def score(client: ClientData, model: PyTree, rows: str, state: State, known: bool) -> Scores:
        return training.counted_scores(*scores(client, model, rows, known), counts(client, rows, state, known))

    def judge(
        client: ClientData, models: tuple[PyTree, PyTree | None], state: State, known: bool
    ) -> dict[Judgement, Scores]:
        own, shared = models
        found = {} if once and same else {_OWN: score(client, own, "test", state, known)}
        return found if once or shared is None else found | {_COMMON: score(client, shared, "test", state, known)}

    server_rows, server_of = own_server(state.server, layout.devices)

    def judge_seen(row: tuple[ClientData, Any, Any]) -> dict[Judgement, Scores]:
        client, kept, server_row = row
        own = state._replace(server=server_of(server_row))
        models = deploy_seen(algorithm, federation, own, round, client, kept)
        found = judge(client, models, own, True)
        return found | ({_VALID: score(client, models[0], "valid", own, True)} if valid else {})

    def judge_unseen(client: ClientData) -> dict[Judgement, Scores]:
        return judge(client, deploy_unseen(algorithm, federation, state, round, client), state, False)

    seen: dict[Judgement, Any] = {}  # of Scores
    unseen: dict[Judgement, Any] = {}
    if valid or not (once and same):
        rows = (federation.clients, state.clients, server_rows)
        seen = map_lanes(judge_seen, rows, layout.evaluation, layout.devices)
    if federation.unseen is not None and not (once and same):
        unseen = map_lanes(judge_unseen, federation.unseen, layout.evaluation, layout.devices)
    if once:
        # The first client with test rows gives the scores of all clients.
        judged = jnp.argmax(federation.clients.test.size > 0)
        client, kept = trees.take((federation.clients, state.clients), judged)
        own, shared = deploy_seen(algorithm, federation, state, round, client, kept)
        loss, accuracy = scores(client, own if same else shared, "test")
        for known, clients, found in ((True, federation.clients, seen), (False, federation.unseen, unseen)):
            if clients is not None:
                counted = eager.map_all(lambda client, known=known: counts(client, "test", state, known), clients)
                found[_OWN if same else _COMMON] = training.counted_scores(loss, accuracy, counted)
    info: dict[str, Labelled] = {}
    for prefix, dimension, found in (("", "client", seen), ("unseen_", "unseen", unseen)):
        if same and _OWN in found:
            found[_COMMON] = found[_OWN]
        for judgement, judged in found.items():
            info |= along(dimension, **_named(f"{prefix}{judgement.name()}", *judged))
    judged_models = {} if algorithm.models is None else algorithm.models(state.server)
    for name, model in judged_models.items():
        with within("evaluation of the server's models", round=round, seed=state.seed):
            values = _judge_on_held(algorithm, federation, layout, model)
        if values is not None:
            info |= along(*(("cluster", "distribution") if model.several else ()), **_named(name, *values))
    return info


def _judge_on_held(
    algorithm: Algorithm, federation: Federation, layout: Layout, judged: Judged
) -> tuple[Array, Array | None] | None:
    """Loss and accuracy of server models on the server's rows, ``[]`` or ``[C, distributions]``; None without rows."""
    held = held_data(federation, layout)
    if judged.several:
        each = [
            training.evaluate_each(algorithm.task, judged.model, held[name], algorithm.predict)
            for name in numbered(federation, judged.rows)
        ]
        return jax.tree.map(lambda *values: jnp.stack(values, axis=-1), *each) if each else None
    if judged.rows not in held:
        return None
    rows = held[judged.rows]
    scores = training.evaluate(algorithm.task, lambda x: algorithm.predict(judged.model, x), rows)
    return training.counted_scores(*scores, rows.rows.size > 0)


def _named(prefix: str, loss: Array, accuracy: Array | None) -> dict[str, Array]:
    """The scores by name; a task without a score has no accuracy."""
    found = {f"{prefix}_loss": loss}
    return found if accuracy is None else found | {f"{prefix}_accuracy": accuracy}


def numbered(federation: Federation, rows: str) -> list[str]:
    """Names of the server's rows ``rows_0``, ``rows_1`` and so on, by their numbers."""
    prefix = f"{rows}_"
    names = [name for name in federation.held if name.startswith(prefix) and name.removeprefix(prefix).isdigit()]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


def same_tests(federation: Federation) -> bool:
    """Whether all clients with test rows, seen and unseen, have the same test rows in the same order.

    For stacked federations: whether this holds in each of them. False if no seen client has test rows.
    """
    populations = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    lists = None if federation.lists is None else np.asarray(federation.lists)
    tables = [_TestRows.of(clients.test.index, clients.test.size, lists) for clients in populations]
    return all(_same([table.of_seed(i) for table in tables]) for i in range(len(tables[0].size)))


class _TestRows(NamedTuple):
    """Test rows on the host: ``place`` says where the list of a client begins in ``table``."""

    table: np.ndarray  # flat
    place: np.ndarray  # [federations, clients] or, of one seed, [clients]
    size: np.ndarray

    @classmethod
    def of(cls, index: Any, size: Any, lists: np.ndarray | None) -> _TestRows:
        size = np.asarray(size)
        size = size.reshape(-1, size.shape[-1])
        if isinstance(index, Spans):
            assert lists is not None
            return cls(lists, np.asarray(index.start).reshape(size.shape), size)
        table = np.asarray(index)
        return cls(table.reshape(-1), np.arange(size.size).reshape(size.shape) * table.shape[-1], size)

    def of_seed(self, seed: int) -> _TestRows:
        return _TestRows(self.table, self.place[seed], self.size[seed])


# Lists of rows that are compared at a time on the host.
_COMPARED = 1024


def _same(tables: list[_TestRows]) -> bool:
    first = np.flatnonzero(tables[0].size)
    if not first.size:
        return False
    count, start = int(tables[0].size[first[0]]), int(tables[0].place[first[0]])
    real = tables[0].table[start : start + count]  # without padding
    for table, place, size in tables:
        there = size > 0
        if np.any(size[there] != count):
            return False
        place = np.unique(place[there])  # a list that clients share is stored once
        if np.any(table[place] != real[0]):
            return False
        for some in np.split(place, range(_COMPARED, len(place), _COMPARED)):
            if np.any(table[some[:, None] + np.arange(count)[None, :]] != real[None, :]):
                return False
    return True


def deployed(
    algorithm: Algorithm, federation: Federation, state: State, position: Int[Array, ""], known: bool
) -> PyTree:
    """The model of one client: seen client with id ``position``, or unseen client number ``position``."""
    if known:
        client, kept = trees.take((federation.clients, state.clients), position)
        return deploy_seen(algorithm, federation, state, state.round, client, kept)[0]
    return deploy_unseen(algorithm, federation, state, state.round, trees.take(federation.unseen, position))[0]
