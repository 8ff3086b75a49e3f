"""Half precision: whatever is added up, counted and judged is that of float32.

Features, initial models and steps are fractions with few digits, so that logits are exact in every dtype: runs differ
where something else than a gradient is in half precision.
"""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import data
from fljax.core import trees
from fljax.testing.federation import CLASSES, FEATURES, logistic_regression
from tests.laws.cases import ALGORITHMS, EIGHT

HALF = {"bfloat16": 2e-2, "float16": 2e-3}
SIZES = (40_000, 20_000, 6_000, 3_000, 1_000)  # float16 has no number above 65504
TESTS = 66_000


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
    plan = fljax.Plan(case.build, {"task": task_in(dtype), "local": fljax.Local(0.5, 64, steps=2), **options})
    result = fljax.simulate(plan, federation(), rounds=1)
    scores = [key for key in result.metrics if key.endswith(("loss", "accuracy"))]
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
