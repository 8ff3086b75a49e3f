"""The server's optimizer, in every algorithm that has one."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import algorithms
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, initial_state
from fljax.training import Local, OptimizerSettings
from tests.precision import enable_x64
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

NAMES = [
    name
    for name, entry in algorithms.REGISTRY.items()
    if {"server_optimizer", "server_lr"} <= inspect.signature(entry.build).parameters.keys()
]


def test_every_algorithm_with_one_model_has_one():
    others = {"standalone", "iafl", "cgsv", "cgsv_iafl", "rank", "lg_fedavg", "fedbn", "fedfomo", "fedproto"}
    others |= {"feddyn", "fedper", "fedrep", "fedbabu", "ipfl", "ifca", "fedsoft", "fedem"}
    others |= {"learnt"}  # its rate is in theta
    assert set(NAMES) == set(algorithms.REGISTRY) - others


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_adam_at_the_server(name):
    """Its first step is one of length server_lr in every entry that moves; a round without anybody moves nothing."""
    task, data = logistic_regression(), by_id(tiny_federation())
    entry = algorithms.REGISTRY[name]
    algorithm = entry.build(
        task, Local(0.2, 2, steps=2), **entry.example, server_optimizer="adam", server_lr=jnp.asarray(0.25)
    )
    start = initial_state(algorithm, data, jnp.uint32(0))
    step = jax.jit(lambda state, available: one_round(algorithm, data, Layout(5, 1, 5), state, available=available)[0])
    first = step(start, jnp.ones(5, bool))
    moved = np.concatenate(
        [np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (first.server.model, start.server.model)), strict=True)]
    )
    np.testing.assert_allclose(np.abs(moved), 0.25, rtol=1e-2)
    empty = step(first, jnp.zeros(5, bool))
    jax.tree.map(np.testing.assert_array_equal, empty.server.model, first.server.model)
    jax.tree.map(np.testing.assert_array_equal, empty.server.optimizer, first.server.optimizer)


@pytest.mark.thorough
def test_ways_to_name_one():
    task, data = logistic_regression(), by_id(tiny_federation())

    def model(chosen):
        algorithm = algorithms.fedavg(task, Local(0.2, 2, steps=2), server_lr=0.5, server_optimizer=chosen)
        state = initial_state(algorithm, data, jnp.uint32(0))
        for _ in range(2):
            state, _ = one_round(algorithm, data, Layout(5, 1, 5), state)
        return state.server.model

    plain, heavy = model("sgd"), model(OptimizerSettings("sgd", (("momentum", 0.9),)))
    jax.tree.map(np.testing.assert_array_equal, plain, model(optax.sgd))
    jax.tree.map(np.testing.assert_array_equal, heavy, model(lambda rate: optax.sgd(rate, momentum=0.9)))
    assert np.abs(plain.weight - heavy.weight).max() > 1e-3


@pytest.mark.thorough
def test_numbers_in_double_precision_leave_a_single_model_single():
    with enable_x64(True):
        task, data = logistic_regression(jnp.float32), by_id(tiny_federation())
        chosen = OptimizerSettings("sgd", (("momentum", jnp.asarray(0.9, jnp.float64)),))
        rate: Any = jnp.asarray(0.5, jnp.float64)
        algorithm = algorithms.fedavg(task, Local(0.2, 2, steps=2), server_lr=rate, server_optimizer=chosen)
        start = initial_state(algorithm, data, jnp.uint32(0))
        after, _ = one_round(algorithm, data, Layout(5, 1, 5), start)
        dtypes = lambda server: jax.tree.map(lambda leaf: leaf.dtype, server)  # noqa: E731
        assert dtypes(after.server) == dtypes(start.server)


@pytest.mark.thorough
def test_an_optimizer_is_given_steps_of_the_models_own_dtype():
    """Sums are in single precision; novograd refuses gradients of another dtype than the parameters."""
    task, data = logistic_regression(jnp.bfloat16), by_id(tiny_federation())
    algorithm = algorithms.fedavg(task, Local(0.2, 2, steps=1), server_optimizer="novograd", server_lr=0.1)
    start = initial_state(algorithm, data, jnp.uint32(0))
    after, _ = one_round(algorithm, data, Layout(5, 1, 5), start)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.server.model)} == {jnp.dtype(jnp.bfloat16)}
