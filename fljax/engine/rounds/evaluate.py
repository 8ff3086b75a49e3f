"""Evaluation of ALL clients, seen and unseen, on their own test rows, and of the server's models.

Also the gradient of the objective of INCFL and MaxFL, at the global model of any algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.aggregators import incfl_weights
from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import fold_lanes, map_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import within
from fljax.engine.rounds.states import (
    Purpose,
    State,
    client_key,
    every_seat,
    held_data,
    local_data,
    own_server,
    round_key,
)
from fljax.metrics.scores import Predicted
from fljax.protocol import Algorithm, ClientData, Federation, Judged, Labelled, Seat, along, roles, seen_from
from fljax.training.evaluation import AT_ONCE

_Value = TypeVar("_Value")
Scores = tuple[Array, Array | None]  # losses, and accuracies if the task has a score


class Judgement(NamedTuple):
    """A model ("common" is the global model, before personalisation) and the rows of the client that judge it."""

    model: Literal["own", "common", "probed"]  # "probed": its own, by the Probe whose name stands for the rows
    rows: str  # test, valid or train

    def name(self) -> str:
        """The metric's name before ``_loss`` and ``_accuracy``."""
        return f"global_{self.rows}" if self.model == "common" else self.rows


_OWN, _COMMON, _VALID = Judgement("own", "test"), Judgement("common", "test"), Judgement("own", "valid")
_TRAIN = Judgement("own", "train")
_COMMON_TRAIN, _COMMON_VALID = Judgement("common", "train"), Judgement("common", "valid")


def evaluate_state(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Int[Array, ""] | None = None,  # equals ``state.round``, as in ``one_round``
    valid: bool = False,
    common: bool = False,
    needs: Collection[str] = (),
    judged: int = 0,  # seen clients, which are drawn; 0: all
) -> dict[str, Labelled]:
    """Test loss and accuracy of every client, ``[N]`` by id, ``unseen_`` [U], and of the server's models, by name."""
    # ``global_`` is the prefix of the global model, judged once if tests are ``common`` (``same_tests``), ``server_``
    # that of the server's own, ``cluster_`` [C, distributions] that of cluster models. NaN for clients without training
    # rows, without rows of the split, or not counted by the algorithm. A NaN loss becomes infinite.
    round = state.round if round is None else round
    scope = Scope.of(algorithm, valid, common, needs)
    judge = Judge(algorithm, federation, state, round)
    judge_of_unseen = judge._replace(known=False)
    seen: Found = {}
    unseen: Found = {}
    if scope.seen:
        seen = judge_drawn(judge, layout, scope, judged) if judged else judge_seen(judge, layout, scope)
    if scope.unseen and federation.unseen is not None:
        unseen = judge_unseen(judge_of_unseen, layout, scope)
    if scope.once:
        # The first client with test rows gives the scores of all clients.
        place = jnp.argmax(federation.clients.test.size > 0)
        client, client_state = trees.take((federation.clients, state.clients), place)
        scores = judge_once(judge, client, client_state, scope)
        seen |= counted_once(judge, federation.clients, scores)
        if federation.unseen is not None:
            unseen |= counted_once(judge_of_unseen, federation.unseen, scores)
    return named_scores(seen, unseen, scope) | judge_server(judge, layout)


class Scope(NamedTuple):
    """What an evaluation judges (static)."""

    valid: bool  # whether seen clients are also judged on their validation rows
    once: bool  # whether the global model is judged once: all test rows are the same
    same: bool  # whether all clients use the global model
    train: bool = False  # also on training rows, since clients tune what they are given
    common_train: bool = False  # the global model on training rows of seen clients
    common_valid: bool = False  # the global model on their validation rows

    @classmethod
    def of(cls, algorithm: Algorithm, valid: bool, common: bool, needs: Collection[str] = ()) -> Scope:
        """For an algorithm, and the arguments of ``evaluate_state``."""
        train = algorithm.personal is not None and any(scenario.tunes for scenario in algorithm.scenarios)
        same = algorithm.personal is None
        there = same or algorithm.common is not None
        common_train = there and "global_train_loss" in needs
        common_valid = there and valid and "global_valid_loss" in needs
        return cls(valid, common and algorithm.common is not None, same, train, common_train, common_valid)

    @property
    def seen(self) -> bool:
        """Whether each seen client is judged on rows of its own."""
        return self.valid or self.unseen or self.common_train

    @property
    def unseen(self) -> bool:
        """Whether each unseen client is judged on rows of its own."""
        return not (self.once and self.same)


OwnScores = dict[Judgement, Scores]
Found = dict[Judgement, Any]  # of Scores [N] or [U]


class Judge(NamedTuple):
    """Judges models of clients after some rounds of one run."""

    algorithm: Algorithm
    federation: Federation  # of all clients, stored by id, or of those that are judged
    state: State  # has the seed and the Server; a Server of one client is enough
    round: Int[Array, ""]  # equals ``state.round``, as in ``one_round``
    known: bool = True  # whether the clients are seen ones (static)

    def seat(self, client: ClientData) -> Seat:
        """The seat of the client; that of an unseen one has the id -1."""
        id = client.id if self.known else jnp.full((), -1, jnp.int32)
        return Seat(self.round, id, jnp.zeros((), jnp.int32), self.known)

    def key(self, client: ClientData) -> Key[Array, ""]:
        """The key with which the client deploys its model."""
        purpose = Purpose.DEPLOY if self.known else Purpose.UNSEEN_DEPLOY
        return client_key(round_key(self.state.seed, purpose, self.round), client.id)

    def deploy(self, client: ClientData, client_state: PyTree = None) -> tuple[PyTree, PyTree | None]:
        """(Deployed, common model) of the client; None for no common model, or if Deployed is the common model."""
        # Deployed may depend on ``client.deployment``. An unseen client gets a fresh Client, not ``client_state``.
        if self.known:
            return self._deploy(client, lambda seat: client_state)
        data = local_data(self.federation, client)
        key = client_key(round_key(self.state.seed, Purpose.UNSEEN_INIT_CLIENT), client.id)

        def fresh(seat: Seat) -> PyTree:
            down = self.algorithm.down(self.state.server, seat._replace(first=True))
            return self.algorithm.init_client(key, seat, down, data)

        with within("evaluation", checked=False, client=client.id, unseen=True):  # the seat has no id
            return self._deploy(client, fresh)

    def _deploy(self, client: ClientData, state_at: Callable[[Seat], PyTree]) -> tuple[PyTree, PyTree | None]:
        algorithm, seat = self.algorithm, self.seat(client)
        down = algorithm.down(self.state.server, seat)
        key = self.key(client)
        data = local_data(self.federation, client, deployed=True)
        deployed = algorithm.deploy(key, seat, down, state_at(seat), data)
        if algorithm.common is None or algorithm.personal is None:
            return deployed, None
        return deployed, algorithm.common(down)

    def score(self, client: ClientData, model: PyTree, rows: str) -> Scores:
        """As ``any_score``, but NaN for a client that does not count."""
        return training.counted_scores(*self.any_score(client, model, rows), self.counts(client, rows))

    def any_score(self, client: ClientData, model: PyTree, rows: str) -> Scores:
        """Loss and accuracy of a model on the client's test, valid or train rows, whether or not it counts."""
        subset, key = getattr(local_data(self.federation, client), rows), None
        if rows == "train":  # with the noise of features that clients train on, as their standalone losses
            key = training.stream(self.key(client), training.Stream.LOSS)
        with within("evaluation", client=client.id, unseen=not self.known, round=self.round, seed=self.state.seed):
            return training.evaluate(self.algorithm.task, lambda x: self.algorithm.predict(model, x), subset, key=key)

    def any_own(self, client: ClientData, model: PyTree) -> OwnScores:
        """The scores on test rows of the model that the client would use, also by probes, whether or not it counts."""
        found: OwnScores = {_OWN: self.any_score(client, model, "test")}
        for probe in self.algorithm.probes:
            task = self.algorithm.task._replace(loss=probe.counted, score=probe.hits)
            rows = probe.rows(local_data(self.federation, client).test)
            counted, hits = training.evaluate(task, lambda x: self.algorithm.predict(model, x), rows)
            found[Judgement("probed", probe.name)] = counted, trees.or_nan(counted > 0, trees.ratio(hits, counted))
        return found

    def counts(self, client: ClientData, rows: str) -> Bool[Array, ""]:
        """Whether metrics of these rows count the client."""
        has_rows = (client.train.size > 0) & (getattr(client, rows).size > 0)
        if self.algorithm.counts is None:
            return has_rows
        seat = self.seat(client)
        return has_rows & self.algorithm.counts(seen_from(self.state.server, seat), seat)

    def score_models(self, client: ClientData, models: tuple[PyTree, PyTree | None], scope: Scope) -> Found:
        """Scores of the two models of ``deploy``, as far as each client is judged on rows of its own."""
        deployed, common = models
        own, counts = self.any_own(client, deployed) if scope.unseen else {}, self.counts(client, "test")
        scores: Found = {judgement: training.counted_scores(*found, counts) for judgement, found in own.items()}
        if scope.train:
            scores |= {_TRAIN: (self.score(client, deployed, "train")[0], None)}
        if scope.common_train:
            scores |= {_COMMON_TRAIN: (self.score(client, deployed if scope.same else common, "train")[0], None)}
        if scope.common_valid:
            scores |= {_COMMON_VALID: (self.score(client, deployed if scope.same else common, "valid")[0], None)}
        return scores if scope.once or common is None else scores | {_COMMON: self.score(client, common, "test")}


def judge_seen(judge: Judge, layout: Layout, scope: Scope, id: Int[Array, " clients"] | None = None) -> Found:
    """Scores of each seen client (``id``; None: all): its own model and, unless it is judged once, the global model."""

    def one(judge: Judge, client: ClientData, client_state: PyTree) -> Found:
        models = judge.deploy(client, client_state)
        scores = judge.score_models(client, models, scope)
        if not scope.valid:
            return scores
        model = models[0]
        if client.deployment is not None:  # validation rows judge what the client used before its data changed
            model, _ = judge.deploy(client._replace(deployment=None), client_state)
        return scores | {_VALID: judge.score(client, model, "valid")}

    return _of_seen(judge, layout, id, one)


def draw(seed: Array, round: Array, clients: ClientData, count: int) -> Int[Array, " count"]:
    """The ids, in order, of ``count`` seen clients that an evaluation judges, of those with training and test rows."""
    able = (clients.train.size > 0) & (clients.test.size > 0)
    number = jax.random.uniform(round_key(seed, Purpose.EVALUATE, round), able.shape, jnp.float32)
    return jnp.sort(jax.lax.top_k(jnp.where(able, number, -1.0), count)[1])


def placed(found: Found, id: Int[Array, " count"], population: int) -> Found:
    """Scores of the clients ``id`` among those of all clients; NaN for the others."""
    return jax.tree.map(lambda scores: jnp.full(population, jnp.nan, scores.dtype).at[id].set(scores), found)


def judge_drawn(judge: Judge, layout: Layout, scope: Scope, count: int) -> Found:
    """``judge_seen`` of ``count`` clients that are drawn; NaN for the others."""
    federation, state = judge.federation, judge.state
    id = draw(state.seed, judge.round, federation.clients, count)
    clients, kept = trees.take((federation.clients, state.clients), id)
    some = judge._replace(federation=federation._replace(clients=clients), state=state._replace(clients=kept))
    return placed(judge_seen(some, layout, scope, id), id, federation.clients.id.shape[0])


def _of_seen(
    judge: Judge, layout: Layout, id: Int[Array, " clients"] | None, one: Callable[[Judge, ClientData, PyTree], _Value]
) -> _Value:
    """``one(judge, client, its state)`` of each seen client, where the judge has the client's Server."""
    state, clients = judge.state, judge.federation.clients
    seats = every_seat(judge.round, clients.id)
    rows, server_of = own_server(judge.algorithm, state.server, layout.devices, seats, whole=id is None)

    def of_client(row: tuple[ClientData, Any, Any]) -> _Value:
        client, client_state, server_row = row
        return one(judge._replace(state=state._replace(server=server_of(server_row))), client, client_state)

    return map_lanes(of_client, (clients, state.clients, rows), layout.evaluation, layout.devices)


def judge_unseen(judge: Judge, layout: Layout, scope: Scope) -> Found:
    """Scores of each unseen client, as ``judge_seen``; the objective is that of seen clients alone."""
    scope = scope._replace(common_train=False, common_valid=False)

    def one(client: ClientData) -> Found:
        return judge.score_models(client, judge.deploy(client), scope)

    return map_lanes(one, judge.federation.unseen, layout.evaluation, layout.devices)


def judge_once(judge: Judge, client: ClientData, client_state: PyTree, scope: Scope) -> OwnScores:
    """Scores of the global model on the test rows of one seen client, which all have."""
    deployed, common = judge.deploy(client, client_state)
    return judge.any_own(client, deployed) if scope.same else {_COMMON: judge.any_score(client, common, "test")}


def counted_once(judge: Judge, clients: ClientData, scores: OwnScores) -> Found:
    """The scores of ``judge_once`` for each of ``clients``; NaN for those that do not count."""
    counted = eager.map_all(lambda client: judge.counts(client, "test"), clients)
    return {judgement: training.counted_scores(*found, counted) for judgement, found in scores.items()}


def named_scores(seen: Found, unseen: Found, scope: Scope) -> dict[str, Labelled]:
    """The scores of clients by name of the metric."""
    info: dict[str, Labelled] = {}
    for prefix, dimension, by_judgement in (("", "client", seen), ("unseen_", "unseen", unseen)):
        if scope.same and _OWN in by_judgement:
            by_judgement = by_judgement | {_COMMON: by_judgement[_OWN]}
        for judgement, judged in by_judgement.items():
            name = f"{prefix}{judgement.name()}"
            named = {name: judged[1]} if judgement.model == "probed" else _named(name, *judged)
            info |= along(dimension, **named)
    return info


def judge_server(judge: Judge, layout: Layout) -> dict[str, Labelled]:
    """Scores of the server's own models on the server's own rows."""
    info: dict[str, Labelled] = {}
    models, state = judge.algorithm.models, judge.state
    judged_models = {} if models is None else models(state.server)
    for name, model in judged_models.items():
        with within("evaluation of the server's models", round=judge.round, seed=state.seed):
            values = _judge_on_held(judge.algorithm, judge.federation, layout, model)
        if values is not None:
            info |= along(*(("cluster", "distribution") if model.several else ()), **_named(name, *values))
    return info


def _judge_on_held(
    algorithm: Algorithm, federation: Federation, layout: Layout, judged: Judged
) -> tuple[Array, Array | None] | None:
    """Loss and accuracy of server models on the server's rows, ``[]`` or ``[C, distributions]``; None without rows."""
    held = held_data(federation, layout)
    if judged.several:
        by_distribution = [
            training.evaluate_each(algorithm.task, judged.model, held[name], algorithm.predict)
            for name in numbered(federation, judged.rows)
        ]
        return jax.tree.map(lambda *values: jnp.stack(values, axis=-1), *by_distribution) if by_distribution else None
    if judged.rows not in held:
        return None
    rows = held[judged.rows]
    scores = training.evaluate(algorithm.task, lambda x: algorithm.predict(judged.model, x), rows)
    return training.counted_scores(*scores, rows.rows.size > 0)


def _named(prefix: str, loss: Array, accuracy: Array | None) -> dict[str, Array]:
    """The scores by name; a task without a score has no accuracy."""
    named = {f"{prefix}_loss": loss}
    return named if accuracy is None else named | {f"{prefix}_accuracy": accuracy}


def numbered(federation: Federation, rows: str) -> list[str]:
    """Names of the server's rows ``rows_0``, ``rows_1`` and so on, by their numbers."""
    prefix = f"{rows}_"
    names = [name for name in federation.held if name.startswith(prefix) and name.removeprefix(prefix).isdigit()]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


def predict_seen(judge: Judge, layout: Layout, id: Int[Array, " clients"] | None = None) -> Predicted:
    """Predictions of the seen clients in ``judge.federation``, whose ids are ``id``; None: all clients of the run."""
    return _of_seen(judge, layout, id, _predicted)


def predict_unseen(judge: Judge, layout: Layout) -> Predicted:
    """Predictions of the unseen clients in ``judge.federation``."""

    def one(client: ClientData) -> Predicted:
        return _predicted(judge, client)

    return map_lanes(one, judge.federation.unseen, layout.evaluation, layout.devices)


def _predicted(judge: Judge, client: ClientData, client_state: PyTree = None) -> Predicted:
    """The predictions of one client, computed for some rows at a time as ``fljax.training.evaluate`` does."""
    model, _ = judge.deploy(client, client_state)
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
    return Predicted(outputs, labels, subset.rows.size, judge.counts(client, "test"))


GRADIENT_NORM = "objective_gradient_norm"


def gradient_norm(
    algorithm: Algorithm,
    federation: Federation,
    layout: Layout,
    state: State,
    round: Int[Array, ""],
    required: Float[Array, " N"],
) -> dict[str, Labelled]:
    """``||(1/M) sum_k s_k (1 - s_k) grad F_k(w)||`` with ``s_k = sigma(F_k(w) - rho_k)``: 0 at stationary points."""
    # ``w`` is the global model (absent without one), ``F_k`` the loss on all training rows of client k, M the number of
    # seen clients that count (have a ``rho_k``). Statistics (BatchNorm) are constants. INCFL and MaxFL, equation (4).
    same = algorithm.personal is None
    if not same and algorithm.common is None:
        return {}
    judge, clients = Judge(algorithm, federation, state, round), federation.clients
    seats = every_seat(round, clients.id)
    rows, server_of = own_server(algorithm, state.server, layout.devices, seats, whole=True)

    def one(row: tuple[ClientData, Any, Any, Array]) -> tuple[tuple[PyTree, Array], tuple[()]]:
        client, kept, server_row, rho = row
        own = judge._replace(state=state._replace(server=server_of(server_row)))
        deployed, common = own.deploy(client, kept)
        loss, slope = _loss_and_slope(own, client, deployed if same else common)
        counts = own.counts(client, "train") & ~jnp.isnan(rho)
        slope = trees.scale(slope, incfl_weights((loss - rho)[None])[0])
        return (jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), slope), counts), ()

    def add_up(summands: tuple[PyTree, Array], real: Array) -> tuple[PyTree, Array]:
        slopes, counts = summands

        def summed(leaf: Array) -> Array:
            counted = (counts & real).reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.sum(jnp.where(counted, leaf, 0), axis=0)

        return jax.tree.map(summed, slopes), jnp.sum(counts & real, dtype=jnp.int32)

    xs = (clients, state.clients, rows, required)
    (total, count), _ = fold_lanes(one, add_up, xs, layout.evaluation, layout.devices)
    square = sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(total)), start=jnp.zeros((), required.dtype))
    norm = jnp.sqrt(square) / jnp.maximum(count, 1).astype(square.dtype)
    return along(**{GRADIENT_NORM: trees.or_nan(count > 0, norm)})


def _loss_and_slope(judge: Judge, client: ClientData, model: PyTree) -> tuple[Array, PyTree]:
    """``F_k`` and its gradient in the floats of a model; a list of leaves, without statistics."""
    algorithm, leaves = judge.algorithm, jax.tree.leaves(model)
    task, rows = algorithm.task, local_data(judge.federation, client).train
    # Activations are computed twice, so that memory holds those of one part of the rows.
    predict = jax.checkpoint(algorithm.predict)
    key = training.stream(judge.key(client), training.Stream.LOSS)  # features with the noise that clients train on
    structure = jax.tree.structure(model)
    is_float = [bool(jnp.issubdtype(leaf.dtype, jnp.floating)) for leaf in leaves]
    if structure == jax.tree.structure(jax.eval_shape(task.init, jax.random.key(0))):
        trained = jax.tree.leaves(roles.trained_mask(task, model))
        is_float = [real and moves for real, moves in zip(is_float, trained, strict=True)]

    def loss(floats: list[Array]) -> Array:
        def predicted(x: Array) -> Array:  # the gradient adds up in the dtype of floats
            numbers = iter(floats)
            whole = [
                next(numbers).astype(old.dtype) if real else old for old, real in zip(leaves, is_float, strict=True)
            ]
            return predict(jax.tree.unflatten(structure, whole), x)

        return training.evaluate(task, predicted, rows, key=key)[0]

    with within("evaluation", client=client.id, round=judge.round, seed=judge.state.seed):
        return jax.value_and_grad(loss)([trees.wide(leaf) for leaf, real in zip(leaves, is_float, strict=True) if real])
