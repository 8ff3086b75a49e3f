"""Metrics that are computed only if they are asked for, against softmax regression in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import aggregators, scenarios
from fljax.algorithms import fedavg
from fljax.data import from_arrays
from fljax.engine import Plan, simulate, standalone, sweep
from fljax.metrics.registry import ON_REQUEST, needs_of
from fljax.training import Local
from tests.oracles.numpy_round import Params, gradient, loss
from tests.toys.federation import client_rows, tiny_federation
from tests.toys.models_per_client import models_per_client
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS = 2
TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=STEPS)
DATA = tiny_federation()
OF_LOSSES = (
    "objective",
    "objective_gradient_norm",
    "valid_global_model_appeal",
    "valid_incentivised_participation_rate",
)
PLAN = Plan(fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": 3})


@pytest.fixture(scope="module")
def reference() -> Any:
    return standalone(TASK, DATA, LOCAL, valid=True)


@pytest.fixture(scope="module")
def result(reference: Any) -> Any:
    return simulate(PLAN, DATA, rounds=2, reference=reference, extra_metrics=(*OF_LOSSES, "gradient_steps"))


def global_model(result: Any) -> Params:
    return {name: np.asarray(leaf, float) for name, leaf in zip("wb", result.deployed(0), strict=True)}


@pytest.mark.in_turn
def test_the_objective_and_its_gradient(result: Any, reference: Any) -> None:
    params, last = global_model(result), result.metrics.isel(seed=0, evaluated_round=-1)
    rho = np.asarray(reference.threshold[0], float)
    rows = [client_rows(DATA, client) for client in range(5)]
    losses = np.array([loss(params, *of_client) for of_client in rows])
    np.testing.assert_allclose(last["global_train_loss"], losses, rtol=1e-5)
    share = 1 / (1 + np.exp(rho - losses))
    np.testing.assert_allclose(last["objective"], share.mean(), rtol=1e-5)
    slopes = [gradient(params, *of_client) for of_client in rows]
    total = [sum(q * slope[leaf] for q, slope in zip(share * (1 - share), slopes, strict=True)) / 5 for leaf in params]
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in total))
    np.testing.assert_allclose(last["objective_gradient_norm"], norm, rtol=1e-5)
    weights = np.asarray(aggregators.incfl_weights(jnp.asarray(losses - rho, jnp.float32)))
    np.testing.assert_allclose(weights, share * (1 - share), rtol=1e-5)


@pytest.mark.in_turn
def test_validation_rows(result: Any, reference: Any) -> None:
    last = result.metrics.isel(seed=0, evaluated_round=-1)
    params = global_model(result)
    valid = np.array([loss(params, *client_rows(DATA, client, "valid")) for client in range(5)])
    np.testing.assert_allclose(last["global_valid_loss"], valid, rtol=1e-5)
    np.testing.assert_allclose(last["standalone_valid_loss"], reference.valid_loss[0])
    prefer = (valid < np.asarray(reference.valid_loss[0])).mean()
    np.testing.assert_allclose(last["valid_incentivised_participation_rate"], prefer)
    np.testing.assert_allclose(last["valid_global_model_appeal"], (valid < np.asarray(reference.threshold[0])).mean())


@pytest.mark.in_turn
def test_nothing_else_changes_and_nothing_is_there_unasked(result: Any, reference: Any) -> None:
    plain = simulate(PLAN, DATA, rounds=2, reference=reference._replace(valid_loss=None, unseen_valid_loss=None))
    assert not set(ON_REQUEST) & set(plain.metrics)
    assert not {"global_train_loss", "global_valid_loss", "standalone_valid_loss"} & set(plain.metrics)
    for name in ("test_loss", "valid_loss", "incentivised_participation_rate"):
        np.testing.assert_array_equal(plain.metrics[name], result.metrics[name])


def test_gradient_steps_of_the_cohorts(result: Any) -> None:
    metrics = result.metrics.isel(seed=0)
    trained = result.records["participation"].isel(seed=0).transpose("round", "client").values.sum(0)
    assert trained.sum() == 6
    np.testing.assert_array_equal(metrics["client_gradient_steps"].isel(evaluated_round=-1), trained * STEPS)
    assert metrics["gradient_steps"].values.tolist() == [0, 3 * STEPS, 6 * STEPS]
    assert metrics["forward_passes"].values.tolist() == [0, 0, 0]


@pytest.mark.thorough
def test_a_tuned_model_is_not_the_global_one(reference: Any) -> None:
    plain = fedavg(TASK, LOCAL, clients_per_round=3)
    tuned = scenarios.finetuned(plain, learning_rate=0.2, batch_size=2, steps=3)
    found = simulate(tuned, DATA, rounds=2, reference=reference, extra_metrics=OF_LOSSES).metrics
    same = simulate(PLAN, DATA, rounds=2, reference=reference, extra_metrics=OF_LOSSES).metrics
    for name in ("global_train_loss", "global_valid_loss", "objective", "objective_gradient_norm"):
        np.testing.assert_allclose(found[name], same[name], rtol=1e-5, err_msg=name)
    assert (found["valid_loss"] != found["global_valid_loss"]).any()


@pytest.mark.thorough
def test_without_a_global_model_there_is_no_objective(reference: Any) -> None:
    algorithm = models_per_client(TASK, LOCAL, contribution=np.ones(5, np.float32))
    found = simulate(algorithm, DATA, rounds=0, reference=reference, extra_metrics=OF_LOSSES).metrics
    assert {"valid_incentivised_participation_rate"} == set(OF_LOSSES) & set(found)


@pytest.mark.thorough
def test_a_sweep_has_the_requirement_of_every_plan(reference: Any) -> None:
    demanding = reference._replace(required=0 * reference.threshold, unseen_required=0 * reference.unseen_threshold)
    names = ("objective", "objective_gradient_norm")
    both = sweep(
        [PLAN, PLAN], DATA, rounds=1, seeds=2, references=[_twice(reference), _twice(demanding)], extra_metrics=names
    )
    one, other = (result.metrics for result in both)
    assert (one["objective_gradient_norm"] != other["objective_gradient_norm"]).all()
    alone = simulate(PLAN, DATA, rounds=1, seeds=2, reference=_twice(demanding), extra_metrics=names).metrics
    for name in names:
        np.testing.assert_allclose(other[name], alone[name], rtol=1e-5)


def _twice(reference: Any) -> Any:
    return jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), reference)


def test_what_a_metric_needs() -> None:
    assert needs_of(["objective", "valid_global_model_appeal"]) == ("global_train_loss", "global_valid_loss")
    with pytest.raises(ValueError, match=r"expected a reference, .* for objective_gradient_norm, got None"):
        simulate(PLAN, DATA, rounds=1, extra_metrics=["objective_gradient_norm"])
    none = DATA.clients.valid._replace(size=0 * DATA.clients.valid.size)
    without = DATA._replace(clients=DATA.clients._replace(valid=none))
    with pytest.raises(ValueError, match="with validation rows for valid_global_model_appeal, got none"):
        simulate(PLAN, without, rounds=1, extra_metrics=["valid_global_model_appeal"])


@pytest.mark.thorough
def test_scenarios_keep_the_objective(reference: Any, result: Any) -> None:
    around = scenarios.dropout(fedavg(TASK, LOCAL, clients_per_round=3), rate=0.0)
    found = simulate(around, DATA, rounds=2, reference=reference, extra_metrics=OF_LOSSES).metrics
    for name in OF_LOSSES:
        np.testing.assert_allclose(found[name], result.metrics[name], rtol=1e-5, err_msg=name)


@pytest.mark.thorough
@pytest.mark.devices
def test_several_devices_add_up_the_same_gradient(reference: Any, result: Any) -> None:
    from fljax.engine import Execution

    names = ("objective", "objective_gradient_norm")
    how = {"reference": reference, "extra_metrics": names, "execution": Execution(devices=2)}
    found = simulate(PLAN, DATA, rounds=2, **how).metrics
    for name in names:
        np.testing.assert_allclose(found[name], result.metrics[name], rtol=1e-5, err_msg=name)


@pytest.mark.in_turn
def test_clients_with_as_many_rows_differ_by_their_effort() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 4)).astype(np.float32), random.integers(0, 3, 40).astype(np.int32)
    federation = from_arrays(x, y, np.repeat([0, 1], 20), train_fraction=0.5)
    local = Local(0.1, batch_size=1, epochs=1)
    algorithm = scenarios.effort(fedavg(TASK, local, clients_per_round=None), share=(0.2, 1.0))
    metrics = simulate(algorithm, federation, rounds=1, extra_metrics=["gradient_steps"]).metrics
    assert metrics["client_gradient_steps"].values[0, -1].tolist() == [2, 10]
