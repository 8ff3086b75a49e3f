"""Clients that train at other rates, with fewer steps: against runs of other ``Local``, and against NumPy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, fednova, scaffold
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import heterogeneous_training
from fljax.training import Local
from tests.algorithms.oracle_tools import EPOCHS, STEPS, agrees, modes, of_clients
from tests.algorithms.oracle_tools import run as lossy_run
from tests.algorithms.rounds_tools import TASK as LOGISTIC
from tests.laws.cases import ALGORITHMS, POPULATION, TASK, chosen, federation
from tests.oracles import numpy_baselines, numpy_drift
from tests.oracles.numpy_round import added, local_sgd
from tests.scenarios.tools import sent
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

# Without shuffling fewer steps are the first ones; 5 steps are an epoch of the largest client.
HOW = Local(0.2, 2, steps=6, shuffle=False)
# Options under which all that depends on the learning rate and the steps is of ``Local``.
OPTIONS: dict[str, dict[str, Any]] = {
    "ditto": {"personal_learning_rate": None},  # which the factor multiplies, too
    "qffl": {"q": 0.0},  # L is the server's
    "mwfed": {"factor": 1.0},  # efforts ask for no more than the limit
}


@functools.cache
def rounds(name: str, steps: int, wrapped: bool) -> Any:
    """Two rounds as a function of the rate, its factor and a limit of steps: server and clients after each."""
    case = ALGORITHMS[name]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(data: Any, rate: Any, factor: Any, limit: Any) -> Any:
        algorithm = case.build(
            TASK, HOW._replace(learning_rate=rate, steps=steps), **{**case.example, **OPTIONS.get(name, {})}
        )
        if wrapped:
            algorithm = heterogeneous_training(algorithm, rate_factor=factor, steps=limit)

        def one(state: Any, _: Any) -> Any:
            after, _ = one_round(algorithm, data, Layout(POPULATION, 1, POPULATION), state)
            return after, (after.server, after.clients)

        return jax.lax.scan(one, initial_state(algorithm, data, jnp.uint32(1)), length=2)[1]

    return run


@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("fedavg", "fednova", "perfedavg")))
def test_all_alike_is_another_local(name: str) -> None:
    data, ones = by_id(federation()), np.ones(POPULATION, np.float32)
    for steps, factor, limit in ((6, 1.0, 9), (6, 0.7, 6), (5, 1.0, 5), (6, 0.0, 6)):
        expected = rounds(name, steps, False)(data, 0.2 * factor, 1.0, 1)
        found = rounds(name, 6, True)(data, 0.2, factor * ones, limit * np.ones(POPULATION, np.int32))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, expected)


# --- Against NumPy ------------------------------------------------------------------------------------------

FACTORS = {0: 1.0, 1: 0.5, 2: 1.7, 3: 1.0, 4: 0.3}
LIMITS = (3, 2, 1, 5, 2)


def ragged(build: Any, how: Local, **options: Any) -> Any:
    inner = build(LOGISTIC, how, clients_per_round=None, **options)
    limit: Any = {"steps": LIMITS} if how is STEPS else {"epochs": (1, 1, 2, 2, 1)}
    return lossy_run(heterogeneous_training(inner, rate_factor=tuple(FACTORS.values()), **limit))


def shortened(round: Any, how: Local) -> Any:
    """The batches that clients take: the first ones, or those of the first epoch."""

    def few(id: int, client: Any) -> Any:
        count = LIMITS[id] if how is STEPS else len(client.batches) // (2 if id in (0, 1, 4) else 1)
        return client._replace(batches=client.batches[:count])

    return {id: few(id, client) for id, client in round.clients.items()}


@modes
def test_fedavg_on_ragged_clients(how: Local, x64: None) -> None:
    def step(round: Any, model: Any) -> Any:
        found = shortened(round, how)
        moves = [
            numpy_baselines.plus(local_sgd(model, client, round.rate * FACTORS[id]), model, -1)
            for id, client in found.items()
        ]
        return added(model, moves, np.array(numpy_baselines.shares(found, True)))

    agrees(ragged(fedavg, how), step, how, lambda state: state.server.model, 1e-10)


@pytest.mark.parametrize("mu", [0.0, 0.4])
@modes
def test_fednova_on_ragged_clients(how: Local, mu: float, x64: None) -> None:
    def step(round: Any, model: Any) -> Any:
        return numpy_drift.fednova_round(model, shortened(round, how), round.rate, mu=mu, factors=FACTORS)

    agrees(ragged(fednova, how, mu=mu), step, how, lambda state: state.server.model, 1e-10)


@modes
def test_scaffold_on_ragged_clients(how: Local, x64: None) -> None:
    def step(round: Any, state: Any) -> Any:
        return numpy_baselines.scaffold_round(state, shortened(round, how), round.rate, "II", factors=FACTORS)

    def reads(state: Any) -> Any:
        return numpy_baselines.Scaffold(state.server.model, state.server.control, of_clients(state.clients.control))

    agrees(ragged(scaffold, how, option="II"), step, how, reads, 1e-10)


def test_inside_itself_factors_multiply_and_least_numbers_hold() -> None:
    inner = fedavg(TASK, EPOCHS)
    twice = heterogeneous_training(heterogeneous_training(inner, rate_factor=0.5, steps=2), rate_factor=0.4, steps=9)
    once = heterogeneous_training(inner, rate_factor=0.2, steps=2, epochs=((2,) * 5, (1,) * 5))
    for found, expected in zip(*(jax.tree.leaves(sent(each, federation())) for each in (twice, once)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
