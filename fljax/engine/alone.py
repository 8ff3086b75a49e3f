"""The training of clients on their own rows only, as a function of one client and of a population."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax import training
from fljax.engine import eager
from fljax.engine.errors import within
from fljax.engine.federations import local_data
from fljax.engine.keys import Purpose, client_key, round_key
from fljax.engine.lanes import map_lanes
from fljax.engine.layout import Layout
from fljax.training import Local, Stream
from fljax.types import ClientData, Federation, Task


class Solo(NamedTuple):
    """The arguments of a plan that ``standalone`` needs."""

    task: Task
    local: Local


def train_population(
    solo: Any,
    data: Federation,
    clients: ClientData,
    purpose: Array,
    params: PyTree,
    seed: Array,
    layout: Layout,
    keep_models: bool,
) -> tuple[Array, Array, Array | None, PyTree | None]:
    """Training loss, test loss, test accuracy (or None) and models (or None) of a population, in its order."""

    def one(row: tuple[ClientData, Array]) -> tuple[Array, Array, Array | None, PyTree | None]:
        threshold, loss, accuracy, trained = train_alone(solo, data, *row, params, seed)
        return threshold, loss, accuracy, trained if keep_models else None

    cost = jnp.maximum(clients.train.size, 1)
    return map_lanes(one, (clients, purpose), layout.clients, layout.devices, cost, skip=False)


def train_alone(
    solo: Any, data: Federation, client: ClientData, purpose: Array, params: PyTree, seed: Array
) -> tuple[Array, Array, Array | None, PyTree]:
    """Training loss, test loss, test accuracy (or None) and model of one client."""
    own = local_data(data, client)
    key = client_key(round_key(seed, purpose), client.id)
    counts = (client.train.size > 0) & (client.test.size > 0)
    unseen = eager.is_on() and int(purpose) == int(Purpose.UNSEEN_STANDALONE)
    with within("standalone training", client=client.id, unseen=unseen, seed=seed):
        trained = training.train(key, params, own.train, task=solo.task, local=solo.local).params
        predict = lambda x: solo.task.logits(trained, x)  # noqa: E731
        threshold, _ = training.evaluate(solo.task, predict, own.train, key=training.stream(key, Stream.LOSS))
        loss, accuracy = training.counted_scores(*training.evaluate(solo.task, predict, own.test), counts)
    return threshold, loss, accuracy, trained
