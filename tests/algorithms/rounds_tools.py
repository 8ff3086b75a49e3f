"""What the tests of whole rounds share: ragged clients, compiled rounds, and the batches that the engine draws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import training
from fljax.core.trees import take
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import Purpose, by_id, client_key, initial_state, round_key
from fljax.models import correct
from fljax.protocol import Algorithm, ClientData, Examples, Federation, Rows, Subset, Task, unlabelled
from fljax.training import Local
from tests.oracles import numpy_round
from tests.toys.quick import QUICK

SEED = 7

START = 0.3 * np.random.default_rng(0).normal(size=(3, 4))

TASK = Task(
    init=lambda key: {"w": jnp.asarray(START, jnp.result_type(float)), "b": jnp.zeros(4)},
    logits=lambda params, x, key=None: x @ params["w"] + params["b"][None, :],
    loss=optax.softmax_cross_entropy_with_integer_labels,
    classes=4,
    score=correct,
)


def federation(sizes=(5, 0, 3, 7, 2), ids=(2, 0, 4, 1, 3), *, capacity=7, x=None, y=None):
    """Ragged clients, stored in another order than their ids; padding points at an example of NaN."""
    rng = np.random.default_rng(1)
    total = sum(sizes)
    x = rng.normal(size=(total, 3)) if x is None else x
    y = rng.integers(0, 4, total) if y is None else y
    x = np.concatenate([x, np.full((1, x.shape[1]), np.nan)])
    dtype = jnp.zeros(()).dtype
    index = np.full((len(sizes), capacity), total)
    for k, size in enumerate(sizes):
        index[k, :size] = sum(sizes[:k]) + np.arange(size)
    rows = Rows(jnp.asarray(index, jnp.int32), jnp.asarray(sizes, jnp.int32))
    clients = ClientData(jnp.asarray(ids, jnp.int32), rows, rows, rows)
    return Federation(Examples(jnp.asarray(x, dtype), jnp.asarray(np.append(y, 0), jnp.int32)), clients)


stored = jax.jit(by_id)


@functools.partial(jax.jit, static_argnames=("build", "rounds"), compiler_options=QUICK)
def _history(build, rounds, numbers, data):
    algorithm = build(numbers)
    start = initial_state(algorithm, data, jnp.uint32(SEED))
    layout = Layout(data.clients.id.shape[0], 1, data.clients.id.shape[0])

    def one(state, _):
        after, info = one_round(algorithm, data, layout, state)
        return after, (after, unlabelled(info))

    _, (states, records) = jax.lax.scan(one, start, length=rounds)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, states), records


def history(build: Callable[[Any], Algorithm], data: Federation, rounds: int, numbers: Any = ()) -> tuple[Any, Any]:
    """States before round 0 and after each round, ``[rounds + 1, ...]``, and records ``[rounds, ...]``: one program.

    Args:
      build: ``numbers -> algorithm``, called inside the program; the same function means the same program.
      data: stored in any order.
      rounds: at least one.
      numbers: arrays that differ between runs of one program.
    """
    states, records = jax.tree.map(np.asarray, _history(build, rounds, numbers, stored(data)))
    assert (states.diverged == -1).all()
    return states, records


def missing(algorithm: Algorithm, absent: tuple[tuple[int, ...], ...]) -> Algorithm:
    """The algorithm where in round t the clients ``absent[t]`` are lost after they were selected."""
    inner = algorithm.select
    population = 1 + max((id for ids in absent for id in ids), default=0)
    lost = np.zeros((len(absent), population), bool)
    for t, ids in enumerate(absent):
        lost[t, list(ids)] = True

    def select(key, round, server, ballots, available):
        server, cohort, info = inner(key, round, server, ballots, available)
        gone = jnp.asarray(lost)[round, jnp.minimum(cohort.id, population - 1)] & (cohort.id < population)
        return server, cohort._replace(present=cohort.present & ~gone), info

    return algorithm._replace(select=select)


def engine_key(id, round):
    """The key with which the engine lets a client train."""
    return client_key(round_key(jnp.uint32(SEED), Purpose.TRAIN, round), id)


@functools.partial(jax.jit, static_argnames="how", compiler_options=QUICK)
def drawn_with(key, rows, id, how):
    """The batches that a client draws with a key."""
    nothing = Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))
    return training.draw(training.stream(key, training.Stream.BATCHES), Subset(nothing, take(rows, id)), how)


def batches_of(drawn):
    """Lists of positions, one for each real step."""
    steps = drawn.position.shape[0] if drawn.steps is None else int(drawn.steps)
    position, mask = np.asarray(drawn.position), np.asarray(drawn.mask)
    return [position[t][mask[t]].tolist() for t in range(steps)]


def own_rows(data, id):
    """x, y of one client without padding."""
    train = stored(data).clients.train
    rows = np.asarray(train.index)[id, : np.asarray(train.size)[id]]
    return np.asarray(data.examples.x)[rows], np.asarray(data.examples.y)[rows]


def numpy_client(data, id, round, how: Local, stream: int | None = None, key: Any = None):
    """One client for NumPy, with the batches that the engine's keys give it in a stream; or those of ``key``."""
    x, y = own_rows(data, id)
    key = engine_key(jnp.int32(id), jnp.int32(round)) if key is None else key
    key = key if stream is None else jax.random.fold_in(key, int(stream))
    drawn = drawn_with(key, stored(data).clients.train, jnp.int32(id), how)
    return numpy_round.Client(x.astype(np.float64), y, batches_of(drawn))


def present_clients(data, how, record, round):
    """NumPy clients of a record's cohort, and their ids."""
    ids = record["cohort_id"][record["cohort_present"]]
    return [numpy_client(data, id, round, how) for id in ids], ids


def double(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def relative_error(found, expected):
    top = max(np.abs(leaf).max() for leaf in jax.tree.leaves(double(expected)))
    errors = jax.tree.map(
        lambda a, b: np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(), found, expected
    )
    return max(jax.tree.leaves(errors)) / top


def close(found, expected, tolerance=1e-6):
    assert relative_error(found, expected) < tolerance
