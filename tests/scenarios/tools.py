"""What the tests of scenarios share: a task, runs on the tiny federation, and what a client sends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.algorithms import fedavg
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import Purpose, by_id, client_key, initial_state, local_data, round_key
from fljax.protocol import Seat, unlabelled
from fljax.training import Local
from tests.toys.federation import client_rows
from tests.toys.task import logistic_regression

TASK = logistic_regression()
LOCAL = Local(0.5, 4, steps=5)
POPULATION = 5


def run(algorithm: Any, federation: Any, rounds: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """States before each round and after the last, and the records."""
    data = by_id(federation)
    step = jax.jit(lambda state: one_round(algorithm, data, Layout(5, 1, 5), state))
    states = [jax.jit(lambda: initial_state(algorithm, data, jnp.uint32(seed)))()]
    records = []
    for _ in range(rounds):
        state, info = step(states[-1])
        states.append(state)
        records.append(jax.tree.map(np.asarray, unlabelled(info)))
    return states, records


def losses(model: Any, federation: Any) -> np.ndarray:
    """``F_k`` of every client in NumPy."""
    found = []
    for id in range(POPULATION):
        x, y = client_rows(federation, id)
        logits = x.astype(float) @ np.asarray(model.weight, float) + np.asarray(model.bias, float)
        top = logits.max(axis=1)
        found.append(np.mean(top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(y)), y]))
    return np.array(found)


def everybody(build: Any = fedavg, **options: Any) -> Any:
    return build(TASK, LOCAL, clients_per_round=None, **options)


def uniform() -> Any:
    return everybody(weights="uniform")


def flat(tree: Any, axes: int = 0) -> np.ndarray:
    """Leaves of ``[axes..., ...]`` as one vector each."""
    return np.concatenate([np.reshape(x, (*x.shape[:axes], -1)) for x in jax.tree.leaves(tree)], axes).astype(float)


def taking_part(record: Any) -> set[int]:
    return set(record["cohort_id"][record["cohort_present"]].tolist())


def sent(algorithm: Any, federation: Any, seed: int = 0) -> Any:
    """What every client sends in round 0, by id."""
    data = by_id(federation)
    state = initial_state(algorithm, data, jnp.uint32(seed))
    key, zero = round_key(jnp.uint32(seed), Purpose.TRAIN, 0), jnp.int32(0)

    @jax.jit
    def one(client: Any, kept: Any) -> Any:
        seat = Seat(zero, client.id, zero)
        down = algorithm.down(state.server, seat)
        return algorithm.train(client_key(key, client.id), seat, down, kept, local_data(data, client))[0]

    return state, jax.vmap(one)(data.clients, state.clients)
