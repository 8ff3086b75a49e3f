"""Attackers train on the rows that NumPy makes, and success is counted from the models that clients would use."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import models
from fljax.algorithms import ditto, fedavg, scaffold
from fljax.engine import Plan, sweep
from fljax.engine.rounds.states import by_id
from fljax.protocol import Examples, Federation, Rows, Subset
from fljax.scenarios import backdoor
from tests.scenarios.tools import LOCAL, POPULATION, TASK, sent
from tests.toys.federation import TEST, TRAIN, client_rows

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRIGGER: Any = {"target": 1, "size": 2, "value": 3.0}
WHO: Any = np.array([0, 1, 0, 0, 1], bool)


def everybody(build: Any = fedavg, **options: Any) -> Any:
    return build(TASK, LOCAL, clients_per_round=None, **options)


def with_rows(federation: Federation, change: Any) -> Federation:
    """The federation with ``change(x, y)`` as its examples, which it changes in place."""
    x, y = map(np.array, federation.examples[:2])
    change(x, y)
    return federation._replace(examples=Examples(jnp.asarray(x), jnp.asarray(y)))


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "share"), [(fedavg, 0.5), (scaffold, 1.0)])
def test_attackers_train_on_the_changed_rows_and_scale_their_update(build: Any, share: float, federation: Any) -> None:
    state, found = sent(backdoor(everybody(build), scale=-2.5, share=share, who=WHO, **TRIGGER), federation)
    data, changed = by_id(federation), 0

    def poison(x: np.ndarray, y: np.ndarray) -> None:
        nonlocal changed
        for id in np.flatnonzero(WHO):
            for row in np.asarray(data.clients.train.index)[id, : TRAIN[id]]:
                if jax.random.uniform(jax.random.fold_in(state.clients.rows[id], row)) < share:
                    x[row, -2:], y[row], changed = 3.0, 1, changed + 1

    _, expected = sent(everybody(build), with_rows(federation, poison))
    assert 0 < changed <= 3 + 4
    for one, other in zip(jax.tree.leaves(found.update), jax.tree.leaves(expected.update), strict=True):
        factor = np.where(WHO, -2.5, 1.0).reshape(-1, *(1,) * (one.ndim - 1))
        np.testing.assert_allclose(one, factor * other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "places", "value"),
    [
        ((4, 5), np.uint8, np.s_[:, -2:, -2:], 255),
        ((4, 5, 3), np.uint8, np.s_[:, -2:, -2:], 255),
        ((4, 5, 3), np.float32, np.s_[:, -2:, -2:], 3.0),
        ((7,), np.float32, np.s_[:, -2:], 3.0),
        ((7,), np.int32, np.s_[:, -2:], 3),
        ((1,), np.float32, np.s_[:], 3.0),
        ((2, 3, 4, 5), np.float32, np.s_[..., -2:], 3.0),
    ],
)
def test_the_trigger(shape: tuple[int, ...], dtype: Any, places: Any, value: float) -> None:
    x = np.arange(3 * np.prod(shape)).reshape(3, *shape).astype(dtype)
    rows = Subset(Examples(jnp.asarray(x), jnp.zeros(3, jnp.int32)), Rows(jnp.arange(3), jnp.int32(3)))
    probe = backdoor(everybody(), **TRIGGER).probes[0]
    expected = x[[2, 0]]
    expected[places] = value
    changed = probe.rows(rows).examples
    np.testing.assert_array_equal(changed.x[jnp.array([2, 0])], expected)
    assert (changed.x.shape, changed.x.ndim, changed.x.dtype) == (x.shape, x.ndim, x.dtype)
    np.testing.assert_array_equal(changed.y, rows.examples.y)


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "none"), [(scaffold, {"fraction": 0.0}), (ditto, {"who": np.zeros(POPULATION)})])
def test_without_attackers_a_run_is_that_of_the_algorithm(build: Any, none: Any, federation: Any) -> None:
    """The models have the same bits; another program judges them."""
    inner = everybody(build)
    plain, found = (
        fljax.simulate(algorithm, federation, rounds=2)
        for algorithm in (inner, backdoor(inner, scale=9.0, **none, **TRIGGER))
    )
    for id in (0, 3):
        jax.tree.map(np.testing.assert_array_equal, found.deployed(id), plain.deployed(id))
    for name in plain.metrics:
        if not str(name).startswith(("seconds_", "execution_")):
            np.testing.assert_allclose(found.metrics[name], plain.metrics[name], rtol=1e-6)


def of_client(model: Any, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy on the rows, and success on those of other classes once they have the trigger."""
    answers = lambda x: (x @ np.asarray(model.weight) + np.asarray(model.bias)).argmax(axis=1)  # noqa: E731
    accuracy, x, others = np.mean(answers(x) == y), x.copy(), y != 1
    x[:, -2:] = 3.0
    return float(accuracy), np.mean(answers(x)[others] == 1) if others.any() else np.nan


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "execution"), [(fedavg, fljax.Execution(1, examples="host")), (ditto, None)])
def test_success_is_counted_from_the_deployed_models(build: Any, execution: Any, federation: Any) -> None:
    of_2 = by_id(federation).clients.test.index[2, : TEST[2]]
    data = with_rows(federation, lambda x, y: np.put(y, of_2, TRIGGER["target"]))
    result = fljax.simulate(backdoor(everybody(build), who=WHO, **TRIGGER), data, rounds=3, execution=execution)
    accuracy, success = (result.metrics[name][0, -1].values for name in ("test_accuracy", "backdoor_success"))
    for id in range(POPULATION):
        own = of_client(result.deployed(id), *client_rows(data, id, "test"))
        expected = (np.nan, np.nan) if WHO[id] else own
        np.testing.assert_allclose((accuracy[id], success[id]), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(success), WHO | (np.arange(POPULATION) == 2))
    np.testing.assert_allclose(result.metrics["average_backdoor_success"][0, -1], np.nanmean(success), rtol=1e-6)
    assert result.metrics["backdoor_success"].dims == ("seed", "evaluated_round", "client")
    assert np.isfinite(result.metrics["unseen_average_backdoor_success"]).all()


@pytest.mark.thorough
def test_success_rises_with_the_scale_of_one_attacker_in_ten() -> None:
    blobs = fljax.data.federate(fljax.data.load("blobs"), "iid", clients=10, seed=0)
    task = models.logistic_regression(blobs.examples.x.shape[1:], classes=10)
    inner = fedavg(task, fljax.Local(0.1, 16, steps=10), clients_per_round=None)
    build = lambda scale: backdoor(inner, target=3, size=2, value=3.0, scale=scale, who=np.arange(10) == 0)  # noqa: E731
    # An attacker that sends nothing; one that is as loud as others; model replacement.
    metrics = [run.metrics for run in sweep([Plan(build, {"scale": float(s)}) for s in (0, 1, 10)], blobs, rounds=5)]
    none, quiet, loud = (float(found["average_backdoor_success"][0, -1]) for found in metrics)
    assert none < 0.1 > quiet < 0.5 < loud
    assert all(found["average_accuracy"][0, -1] > 0.75 for found in metrics)
