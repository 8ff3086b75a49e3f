"""Evaluation of ALL clients, seen and unseen, on their own test rows, and of the server's models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from fljax import training
from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.lanes import map_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import within
from fljax.engine.rounds.federations import held_data, local_data
from fljax.engine.rounds.keys import Purpose, client_key, round_key
from fljax.engine.rounds.servers import every_seat, own_server
from fljax.engine.rounds.states import State, first_down
from fljax.protocol import Algorithm, ClientData, Federation, Judged, Labelled, Seat, along, seen_from

Scores = tuple[Array, Array | None]  # losses, and accuracies if the task has a score


class Judgement(NamedTuple):
    """A model and the rows that judge it.

    Attributes:
      model: "own": the model that each client would use; "common": the global model, before personalisation.
      rows: the client's rows.
    """

    model: Literal["own", "common"]
    rows: Literal["test", "valid", "train"]

    def name(self) -> str:
        """The metric's name before ``_loss`` and ``_accuracy``."""
        return f"global_{self.rows}" if self.model == "common" else self.rows


_OWN, _COMMON, _VALID = Judgement("own", "test"), Judgement("common", "test"), Judgement("own", "valid")
_TRAIN = Judgement("own", "train")


def deploy_seen(
    algorithm: Algorithm, federation: Federation, state: State, round: Array, client: ClientData, kept: PyTree
) -> tuple[PyTree, PyTree | None]:
    """(Deployed, common model) of one seen client; None for no common model, or if Deployed is the common model.

    It is what the client uses on its test rows; it may depend on ``client.deployment``.
    """
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
    down = algorithm.down(state.server, seat)
    key = client_key(round_key(state.seed, purpose, round), client.id)
    arguments = (key, seat, down, own(seat, down, key), local_data(federation, client, deployed=True))
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
      of the models that seen clients would use; those of clients with deployment rows do not depend on these rows.
      ``train_loss`` and ``unseen_train_loss`` where a scenario tunes models before clients use them.
      ``server_test_loss`` and ``server_test_accuracy`` [] of the server's
      own model on ``held["test"]``, if both exist. ``cluster_loss`` and ``cluster_accuracy`` [C, distributions] of the
      algorithm's cluster models on ``held["distribution_0"]``, ..., if both exist. NaN for clients without training
      rows, without rows of the split, or not counted by the algorithm. A NaN loss becomes infinite.
    """
    round = state.round if round is None else round
    scope = Scope.of(algorithm, valid, common)
    seen: Found = {}
    unseen: Found = {}
    if scope.seen:
        seen = judge_seen(algorithm, federation, layout, state, round, scope)
    if scope.unseen and federation.unseen is not None:
        unseen = judge_unseen(algorithm, federation, layout, state, round, scope)
    if scope.once:
        # The first client with test rows gives the scores of all clients.
        judged = jnp.argmax(federation.clients.test.size > 0)
        client, kept = trees.take((federation.clients, state.clients), judged)
        scores = judge_once(algorithm, federation, state, round, client, kept, scope)
        seen |= counted_once(algorithm, federation.clients, state, round, scores, scope, True)
        if federation.unseen is not None:
            unseen |= counted_once(algorithm, federation.unseen, state, round, scores, scope, False)
    return named_scores(seen, unseen, scope) | judge_server(algorithm, federation, layout, state, round)


class Scope(NamedTuple):
    """What an evaluation judges (static).

    Attributes:
      valid: whether seen clients are also judged on their validation rows.
      once: whether the global model is judged once for all clients, which have the same test rows.
      same: whether all clients use the global model.
      train: whether models are also judged on training rows, since clients tune what they are given.
    """

    valid: bool
    once: bool
    same: bool
    train: bool = False

    @classmethod
    def of(cls, algorithm: Algorithm, valid: bool, common: bool) -> Scope:
        """For an algorithm, and the arguments of ``evaluate``."""
        train = algorithm.personal is not None and any(each.tunes for each in algorithm.scenarios)
        return cls(valid, common and algorithm.common is not None, algorithm.personal is None, train)

    @property
    def seen(self) -> bool:
        """Whether each seen client is judged on rows of its own."""
        return self.valid or self.unseen

    @property
    def unseen(self) -> bool:
        """Whether each unseen client is judged on rows of its own."""
        return not (self.once and self.same)


Found = dict[Judgement, Any]  # of Scores [N] or [U]


def judge_seen(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Array,
    scope: Scope,
    id: Int[Array, " clients"] | None = None,
) -> Found:
    """Scores of each seen client: its own model and, unless it is judged once, the global model.

    ``id`` has the ids of the clients in ``federation``; None: all clients of the run.
    """
    seats = every_seat(round, federation.clients.id)
    rows, server_of = own_server(algorithm, state.server, layout.devices, seats, whole=id is None)

    def one(row: tuple[ClientData, Any, Any]) -> Found:
        client, kept, server_row = row
        own = state._replace(server=server_of(server_row))
        models = deploy_seen(algorithm, federation, own, round, client, kept)
        found = _judge(algorithm, federation, own, round, client, models, scope, True)
        if not scope.valid:
            return found
        model = models[0]
        if client.deployment is not None:  # validation rows judge what the client used before its data changed
            model, _ = deploy_seen(algorithm, federation, own, round, client._replace(deployment=None), kept)
        return found | {_VALID: _score(algorithm, federation, own, round, client, model, "valid", True)}

    return map_lanes(one, (federation.clients, state.clients, rows), layout.evaluation, layout.devices)


def judge_unseen(
    algorithm: Algorithm, federation: Federation, layout: Layout, state: State, round: Array, scope: Scope
) -> Found:
    """Scores of each unseen client, as ``judge_seen``."""

    def one(client: ClientData) -> Found:
        models = deploy_unseen(algorithm, federation, state, round, client)
        return _judge(algorithm, federation, state, round, client, models, scope, False)

    return map_lanes(one, federation.unseen, layout.evaluation, layout.devices)


def judge_once(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    round: Array,
    client: ClientData,
    kept: PyTree,
    scope: Scope,
) -> Scores:
    """Scores of the global model on the test rows of one client, which all have."""
    own, shared = deploy_seen(algorithm, federation, state, round, client, kept)
    return _scores(algorithm, federation, state, round, client, own if scope.same else shared, "test", True)


def counted_once(
    algorithm: Algorithm,
    clients: ClientData,
    state: State,
    round: Array,
    scores: Scores,
    scope: Scope,
    known: bool,
) -> Found:
    """The scores of ``judge_once`` for each of ``clients``; NaN for those that do not count."""
    counted = eager.map_all(lambda client: _counts(algorithm, client, "test", state, round, known), clients)
    return {_OWN if scope.same else _COMMON: training.counted_scores(*scores, counted)}


def named_scores(seen: Found, unseen: Found, scope: Scope) -> dict[str, Labelled]:
    """The scores of clients by name of the metric."""
    info: dict[str, Labelled] = {}
    for prefix, dimension, found in (("", "client", seen), ("unseen_", "unseen", unseen)):
        if scope.same and _OWN in found:
            found = found | {_COMMON: found[_OWN]}
        for judgement, judged in found.items():
            info |= along(dimension, **_named(f"{prefix}{judgement.name()}", *judged))
    return info


def judge_server(
    algorithm: Algorithm, federation: Federation, layout: Layout, state: State, round: Array
) -> dict[str, Labelled]:
    """Scores of the server's own models on the server's own rows."""
    info: dict[str, Labelled] = {}
    judged_models = {} if algorithm.models is None else algorithm.models(state.server)
    for name, model in judged_models.items():
        with within("evaluation of the server's models", round=round, seed=state.seed):
            values = _judge_on_held(algorithm, federation, layout, model)
        if values is not None:
            info |= along(*(("cluster", "distribution") if model.several else ()), **_named(name, *values))
    return info


def _judge(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    round: Array,
    client: ClientData,
    models: tuple[PyTree, PyTree | None],
    scope: Scope,
    known: bool,
) -> Found:
    own, shared = models
    judged = functools.partial(_score, algorithm, federation, state, round, client)
    found: Found = {_OWN: judged(own, "test", known)} if scope.unseen else {}
    if scope.train:
        found |= {_TRAIN: (judged(own, "train", known)[0], None)}
    return found if scope.once or shared is None else found | {_COMMON: judged(shared, "test", known)}


def _score(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    round: Array,
    client: ClientData,
    model: PyTree,
    rows: str,
    known: bool,
) -> Scores:
    found = _scores(algorithm, federation, state, round, client, model, rows, known)
    return training.counted_scores(*found, _counts(algorithm, client, rows, state, round, known))


def _scores(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    round: Array,
    client: ClientData,
    model: PyTree,
    rows: str,
    known: bool,
) -> Scores:
    own, key = getattr(local_data(federation, client), rows), None
    if rows == "train":  # with the noise of features that clients train on, as their standalone losses
        purpose = Purpose.DEPLOY if known else Purpose.UNSEEN_DEPLOY
        key = training.stream(client_key(round_key(state.seed, purpose, round), client.id), training.Stream.LOSS)
    with within("evaluation", client=client.id, unseen=not known, round=round, seed=state.seed):
        return training.evaluate(algorithm.task, lambda x: algorithm.predict(model, x), own, key=key)


def _counts(algorithm: Algorithm, client: ClientData, rows: str, state: State, round: Array, known: bool) -> Array:
    there = (client.train.size > 0) & (getattr(client, rows).size > 0)
    if algorithm.counts is None:
        return there
    seat = _seat(round, client, known)
    return there & algorithm.counts(seen_from(state.server, seat), seat)


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


def deployed(
    algorithm: Algorithm, federation: Federation, state: State, position: Int[Array, ""], known: bool
) -> PyTree:
    """The model of one client: seen client with id ``position``, or unseen client number ``position``."""
    if known:
        client, kept = trees.take((federation.clients, state.clients), position)
        return deploy_seen(algorithm, federation, state, state.round, client, kept)[0]
    return deploy_unseen(algorithm, federation, state, state.round, trees.take(federation.unseen, position))[0]
