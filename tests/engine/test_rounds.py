"""Rounds as a pure function: the same run as ``simulate``, and gradients through it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, scenarios
from fljax.training import Local
from tests.precision import enable_x64
from tests.toys.federation import spoil_client, tiny_federation
from tests.toys.task import logistic_regression

TASK = logistic_regression()
LOCAL = Local(0.2, 2, epochs=1)
RHO = jnp.asarray((0.9, 0.7, 1.1, 0.8, 1.0))


@pytest.mark.in_turn
def test_it_is_the_run_of_simulate(federation: Any) -> None:
    algorithm = algorithms.incfl(TASK, LOCAL, threshold=RHO, clients_per_round=3)
    state, records = jax.jit(functools.partial(fljax.rollout, algorithm, rounds=3))(federation, seed=1)
    result = fljax.simulate(algorithm, federation, rounds=3, evaluate_every=3, seeds=(1,))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other[0], rtol=1e-5, atol=1e-6), state, result.state
    )
    assert set(records) <= {str(name) for name in result.records}
    np.testing.assert_array_equal(records["cohort_id"], result.records["cohort_id"].values[0])
    np.testing.assert_allclose(records["loss"], result.records["loss"].values[0], rtol=1e-5)
    found = jax.jit(functools.partial(fljax.evaluate_clients, algorithm, clients=2))(federation, state)
    last = result.metrics.isel(seed=0, evaluated_round=-1)
    for name in ("test_loss", "test_accuracy", "global_test_loss"):
        np.testing.assert_allclose(found[name], last[name].values, rtol=1e-5)


@pytest.mark.thorough
def test_it_goes_on_from_a_state(federation: Any) -> None:
    algorithm = algorithms.scaffold(TASK, Local(0.2, 2, steps=2), clients_per_round=3)
    run = jax.jit(functools.partial(fljax.rollout, algorithm, federation, clients=2), static_argnames="rounds")
    half, _ = run(rounds=2)
    whole, _ = run(rounds=4)
    on, records = run(rounds=2, initial=half)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), on, whole)
    assert records["cohort_id"].shape == (2, 3)
    none, records = run(rounds=0)
    assert int(none.round) == 0
    assert records["cohort_id"].shape == (0, 3)


@pytest.mark.thorough
def test_a_state_of_several_runs_is_refused(federation: Any) -> None:
    algorithm = algorithms.fedavg(TASK, LOCAL)
    state = fljax.simulate(algorithm, federation, rounds=0, seeds=(0, 1)).state
    with pytest.raises(ValueError, match="expected the state of one run, got one of 2 runs"):
        fljax.rollout(algorithm, federation, rounds=1, initial=state)
    with pytest.raises(ValueError, match="expected the state of one run, got one of 2 runs"):
        fljax.evaluate_clients(algorithm, federation, state)


def slope(federation: Any, algorithm: Any, **how: Any) -> Any:
    """The derivative of the square of the final model by the clients' learning rate."""

    def loss(rate: Any) -> Any:
        state, _ = fljax.rollout(algorithm(LOCAL._replace(learning_rate=rate)), federation, rounds=2, **how)
        return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(state.server.model))

    return jax.jit(jax.grad(loss))(0.2)


@pytest.mark.thorough
def test_gradients_do_not_depend_on_the_layout() -> None:
    with enable_x64(True):
        data, task = tiny_federation(dtype=np.float64), logistic_regression(jnp.float64)
        algorithm = lambda local: algorithms.incfl(task, local, threshold=RHO.astype(jnp.float64))  # noqa: E731
        layouts: Any = ({}, {"clients": 2}, {"clients": 1, "rematerialise": True}, {"rematerialise": True})
        found = [slope(data, algorithm, **how) for how in layouts]
        np.testing.assert_allclose(found, found[0], rtol=1e-10)
        assert abs(found[0]) > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [None, 1])
def test_nan_of_absent_clients_reaches_no_gradient(federation: Any, clients: int | None) -> None:
    """Client 1 never answers, and all that it has is NaN."""
    trace = np.ones((1, 5), bool)
    trace[0, 1] = False

    def algorithm(local: Local) -> Any:
        return scenarios.availability(algorithms.fedavg(TASK, local, clients_per_round=None), trace=trace)

    clean = slope(federation, algorithm, clients=clients)
    assert np.isfinite(clean)
    np.testing.assert_array_equal(clean, slope(spoil_client(federation, 1), algorithm, clients=clients))


@pytest.mark.thorough
@pytest.mark.parametrize("local", [Local(0.1, 4, steps=5), Local(0.1, 4, epochs=2)], ids=["steps", "epochs"])
def test_memory_of_a_gradient_is_that_of_one_client(local: Local) -> None:
    """With rematerialised clients one after another, ten times as many clients hold little more."""

    def held(clients: int) -> int:
        rng = np.random.default_rng(0)
        data = fljax.data.from_arrays(
            rng.normal(size=(10 * clients, 64)).astype(np.float32),
            rng.integers(0, 3, 10 * clients),
            np.repeat(np.arange(clients), 10),
            train_fraction=0.8,
        )
        task = fljax.models.mlp((64,), 3, hidden=(64,))

        def loss(rate: Any) -> Any:
            algorithm = algorithms.fedavg(task, local._replace(learning_rate=rate), clients_per_round=None)
            state, _ = fljax.rollout(algorithm, data, rounds=2, clients=1, rematerialise=True)
            return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(state.server.model))

        compiled = jax.jit(jax.grad(loss)).lower(0.1).compile()
        analysis: Any = compiled.memory_analysis()
        return analysis.temp_size_in_bytes

    few, many = held(20), held(200)
    assert many < 2 * few, (few, many)
