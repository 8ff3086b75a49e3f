"""The training of clients on their own rows only, as a function of one client and of a population."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax import training
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import map_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import within
from fljax.engine.rounds.states import Purpose, client_key, local_data, round_key
from fljax.protocol import ClientData, Federation, Task
from fljax.results import Reference
from fljax.training import Local, StopAlone, Stream

# Where standalone models start: all of a seed from one model, or each client from weights that it draws.
Initial = Literal["shared", "own"]


class StandalonePlan(NamedTuple):
    """The arguments of a plan of ``standalone``: the builder of such plans, in place of an algorithm."""

    task: Task
    local: Local
    initial: Initial = "shared"
    stop: StopAlone | None = None
    valid: bool = False  # whether models are also judged on validation rows


class StandaloneModels(NamedTuple):
    """The results of standalone training, of one client or along an axis of clients."""

    threshold: Array  # training loss
    test_loss: Array
    test_accuracy: Array | None  # None if the task has no score
    valid_loss: Array | None  # None if it was not asked for
    params: PyTree | None  # None if they are not kept


def reference_of(seen: Any, unseen: Any | None) -> Reference:
    """The ``Reference`` of trained seen clients, and of unseen ones if there are any; also while tracing."""
    reference = Reference(*seen[:3], params=seen.params, valid_loss=seen.valid_loss)
    if unseen is None:
        return reference
    threshold, loss, accuracy, valid, _ = unseen
    return reference._replace(
        unseen_threshold=threshold, unseen_test_loss=loss, unseen_test_accuracy=accuracy, unseen_valid_loss=valid
    )


def check_stop_alone(federation: Federation, stop: Any) -> StopAlone | None:
    """``stop`` with numbers of Python."""
    stop = training.check_stop(stop)
    if stop is not None:
        _check_valid_rows(federation, "early stopping")
    return stop


def check_valid_alone(federation: Federation, valid: bool) -> bool:
    """``valid``; raises a ValueError if models are to be judged on validation rows and no client has any."""
    if valid:
        _check_valid_rows(federation, "validation losses")
    return valid


def _check_valid_rows(federation: Federation, purpose: str) -> None:
    groups = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    if not any(np.any(np.asarray(clients.valid.size) > 0) for clients in groups):
        raise ValueError(
            f"expected clients with validation rows for {purpose} of standalone models, got none "
            "(valid_fraction above 0 keeps some)"
        )


def check_initial(task: Task, initial: str) -> None:
    """Raises a ValueError if ``initial`` is no valid name, or "own" for a task that starts from given parameters."""
    if initial not in get_args(Initial):
        raise ValueError(f"expected initial weights of standalone models to be shared or own, got {initial!r}")
    if initial == "own":
        from fljax.models.starting import is_given  # imported here, since it needs flax

        if is_given(task):
            raise ValueError("expected shared initial weights for a task that starts from given parameters, got 'own'")


def shared_model(plan: Any, seed: Array) -> PyTree | None:
    """The model from which all clients of a seed start, that of the algorithms; None if each draws its own."""
    return plan.task.init(round_key(seed, Purpose.INIT_SERVER)) if plan.initial == "shared" else None


def _own_model(task: Task, client: ClientData, purpose: Array, seed: Array) -> PyTree:
    """The initial weights of one client, seen or unseen, from a key of its own."""
    unseen = purpose == int(Purpose.UNSEEN_STANDALONE)
    drawing = jnp.where(unseen, int(Purpose.UNSEEN_INIT_STANDALONE), int(Purpose.INIT_STANDALONE))
    return task.init(client_key(round_key(seed, drawing), client.id))


def train_population(
    plan: Any,
    data: Federation,
    clients: ClientData,
    purpose: Array,
    params: PyTree | None,
    seed: Array,
    layout: Layout,
    keep_models: bool,
) -> StandaloneModels:
    """Scores, and models if they are kept, of a population, in its order; ``params`` is the ``shared_model``."""

    def one(row: tuple[ClientData, Array]) -> StandaloneModels:
        models = train_alone(plan, data, *row, params, seed)
        return models if keep_models else models._replace(params=None)

    cost = jnp.maximum(clients.train.size, 1)
    return map_lanes(one, (clients, purpose), layout.clients, layout.devices, cost, skip=False)


def train_alone(
    plan: Any, data: Federation, client: ClientData, purpose: Array, params: PyTree | None, seed: Array
) -> StandaloneModels:
    """Scores and model of one client."""
    client_data = local_data(data, client)
    key = client_key(round_key(seed, purpose), client.id)
    counts = (client.train.size > 0) & (client.test.size > 0)
    unseen = eager.is_on() and int(purpose) == int(Purpose.UNSEEN_STANDALONE)
    with within("standalone training", client=client.id, unseen=unseen, seed=seed):
        start = params if plan.initial == "shared" else _own_model(plan.task, client, purpose, seed)
        # One long round has no schedule over rounds.
        how: dict[str, Any] = {"task": plan.task, "local": plan.local._replace(schedule=None)}
        if plan.stop is None:
            trained = training.train(key, start, client_data.train, **how).params
        else:
            trained = training.train_until(
                key, start, client_data.train, client_data.valid, **how, stop=plan.stop
            ).params
        predict = functools.partial(plan.task.logits, trained)
        threshold, _ = training.evaluate(plan.task, predict, client_data.train, key=training.stream(key, Stream.LOSS))
        loss, accuracy = training.counted_scores(*training.evaluate(plan.task, predict, client_data.test), counts)
        valid = None
        if plan.valid:
            counts = (client.train.size > 0) & (client.valid.size > 0)
            valid, _ = training.counted_scores(*training.evaluate(plan.task, predict, client_data.valid), counts)
    return StandaloneModels(threshold, loss, accuracy, valid, trained)
