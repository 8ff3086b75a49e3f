"""Debug mode: the results of any other mode, on numbers, and sentences that say where an algorithm failed."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import AlgorithmError, algorithms, engine, scenarios, training
from fljax.algorithms import fedavg
from fljax.engine import Execution
from fljax.protocol import Algorithm
from fljax.training import Local
from tests.laws.compare import assert_close
from tests.toys.federation import spoil_client, tiny_federation
from tests.toys.runs import assert_close_results
from tests.toys.task import logistic_regression

# Debug mode compiles every operation of an algorithm by itself: tests of one algorithm share these programs.
pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation"), pytest.mark.by_case]
TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
DEBUG = Execution(clients="debug")
HERE = pathlib.Path(__file__)


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """A switch of JAX for the whole process."""
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, False)


def _line(mark: str) -> str:
    lines = HERE.read_text(encoding="utf-8").splitlines()
    number = next(place for place, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return f"{HERE.name}:{number}"


def _message(error: BaseException) -> str:
    return str(error).replace(f"{HERE.parent}/", "").replace("tests/engine/", "")


def _built(name: str, scenario: str | None = None, local: Local = LOCAL) -> Algorithm:
    entry = algorithms.REGISTRY[name]
    found = entry.build(TASK, local, **entry.example)
    if scenario is None:
        return found
    return scenarios.REGISTRY[scenario].build(found, **scenarios.REGISTRY[scenario].example)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("fedavg", None),
        ("incfl", None),
        ("scaffold", None),
        pytest.param("ipfl", None, marks=pytest.mark.thorough),
        pytest.param("fedavg", "byzantine", marks=pytest.mark.thorough),
        ("incfl", "dropout"),
    ],
)
def test_results_are_those_of_compiled_programs(name: str, scenario: str | None) -> None:
    algorithm, federation = _built(name, scenario), tiny_federation()
    usual = engine.simulate(algorithm, federation, rounds=2, evaluate_every=1)
    found = engine.simulate(algorithm, federation, rounds=2, evaluate_every=1, execution=DEBUG)
    assert_close_results(usual, found)
    assert int(found.metrics["execution_clients"]) == int(found.metrics["execution_devices"]) == 1
    model = found.deployed(0)
    assert_close(usual.deployed(0), model)


@pytest.mark.thorough
def test_epochs_seeds_and_a_cohort() -> None:
    """Clients of different sizes take different numbers of steps, and some are left out."""
    algorithm = fedavg(TASK, LOCAL._replace(steps=None, epochs=1), clients_per_round=3)
    usual = engine.simulate(algorithm, tiny_federation(), rounds=2, seeds=(3, 4))
    assert_close_results(usual, engine.simulate(algorithm, tiny_federation(), rounds=2, seeds=(3, 4), execution=DEBUG))


@pytest.mark.thorough
def test_a_sweep_and_standalone_models() -> None:
    federation = tiny_federation()
    plans = [
        engine.Plan(lambda task, rate: fedavg(task, LOCAL._replace(learning_rate=rate)), {"task": TASK, "rate": r})
        for r in (0.1, 0.2)
    ]
    plans = [engine.Plan(plans[0].build, plan.arguments) for plan in plans]
    pairs = zip(
        engine.sweep(plans, federation, rounds=2),
        engine.sweep(plans, federation, rounds=2, execution=DEBUG),
        strict=True,
    )
    for usual, found in pairs:
        assert_close_results(usual, found)
    alone = engine.standalone(TASK, federation, LOCAL), engine.standalone(TASK, federation, LOCAL, execution=DEBUG)
    assert_close(*alone)


@pytest.mark.thorough
def test_a_users_code_meets_numbers_and_python_decides_on_them() -> None:
    usual, met = fedavg(TASK, LOCAL), []

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        met.append((int(seat.round), int(seat.id), float(jnp.sum(down.weight))))
        return usual.train(key, seat, down, client, data)

    def loss(params: Any, x: Any, y: Any, position: Any, key: Any) -> Any:
        met.append(int(position[0]))
        return TASK.loss(TASK.logits(params, x, key), y)

    algorithm = usual._replace(train=train)
    engine.simulate(algorithm, tiny_federation(), rounds=2, execution=DEBUG)
    # In the order of the cohort, which is drawn.
    assert sorted(each[:2] for each in met) == [(round, client) for round in range(2) for client in range(5)]
    assert [round for round, *_ in met] == [0] * 5 + [1] * 5

    met.clear()
    own = usual._replace(
        train=lambda key, seat, down, client, data: usual.train(
            key, seat, training.train(key, down, data.train, task=TASK, local=LOCAL, loss=loss).params, client, data
        )
    )
    engine.simulate(own, tiny_federation(), rounds=1, execution=DEBUG)
    assert len(met) == 5 * 2  # clients x steps


def _fails_late(epochs: bool = False) -> Algorithm:
    """FedAvg whose loss raises in the second step of client 3 in round 1."""
    local = LOCAL._replace(steps=None, epochs=1) if epochs else LOCAL
    usual, steps = fedavg(TASK, local), []

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        steps.clear()

        def loss(params: Any, x: Any, y: Any, position: Any, key: Any) -> Any:
            steps.append(0)
            if seat.id == 3 and seat.round == 1 and len(steps) == 2:
                raise KeyError("nope")  # in a step
            return TASK.loss(TASK.logits(params, x, key), y)

        training.train(key, down, data.train, task=TASK, local=local, loss=loss)
        return usual.train(key, seat, down, client, data)

    return usual._replace(train=train)


@pytest.mark.parametrize("epochs", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_sentence_names_client_round_seed_step_and_line(epochs: bool) -> None:
    with pytest.raises(AlgorithmError) as caught:
        engine.simulate(_fails_late(epochs), tiny_federation(), rounds=3, seeds=(7,), execution=DEBUG)
    words = "train of client 3 (round 1, seed 7, local step 1) raised KeyError: 'nope'"
    assert _message(caught.value) == f"{words} ({_line('in a step')})"
    assert isinstance(caught.value.__cause__, KeyError)
    error = caught.value
    assert (error.function, error.client, error.round, error.seed, error.step) == ("train", 3, 1, 7, 1)


@pytest.mark.thorough
def test_jax_disable_jit_does_the_same() -> None:
    algorithm, federation = fedavg(TASK, LOCAL), tiny_federation()
    usual = engine.simulate(algorithm, federation, rounds=2)
    with jax.disable_jit():
        assert_close_results(usual, engine.simulate(algorithm, federation, rounds=2))
        assert_close(
            engine.rollout(algorithm, federation, rounds=2)[0].server, jax.tree.map(lambda x: x[0], usual.state.server)
        )
    alone = engine.standalone(TASK, federation, LOCAL)
    with switched_on("jax_disable_jit"):
        assert_close(alone, engine.standalone(TASK, federation, LOCAL))
        assert engine.estimate(algorithm, federation, engine.Schedule(1)).peak is not None
        with pytest.raises(
            AlgorithmError, match=r"^train of client 3 \(round 1, seed 0, local step 1\) raised KeyError"
        ):
            engine.simulate(_fails_late(), federation, rounds=2)


def test_an_unseen_client_is_named() -> None:
    usual = fedavg(TASK, LOCAL)

    def personal(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        if not seat.known and data.test.rows.size == 5:
            raise KeyError("nope")
        return down

    with pytest.raises(
        AlgorithmError, match=r"^personal of unseen client 1 \(round 0, seed 0\) raised KeyError: 'nope'"
    ):
        engine.simulate(usual._replace(personal=personal), tiny_federation(), rounds=1, execution=DEBUG)


@pytest.mark.quick
def test_an_error_in_an_evaluation_is_named() -> None:
    def score(logits: Any, y: Any) -> Any:
        if logits.shape[0] and float(jnp.sum(logits)) > -1e9:
            raise KeyError("nope")
        return y

    with pytest.raises(
        AlgorithmError, match=r"^the score score of client 0 \(round 0, seed 0\) raised KeyError: 'nope'"
    ):
        engine.simulate(fedavg(TASK._replace(score=score), LOCAL), tiny_federation(), rounds=1, execution=DEBUG)


# jax_debug_nans


def _gives_nan(client: int) -> Algorithm:
    """FedAvg in which a client's loss has the logarithm of a negative number from round 1 on."""
    usual = fedavg(TASK, LOCAL)

    def train(key: Any, seat: Any, down: Any, own: Any, data: Any) -> Any:
        def loss(params: Any, x: Any, y: Any, position: Any, key: Any) -> Any:
            wrong = (seat.id == client) & (seat.round == 1)
            scale = jnp.log(jnp.where(wrong, -1.0, jnp.e))  # gives NaN
            return TASK.loss(TASK.logits(params, x, key), y) * scale

        trained = training.train(key, down, data.train, task=TASK, local=LOCAL, loss=loss)
        up, own = usual.train(key, seat, down, own, data)
        return up._replace(update=jax.tree.map(jnp.subtract, trained.params, down)), own

    return usual._replace(train=train)


@pytest.mark.thorough
@pytest.mark.parametrize("execution", [None, DEBUG])
@pytest.mark.parametrize("seeds", [(4,), pytest.param((4, 6), marks=pytest.mark.thorough)])
def test_jax_debug_nans_names_where_nan_appears(execution: Execution | None, seeds: tuple[int, ...]) -> None:
    federation = tiny_federation()
    with switched_on("jax_debug_nans"), pytest.raises(AlgorithmError) as caught:
        engine.simulate(_gives_nan(2), federation, rounds=3, seeds=seeds, execution=execution)
    words = "train of client 2 (round 1, seed 4, local step 0) raised FloatingPointError: invalid value (nan)"
    assert _message(caught.value) == f"{words} encountered in log ({_line('gives NaN')})"
    assert isinstance(caught.value.__cause__, FloatingPointError)
    # Without the switch the run is frozen, as before.
    assert engine.simulate(_gives_nan(2), federation, rounds=3).diverged == ((0, 1),)


@pytest.mark.parametrize(
    "name", ["incfl", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("scaffold", "ipfl"))]
)
def test_nan_for_what_is_unknown_does_not_stop_a_sound_run(name: str) -> None:
    """Records of clients that are absent, and metrics of clients without rows, are NaN by intention."""
    federation = tiny_federation()
    empty = federation.clients.test._replace(size=federation.clients.test.size.at[1].set(0))
    federation = federation._replace(clients=federation.clients._replace(test=empty))
    algorithm = _built(name, "dropout")
    usual = engine.simulate(algorithm, federation, rounds=2)
    assert np.isnan(usual.metrics["test_loss"]).any()
    with switched_on("jax_debug_nans"):
        assert_close_results(usual, engine.simulate(algorithm, federation, rounds=2))
        assert_close_results(usual, engine.simulate(algorithm, federation, rounds=2, execution=DEBUG))


@pytest.mark.thorough
def test_infinite_values_are_no_nan() -> None:
    usual = fedavg(TASK, LOCAL)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        up, client = usual.train(key, seat, down, client, data)
        return up._replace(update=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.inf), up.update)), client

    with switched_on("jax_debug_nans"):
        assert engine.simulate(usual._replace(train=train), tiny_federation(), rounds=2).diverged == ((0, 0),)


@pytest.mark.thorough
def test_nan_in_data_is_found_by_evaluation_and_standalone_training() -> None:
    federation = spoil_client(tiny_federation(), 3)
    with switched_on("jax_debug_nans"):
        with pytest.raises(
            AlgorithmError, match=r"^evaluation of client 3 \(round 0, seed 0\) raised FloatingPointError"
        ):
            engine.simulate(fedavg(TASK, LOCAL), federation, rounds=1)
        with pytest.raises(
            AlgorithmError, match=r"^standalone training of client 3 \(seed 0, local step 0\) raised Floating"
        ):
            engine.standalone(TASK, federation, LOCAL)


def test_nan_in_the_first_model_is_found() -> None:
    task = TASK._replace(init=lambda key: jax.tree.map(lambda leaf: jnp.log(leaf - 100), TASK.init(key)))
    with switched_on("jax_debug_nans"), pytest.raises(AlgorithmError, match=r"^init_server \(seed 0\) raised Floating"):
        engine.simulate(fedavg(task, LOCAL), tiny_federation(), rounds=1)
