"""Half precision: logits are exact in every dtype here, and what is added up, counted and judged is float32's."""

from __future__ import annotations

import functools
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fljax
from fljax import data, metrics, models
from fljax.algorithms import fedavg
from fljax.contributions import ESTIMATORS, RunRecord
from fljax.contributions.estimators import estimate_run
from fljax.core import trees
from fljax.testing.federation import CLASSES, FEATURES, logistic_regression
from fljax.training import rate
from tests.laws.cases import ALGORITHMS, EIGHT

HALF = {"bfloat16": 2e-2, "float16": 2e-3}
SIZES = (60_000, 24_000, 9_000, 5_000, 2_000)  # float16 has no number above 65504
TESTS = 100_000


@functools.cache
def federation():
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(FEATURES, CLASSES))

    def draw(rows):
        x = rng.integers(-1, 2, (rows, FEATURES)).astype(np.float32)
        y = np.where(rng.random(rows) < 0.8, np.argmax(x @ teacher, axis=1), rng.integers(0, CLASSES, rows))
        return x, y.astype(np.int32)

    x, y = draw(sum(SIZES))
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    return data.from_arrays(
        x, y, owner, train_fraction=0.99, valid_fraction=0.01, held_fraction=0.02, test_data=draw(TESTS), test="global"
    )


def task_in(dtype):
    """Logistic regression by hand, whose first parameters are eighths up to 3/8."""
    task = logistic_regression(dtype)

    def init(key):
        weight = jax.random.randint(key, (FEATURES, CLASSES), -3, 4).astype(dtype) / 8
        return task.init(key)._replace(weight=weight)

    return task._replace(init=init)


@functools.cache
def run(name, dtype):
    """The metrics before and after one round of all clients, and the state."""
    case = ALGORITHMS[name]
    options = dict(case.example)
    asked = inspect.signature(case.signature).parameters
    options |= {"weights": "size"} if "weights" in asked and name != "fedproto" else {}
    options |= {"clients_per_round": None} if "clients_per_round" in asked else {}
    options |= {"alpha": 0.1} if name == "feddyn" else {}  # the smallest client's is ten times as large
    plan = fljax.Plan(case.build, {"task": task_in(dtype), "local": fljax.Local(0.5, 64, steps=2), **options})
    result = fljax.simulate(plan, federation(), rounds=1)
    scores = [key for key in map(str, result.metrics) if key.endswith(("loss", "accuracy"))]
    return {key: result.metrics[key].isel(seed=0).values for key in scores}, result.state


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in EIGHT[:1] else pytest.mark.thorough) for name in ALGORITHMS],
)
def test_a_round_and_its_evaluation(name, dtype):
    expected, wide = run(name, "float32")
    found, narrow = run(name, dtype)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        if name != "perfedavg" or key.endswith("loss"):  # its models have taken a step, which may turn a tie
            np.testing.assert_allclose(found[key][0], values[0], atol=1e-3, err_msg=key)
        if key.endswith("loss"):  # a single row may change an accuracy of few rows
            np.testing.assert_allclose(found[key][-1], values[-1], atol=HALF[dtype], err_msg=key)
    pairs = zip(jax.tree_util.tree_leaves_with_path(narrow), jax.tree.leaves(wide), strict=True)
    for (path, leaf), other in pairs:
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            continue
        found_leaf, right = np.asarray(leaf, np.float64), np.asarray(other, np.float64)
        scale = np.abs(right).max(initial=0)
        np.testing.assert_allclose(found_leaf, right, atol=HALF[dtype] * scale, err_msg=trees.path_of(path))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [name for name, entry in ESTIMATORS.items() if not entry.on_host])
def test_estimators_with_heavy_weights(name, dtype):
    """Models and updates are exact in half precision; the sum of the weights is beyond float16."""
    updates = np.random.default_rng(1).integers(-8, 9, (2, 4, 3)) / 8.0
    start = np.zeros((3, 3))
    target = jnp.asarray([0.5, -0.25, 0.125], jnp.float32)
    options = {
        "shapfed": {"head": lambda updates: updates[..., None, :]},
        "fedce": {
            "client_metric": lambda models, ids: jnp.exp(-jnp.sum(jnp.square(models.astype("float32")), axis=-1))
        },
    }.get(name, {})
    if "utility" in ESTIMATORS[name].needs:
        options["utility"] = lambda model: -jnp.sum(jnp.square(model.astype(jnp.float32) - target))

    def worth(dtype):
        weights = jnp.full((2, 4), 3e4, dtype)
        record = RunRecord(jnp.asarray(start, dtype), jnp.asarray(updates, dtype), weights)
        record = record._replace(gradients=jnp.asarray(start + 0.5, dtype))
        found = estimate_run(ESTIMATORS[name].function(**options), record, key=jax.random.key(0)).worth
        return np.asarray(found, np.float64)

    right = worth("float32")
    np.testing.assert_allclose(worth(dtype), right, atol=HALF[dtype] * np.abs(right).max())


@pytest.mark.parametrize("dtype", HALF)
def test_what_modules_and_servers_keep(dtype):
    """Logits and representations of modules in half precision, whichever way they got there; moments of the server."""
    x = jnp.zeros((1, FEATURES))
    tasks = [
        models.task_from_module(nn.Dense(2, dtype=dtype), x),
        models.task_from_module(nn.Dense(2, dtype=dtype), x, compute_dtype=dtype),
        models.mlp((FEATURES,), 2, hidden=(3,), dtype=dtype),
        models.task_from_module(lambda rngs: nnx.Linear(FEATURES, 2, dtype=dtype, rngs=rngs), x),
    ]
    for task in tasks:
        params = task.init(jax.random.key(0))
        assert task.logits(params, x).dtype == jnp.float32
        assert task.features is None or task.features(params, x).dtype == jnp.float32
        slope = jax.grad(lambda params, task=task: task.losses(task.logits(params, x), jnp.zeros(1, int))[0])(params)
        assert trees.difference(params, slope) is None
    server = fljax.simulate(
        fedavg(task_in(dtype), fljax.Local(0.5, 64, steps=1), clients_per_round=None, server_optimizer="adam"),
        federation(),
        rounds=1,
        evaluate_every=1,
    ).state.server
    kept = [leaf.dtype for leaf in jax.tree.leaves(server.optimizer) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(kept) == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(server.model)} == {jnp.dtype(dtype)}


def test_decay_of_the_learning_rate_is_counted_in_float32():
    """In bfloat16 itself, .999 is 1."""
    found = rate(fljax.Local(0.5, 1, steps=1, decay=0.999), 300, jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(found), 0.5 * 0.999**300, rtol=4e-3)


@pytest.mark.parametrize("function", [np.asarray, jnp.asarray])
def test_metrics_of_half_precision(function):
    accuracies = function(np.ones(70_000, np.float16))
    np.testing.assert_allclose(np.asarray(metrics.average_accuracy(accuracies), float), 1)
