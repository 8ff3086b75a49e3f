"""Three algorithms of unlike shape on the protocol equal plain NumPy loops, with ragged data and an absent client."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine, training
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.states import Purpose, by_id, client_key, initial_state, local_data, round_key
from fljax.protocol import Algorithm, Federation
from fljax.training import Local
from tests.oracles import toys as oracle
from tests.precision import enable_x64
from tests.toys.clusters import clusters
from tests.toys.control_variates import control_variates
from tests.toys.federation import TRAIN, client_rows, tiny_federation
from tests.toys.models_per_client import models_per_client, recovers
from tests.toys.quick import QUICK
from tests.toys.task import logistic_regression

SEED, RATE = 11, 0.3
CLIENTS = range(len(TRAIN))
# Client 2 is away in round 1, clients 0 and 4 in round 2.
AVAILABLE = [[0, 1, 2, 3, 4], [0, 1, 3, 4], [1, 2, 3]]
LOCAL = Local(RATE, batch_size=4, steps=3)


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Any:
    """(dtype, tolerance), with the switch to double precision where it is needed."""
    double = request.param == "float64"
    with enable_x64(double):
        yield (np.float64, 1e-10) if double else (np.float32, 1e-5)


def _run(algorithm: Algorithm, data: Federation) -> Any:
    """Initial state, final state and Info of the rounds of AVAILABLE."""
    data = by_id(data)
    start = jax.jit(lambda: initial_state(algorithm, data, jnp.uint32(SEED)), compiler_options=QUICK)()
    step = jax.jit(
        lambda state, available: engine.one_round(algorithm, data, Layout(8, 1, 8), state, available=available),
        compiler_options=QUICK,
    )
    state, infos = start, []
    for ids in AVAILABLE:
        state, info = step(state, jnp.zeros(len(TRAIN), bool).at[jnp.asarray(ids)].set(True))
        infos.append(info)
    return start, state, infos


def _batches(data: Federation) -> Any:
    """The positions that fljax draws, as ``batches(round, id, slot)``."""
    data = by_id(data)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def draw(round: Any, id: Any, slot: Any) -> Any:
        key = client_key(round_key(jnp.uint32(SEED), Purpose.TRAIN, round), id, slot)
        subset = local_data(data, jax.tree.map(lambda leaf: leaf[id], data.clients)).train
        return training.draw(jax.random.fold_in(key, 0), subset, LOCAL)

    def batches(round: int, id: int, slot: int) -> list[np.ndarray]:
        drawn = draw(*(jnp.int32(value) for value in (round, id, slot)))
        steps = zip(np.asarray(drawn.position), np.asarray(drawn.mask), strict=True)
        return [position[mask] for position, mask in steps]

    return batches


def _numpy(model: Any) -> Any:
    return jax.tree.map(np.asarray, tuple(model))


def _rows(data: Federation, part: str) -> list[Any]:
    return [client_rows(data, id, part) for id in CLIENTS]


def _assert_close(found: Any, expected: Any, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.thorough
def test_models_per_client(precision: Any) -> None:
    dtype, tolerance = precision
    data, contribution = tiny_federation(dtype=dtype), (1.0, 0.5, 0.8, 0.2, 0.6)
    algorithm = models_per_client(logistic_regression(dtype), LOCAL, contribution=contribution)
    start, state, infos = _run(algorithm, data)
    key = functools.partial(round_key, jnp.uint32(SEED), Purpose.SELECT)
    chosen = jax.jit(lambda round: recovers(key(round), 5, 0.3), compiler_options=QUICK)
    recovered = [np.asarray(chosen(jnp.int32(round))) for round in range(3)]
    assert any(mask.any() for mask in recovered[1:])
    models, reference = oracle.models_per_client(
        _numpy(start.server.reference), _rows(data, "train"), AVAILABLE, _batches(data), RATE, contribution, recovered
    )
    _assert_close(state.server.reference, reference, tolerance)
    for id in CLIENTS:
        _assert_close(jax.tree.map(lambda leaf, i=id: leaf[i], state.server.models), models[id], tolerance)
    for info, ids in zip(infos, AVAILABLE, strict=True):
        assert sorted(np.asarray(info["cohort_id"].values)[np.asarray(info["cohort_present"].values)]) == ids


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poll_every", [1, 2])
def test_clusters(precision: Any, poll_every: int) -> None:
    """One client trains both cluster models in the same round; its two slots draw batches of their own."""
    dtype, tolerance = precision
    data = tiny_federation(dtype=dtype)
    algorithm = clusters(logistic_regression(dtype), LOCAL, poll_every=poll_every)
    start, state, infos = _run(algorithm, data)
    first = [_numpy(jax.tree.map(lambda leaf, c=c: leaf[c], start.server.models)) for c in range(2)]
    models, tokens, extra = oracle.clusters(
        first, _rows(data, "train"), _rows(data, "valid"), AVAILABLE, _batches(data), RATE, 1.0, poll_every
    )
    for c in range(2):
        _assert_close(jax.tree.map(lambda leaf, c=c: leaf[c], state.server.models), models[c], tolerance)
    _assert_close(state.server.tokens, tokens, tolerance)
    for info, (id, slot), ids in zip(infos, extra, AVAILABLE, strict=True):
        assert (int(info["cohort_id"].values[-1]), int(info["cohort_slot"].values[-1])) == (id, slot)
        assert int(info["cohort_slot"].values[id]) != slot
        np.testing.assert_array_equal(info["cohort_present"].values[:-1], np.isin(CLIENTS, ids))
    asked = [len(ids) if round % poll_every == 0 else 0 for round, ids in enumerate(AVAILABLE)]
    assert [int(info["polled"]) for info in infos] == asked


@pytest.mark.in_turn
def test_control_variates(precision: Any) -> None:
    dtype, tolerance = precision
    data = tiny_federation(dtype=dtype)
    start, state, _ = _run(control_variates(logistic_regression(dtype), LOCAL), data)
    model, control, own = oracle.control_variates(
        _numpy(start.server.model), _rows(data, "train"), AVAILABLE, _batches(data), RATE
    )
    _assert_close(state.server.model, model, tolerance)
    _assert_close(state.server.control, control, tolerance)
    for id in CLIENTS:
        _assert_close(jax.tree.map(lambda leaf, i=id: leaf[i], state.clients), own[id], tolerance)
