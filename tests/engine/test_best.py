"""``simulate(keep_best=True)``: the models of the best evaluation by validation rows."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg, incfl, scaffold
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.loop.history import BestSoFar
from fljax.protocol import Labelled
from fljax.training import Local
from tests.laws.compare import assert_same
from tests.toys.federation import tiny_federation
from tests.toys.runs import Killed, kill_at
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(1.5, batch_size=2, steps=3)
FEDERATION = tiny_federation()
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
ROUNDS = 7


def _plan(build: Any = fedavg, **options: Any) -> engine.Plan:
    own = {"threshold": 0.5} if build is incfl else {}
    return engine.Plan(build, {"task": TASK, "local": LOCAL, "clients_per_round": 3, **own, **options})


def _simulate(plan: Any = None, **arguments: Any) -> Any:
    arguments = {"rounds": ROUNDS, "seeds": (5, 9), "evaluate_every": 1, "keep_best": True} | arguments
    return engine.simulate(plan or _plan(), FEDERATION, **arguments)


def _assert_best(found: Any, expected: Any) -> None:
    assert_same(found.state, expected.state)
    np.testing.assert_array_equal(found.round, expected.round)
    np.testing.assert_array_equal(found.value, expected.value)
    for seed in range(len(expected.round)):
        np.testing.assert_array_equal(found.predict(1, X, seed=seed), expected.predict(1, X, seed=seed))


@pytest.mark.in_turn
@pytest.mark.parametrize("scored", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_each_seed_has_the_state_of_its_best_evaluation(scored: bool) -> None:
    plan = _plan(task=TASK if scored else TASK._replace(score=None))
    result = _simulate(plan)
    metrics, best = result.metrics, result.best
    values = metrics.average_valid_accuracy if scored else metrics.valid_loss.mean("client")
    at = values.argmax("evaluated_round") if scored else values.argmin("evaluated_round")  # the first of equal ones
    np.testing.assert_array_equal(best.round, metrics.evaluated_round[at])
    np.testing.assert_allclose(best.value, values.isel(evaluated_round=at), rtol=1e-6)
    assert len(set(best.round.tolist()) - {ROUNDS}) > 0  # else nothing is tested
    for seed, rounds in enumerate(best.round.tolist()):
        until = _simulate(plan, rounds=rounds, keep_best=False)
        assert until.best is None
        own = jax.tree.map(lambda leaf, at=seed: leaf[at], (best.state, until.state))
        assert_same(*own)
        np.testing.assert_array_equal(best.predict(1, X, seed=seed), until.predict(1, X, seed=seed))
        jax.tree.map(np.testing.assert_array_equal, best.deployed(0, seed=seed), until.deployed(0, seed=seed))
    again = pickle.loads(pickle.dumps(best.state))
    assert_same(again, best.state)


@pytest.mark.in_turn
def test_keeping_them_changes_nothing_else() -> None:
    found, expected = _simulate(), _simulate(keep_best=False)
    assert_same(found.state, expected.state)
    np.testing.assert_array_equal(found.metrics.test_loss, expected.metrics.test_loss)


@pytest.mark.unchecked
def test_ties_are_won_by_the_earliest_and_nan_never_wins() -> None:
    best = BestSoFar(True)
    evaluations = [(np.nan, 0.5, np.nan), (0.3, np.nan, np.nan), (0.3, 0.5, np.inf), (0.2, 0.6, np.nan)]
    for done, values in enumerate(evaluations):
        scores = {"valid_accuracy": Labelled(np.asarray(values, np.float32)[:, None], ("client",))}
        best.evaluated(done, scores, {"w": jnp.full((3, 2), done)})  # type: ignore[arg-type]
    state, rounds, values = best.result({"w": jnp.zeros((3, 2), int)})  # type: ignore[misc, arg-type]
    assert rounds.tolist() == [1, 3, 0]
    np.testing.assert_allclose(values, [0.3, 0.6, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(state["w"], np.asarray([[1, 1], [3, 3], [0, 0]]))  # type: ignore[index]


def test_only_some_evaluations_count() -> None:
    result = _simulate(keep_best={0, 4})
    assert set(result.best.round.tolist()) <= {0, 4}


def test_test_rows_are_never_looked_at() -> None:
    """Other test rows, the same choice."""
    rng = np.random.default_rng(1)
    y = np.asarray(FEDERATION.examples.y).copy()
    test = FEDERATION.clients.test
    real = np.arange(test.index.shape[-1]) < np.asarray(test.size)[:, None]
    y[np.asarray(test.index)[real]] = rng.integers(0, 3, int(real.sum()))
    other = FEDERATION._replace(examples=FEDERATION.examples._replace(y=jnp.asarray(y)))
    arguments: dict[str, Any] = {"rounds": ROUNDS, "seeds": (5, 9), "evaluate_every": 1, "keep_best": True}
    found = engine.simulate(_plan(), other, **arguments)
    expected = _simulate()
    assert not np.array_equal(found.metrics.test_accuracy, expected.metrics.test_accuracy)
    _assert_best(found.best, expected.best)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "build", [fedavg, *(pytest.param(each, marks=pytest.mark.thorough) for each in (scaffold, incfl))]
)
def test_a_resumed_run_has_the_same_best_models(tmp_path: pathlib.Path, build: Any) -> None:
    """Killed after every second evaluation, with checkpoints of every round."""
    plan = _plan(build)
    expected = _simulate(plan)
    settings = Checkpoint(tmp_path / "at", every=0)
    for round in (2, 4, 6):
        with pytest.raises(Killed):
            _simulate(plan, checkpoint=settings, callbacks=[kill_at(round)])
    found = _simulate(plan, checkpoint=settings)
    _assert_best(found.best, expected.best)
    assert_same(found.state, expected.state)
    _assert_best(_simulate(plan, checkpoint=settings).best, expected.best)  # nothing is computed
    with pytest.raises(ValueError, match="keep_best is True there and not set here"):
        _simulate(plan, checkpoint=settings, keep_best=False)


@pytest.mark.in_turn
def test_sweeps_keep_them_too() -> None:
    plans = [_plan(incfl, eps=eps) for eps in (0.1, 1.0)]
    arguments: dict[str, Any] = {"rounds": 4, "seeds": (5, 9), "evaluate_every": 1, "keep_best": True}
    found = engine.sweep(plans, FEDERATION, **arguments)
    for plan, result in zip(plans, found, strict=True):
        expected = engine.simulate(plan, FEDERATION, **arguments)
        np.testing.assert_array_equal(result.best.round, expected.best.round)  # type: ignore[union-attr]
        one, other = result.best.predict(2, X, seed=1), expected.best.predict(2, X, seed=1)  # type: ignore[union-attr]
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_every_evaluation_is_told() -> None:
    told: list[tuple[int, int]] = []
    seen = lambda done, state: told.append((done, int(np.max(state.round))))  # noqa: E731
    _simulate(evaluate_every=3, keep_best=False, on_evaluated=seen)
    assert told == [(0, 0), (3, 3), (6, 6), (7, 7)]
