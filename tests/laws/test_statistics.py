"""Law 18: statistics of a model bypass optimizers, proximal terms, control variates, norms, clipping and noise."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import fljax
from fljax import algorithms, scenarios
from fljax.training import Local
from fljax.types import Algorithm, Task
from tests.laws.cases import ALGORITHMS, federation
from tests.toys.quick import QUICK
from tests.toys.statistics import SEVEN, Watched, watched_regression
from tests.toys.task import Linear, logistic_regression

# Ragged: batches of two, so the last batch of some clients has a single row.
LOCAL = Local(learning_rate=0.2, batch_size=2, epochs=1, weight_decay=0.01)
# Every optimizer and rate that a statistic could meet.
HARD: dict[str, dict[str, Any]] = {
    "fedavg": {"server_lr": 0.3, "server_optimizer": "adam"},
    "fedprox": {"mu": 2.0, "server_lr": 0.3},
    "incfl": {"server_lr": 0.3, "normalise": "mean"},
    "scaffold": {"server_lr": 0.3},
    "qffl": {"q": 2.0, "server_lr": 0.5},
    "ditto": {"regularisation": 2.0},
}
# Models that some clients have not trained yet count in their means.
BETWEEN = ("rank", "fedfomo", "fedsoft", "ipfl")


def _case(name: str, task: Task) -> Algorithm:
    case = ALGORITHMS[name]
    local = LOCAL._replace(weight_decay=None) if name == "scaffold" else LOCAL
    return case.build(task, local, **{**case.example, **HARD.get(name, {})})


@functools.cache
def _bounds() -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(federation().examples.x)[:-1]
    return np.minimum(x.min(axis=0), 0), np.maximum(x.max(axis=0), 0)


def _models(state: Any, kind: type) -> list[Any]:
    """All models, updates and control variates of a state."""
    found = jax.tree.leaves((state.server, state.clients), is_leaf=lambda node: isinstance(node, kind))
    return [node for node in found if isinstance(node, kind)]


def _state(algorithm: Algorithm) -> Any:
    run = jax.jit(lambda data: fljax.rollout(algorithm, data, rounds=2)[0], compiler_options=QUICK)
    return run(federation())


def _check(build: Any, between: bool) -> None:
    plain, watched = _state(build(logistic_regression())), _state(build(watched_regression()))
    pairs = list(zip(_models(plain, Linear), _models(watched, Watched), strict=True))
    assert pairs or not _models(plain, Linear)
    for expected, found in pairs:
        for one, other in zip(expected, found[:2], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    low, high = _bounds()
    kept = [found for _, found in pairs if hasattr(found.seven, "shape")]  # neither shared nor masked: no statistics
    for found in kept:
        assert np.all((np.asarray(found.mean) >= low - 1e-5) & (np.asarray(found.mean) <= high + 1e-5))
        seven = np.asarray(found.seven)
        assert np.all((seven > -1e-4) & (seven < SEVEN + 1e-4)), seven
        if not between:
            np.testing.assert_allclose(np.where(np.abs(seven) < 1e-4, SEVEN, seven), SEVEN, rtol=1e-5)
    assert between or not kept or any(np.any(np.isclose(found.seven, SEVEN)) for found in kept)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_law_18_statistics_that_nothing_reads_change_nothing(name: str) -> None:
    """Models are those of the task without statistics. Statistics stay within the values that clients measured."""
    _check(lambda task: _case(name, task), name in BETWEEN)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", scenarios.REGISTRY)
def test_law_18_in_scenarios(scenario: str) -> None:
    entry = scenarios.REGISTRY[scenario]
    _check(lambda task: entry.build(_case("fedavg", task), **entry.example), scenario == "free_riding")
