"""Law 17: what reverse mode says of two rounds is what finite differences say, for every float of every algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import REGISTRY
from fljax.engine import rollout
from fljax.engine.evaluate import evaluate
from fljax.engine.federations import by_id
from fljax.training import Local
from fljax.types import unlabelled
from tests.laws.cases import ALGORITHMS, EIGHT, SIDE_BY_SIDE, numbers, with_numbers
from tests.precision import enable_x64
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

RATE = "the clients' learning rate"
# With the quick options, which have a second one beside this, jaxlib 0.10.2 computes wrong numbers in the program of
# fedala.
UNOPTIMISED = {"xla_backend_optimization_level": 0}
MODES = {"steps": Local(0.2, 2, steps=3), "epochs": Local(0.2, 2, epochs=1)}
# Some unlike algorithms, each in one mode, are not slow; those of the quick tests are quick.
DEFAULT = {
    "fedavg": "steps",
    "incfl": "epochs",
    "iafl": "steps",
    "ipfl": "steps",
    "scaffold": "epochs",
    "fedfomo": "steps",
    "fedproto": "epochs",
    "standalone": "steps",
    "qffl": "steps",
    "pfedme": "steps",
    "fedala": "steps",
}
CASES = [
    pytest.param(
        name,
        mode,
        marks=pytest.mark.slow if DEFAULT.get(name) != mode else () if name in EIGHT else pytest.mark.thorough,
    )
    for name in REGISTRY
    for mode in MODES
]


def values_of(name: str) -> dict[str, np.ndarray]:
    """Every float of an algorithm, and the clients' learning rate, in double precision."""
    own = {key: np.asarray(value, np.float64) for key, value in numbers(ALGORITHMS[name]).items()}
    return {**own, RATE: np.asarray(0.2)}


@pytest.mark.parametrize("name", REGISTRY)
def test_every_float_is_declared(name: str) -> None:
    entry = REGISTRY[name]
    declared = (*entry.differentiable, *entry.flat)
    assert sorted(declared) == sorted(set(declared))
    assert set(declared) == set(numbers(ALGORITHMS[name]))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_law_17_gradients_equal_finite_differences(name: str, mode: str) -> None:
    entry, case = REGISTRY[name], ALGORITHMS[name]
    with enable_x64(True):
        task, federation = logistic_regression(jnp.float64), tiny_federation(dtype=np.float64)

        def loss(values: Mapping[str, Any]) -> Any:
            given = {key: value for key, value in values.items() if key != RATE}
            algorithm = case.build(task, MODES[mode]._replace(learning_rate=values[RATE]), **with_numbers(case, given))
            state, _ = rollout(algorithm, federation, rounds=2)
            found = unlabelled(evaluate(algorithm, by_id(federation), SIDE_BY_SIDE, state, jnp.int32(2)))
            return jnp.vdot(found["test_loss"], 1 + jnp.arange(5.0))

        values = values_of(name)
        forward = jax.jit(loss, compiler_options=UNOPTIMISED)
        slopes = jax.jit(jax.grad(loss), compiler_options=UNOPTIMISED)(values)
        for key, value in values.items():
            found = np.asarray(slopes[key])
            if key in entry.flat:
                np.testing.assert_array_equal(found, 0, err_msg=key)
                continue
            along = np.random.default_rng(0).uniform(0.5, 1, value.shape)
            step = 1e-5 * max(float(np.abs(value).max()), 1e-3)
            ahead, behind = (forward({**values, key: value + sign * step * along}) for sign in (1, -1))
            expected = float(ahead - behind) / (2 * step)
            np.testing.assert_allclose(np.vdot(found, along), expected, rtol=1e-5, atol=1e-8, err_msg=key)
            assert abs(expected) > 1e-7, f"{key} has no influence here"
