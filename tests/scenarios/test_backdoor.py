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
from fljax.protocol import Examples, Rows, Subset
from fljax.scenarios import backdoor
from tests.scenarios.tools import POPULATION, everybody, sent
from tests.toys.federation import TEST, TRAIN, client_rows

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRIGGER: Any = {"target": 1, "size": 2, "value": 3.0}
WHO: Any = np.array([0, 1, 0, 0, 1], bool)


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "share"), [(fedavg, 0.5), (scaffold, 1.0)])
def test_attackers_train_on_the_changed_rows_and_scale_their_update(build: Any, share: float, federation: Any) -> None:
    state, found = sent(backdoor(everybody(build), scale=-2.5, share=share, who=WHO, **TRIGGER), federation)
    x, y = map(np.array, federation.examples[:2])
    own = by_id(federation).clients.train.index
    rows = [(state.clients.rows[id], row) for id in (1, 4) for row in own[id, : TRAIN[id]]]
    chosen = [row for key, row in rows if jax.random.uniform(jax.random.fold_in(key, row)) < share]
    x[chosen, -2:], y[chosen] = 3.0, 1
    assert 0 < len(chosen) <= TRAIN[1] + TRAIN[4]
    _, expected = sent(everybody(build), federation._replace(examples=Examples(jnp.asarray(x), jnp.asarray(y))))
    for one, other in zip(jax.tree.leaves(found.update), jax.tree.leaves(expected.update), strict=True):
        factor = np.where(WHO, -2.5, 1.0).reshape(-1, *(1,) * (one.ndim - 1))
        np.testing.assert_allclose(one, factor * other, rtol=1e-5, atol=1e-6)


IMAGE, VECTOR = np.s_[:, -2:, -2:], np.s_[..., -2:]
SHAPES = {"gray": ((4, 5), "uint8", IMAGE, 255), "colour": ((4, 5, 3), "float32", IMAGE, 3.0)}
SHAPES |= {"words": ((7,), "int32", VECTOR, 3), "one": ((1,), "float32", VECTOR, 3.0)}


@pytest.mark.parametrize(("shape", "dtype", "places", "value"), SHAPES.values(), ids=SHAPES)
def test_the_trigger(shape: tuple[int, ...], dtype: str, places: Any, value: float) -> None:
    x = np.arange(3 * np.prod(shape)).reshape(3, *shape).astype(dtype)
    rows = Subset(Examples(jnp.asarray(x), jnp.zeros(3, jnp.int32)), Rows(jnp.arange(3), jnp.int32(3)))
    changed = backdoor(everybody(), **TRIGGER).probes[0].rows(rows).examples
    assert (changed.x.shape, changed.x.ndim, changed.x.dtype) == (x.shape, x.ndim, x.dtype)
    x[places] = value
    np.testing.assert_array_equal(changed.x[jnp.array([2, 0])], x[[2, 0]])


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "none"), [(scaffold, {"fraction": 0.0}), (ditto, {"who": np.zeros(POPULATION)})])
def test_without_attackers_a_run_is_that_of_the_algorithm(build: Any, none: Any, federation: Any) -> None:
    """The models have the same bits; another program judges them."""
    inner = everybody(build)
    attacked = backdoor(inner, scale=9.0, **none, **TRIGGER)
    plain, found = (fljax.simulate(each, federation, rounds=2) for each in (inner, attacked))
    jax.tree.map(np.testing.assert_array_equal, found.deployed(3), plain.deployed(3))
    for name in plain.metrics:
        if not str(name).startswith(("seconds_", "execution_")):
            np.testing.assert_allclose(found.metrics[name], plain.metrics[name], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "execution"), [(fedavg, fljax.Execution(1, examples="host")), (ditto, None)])
def test_success_is_counted_from_the_deployed_models(build: Any, execution: Any, federation: Any) -> None:
    y = np.array(federation.examples.y)
    y[by_id(federation).clients.test.index[2, : TEST[2]]] = 1  # no row of client 2 counts
    data = federation._replace(examples=federation.examples._replace(y=jnp.asarray(y)))
    result = fljax.simulate(backdoor(everybody(build), who=WHO, **TRIGGER), data, rounds=3, execution=execution)
    accuracy, success = (result.metrics[name][0, -1].values for name in ("test_accuracy", "backdoor_success"))
    for id in (0, 2, 3):
        (x, y), (weight, bias) = client_rows(data, id, "test"), map(np.asarray, result.deployed(id))
        np.testing.assert_allclose(accuracy[id], np.mean((x @ weight + bias).argmax(axis=1) == y), rtol=1e-6)
        x[:, -2:], others = 3.0, y != 1
        hits = (x @ weight + bias).argmax(axis=1)[others] == 1
        np.testing.assert_allclose(success[id], np.mean(hits) if others.any() else np.nan, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(success), WHO | (np.arange(POPULATION) == 2))
    np.testing.assert_allclose(result.metrics["average_backdoor_success"][0, -1], np.nanmean(success), rtol=1e-6)
    assert np.isfinite(result.metrics["unseen_average_backdoor_success"]).all()


@pytest.mark.thorough
def test_success_rises_with_the_scale_of_one_attacker_in_ten() -> None:
    blobs = fljax.data.federate(fljax.data.load("blobs"), "iid", clients=10, seed=0)
    inner = fedavg(models.logistic_regression((4,), classes=10), fljax.Local(0.1, 16, steps=10), clients_per_round=None)
    build = lambda scale: backdoor(inner, target=3, size=2, value=3.0, scale=scale, who=np.arange(10) == 0)  # noqa: E731
    # An attacker that sends nothing; one that is as loud as others; model replacement.
    results = sweep([Plan(build, {"scale": scale}) for scale in (0.0, 1.0, 10.0)], blobs, rounds=5)
    none, quiet, loud = (float(each.metrics["average_backdoor_success"][0, -1]) for each in results)
    assert none < 0.1 > quiet < 0.5 < loud
    assert all(each.metrics["average_accuracy"][0, -1] > 0.75 for each in results)
