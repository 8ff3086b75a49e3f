"""Law 18: statistics of a model bypass optimizers, proximal terms, control variates, norms, clipping and noise."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, scenarios
from fljax.models import freeze
from fljax.protocol import Algorithm, Federation, Task
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, chosen, federation
from tests.laws.compare import assert_close
from tests.precision import enable_x64
from tests.toys.federation import tiny_federation
from tests.toys.quick import QUICK
from tests.toys.statistics import SEVEN, Watched, watched_regression
from tests.toys.task import Linear, logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Ragged: batches of two, so the last batch of some clients has a single row.
LOCAL = Local(learning_rate=0.2, batch_size=2, epochs=1, weight_decay=0.01)
# Settings in which a statistic could be scaled, pulled or counted in a norm.
HARD: dict[str, dict[str, Any]] = {
    "fedavg": {"server_optimizer": "adam"},
    "fedprox": {"mu": 2.0},
    "incfl": {"normalise": "mean"},
    "scaffold": {"option": "I"},
    "perfedavg": {"alpha": 0.5},
    "qffl": {"q": 2.0},
    "ditto": {"regularisation": 2.0},
    "fedbn": {"own": "statistics"},
    "ifca": {"averaging": "gradient"},
}
# Further settings of algorithms that have other code for them.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "scaffold, II": ("scaffold", {"option": "II"}),
    "perfedavg, none": ("perfedavg", {"alpha": 0.5, "hessian": "none"}),
    "perfedavg, difference": ("perfedavg", {"alpha": 0.5, "hessian": "difference"}),
    "fedbn, layers": ("fedbn", {"own": ("bias", "mean", "seven")}),
    "ifca, models": ("ifca", {"averaging": "model"}),
    "fedala, all layers": ("fedala", {"layers": 0}),
    "apfl, fixed": ("apfl", {"adaptive": False}),
    "iafl, copied": ("iafl", {"reference_draw": "copied"}),
}
CASES = {name: (name, HARD.get(name, {})) for name in algorithms.REGISTRY} | MORE
# Models that some clients have not trained yet count in their means.
BETWEEN = ("rank", "fedfomo", "fedsoft", "ipfl")


def _case(name: str, task: Task) -> Algorithm:
    name, hard = CASES[name]
    case = ALGORITHMS[name]
    options = {**case.example, **hard}
    if "server_lr" in inspect.signature(algorithms.REGISTRY[name].build).parameters:
        options["server_lr"] = 0.3
    if not hasattr(task.init(jax.random.key(0)), "mean") and name == "fedbn":
        options["own"] = tuple(each for each in options["own"] if each == "bias") if hard["own"] != "statistics" else ()
    local = LOCAL._replace(weight_decay=None) if name == "scaffold" else LOCAL
    return case.build(task, local, **options)


@functools.cache
def _bounds() -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(federation().examples.x)[:-1]
    return np.minimum(x.min(axis=0), 0), np.maximum(x.max(axis=0), 0)


def _models(state: Any, kind: type) -> list[Any]:
    """All models, updates and control variates of a state."""
    found = jax.tree.leaves((state.server, state.clients), is_leaf=lambda node: isinstance(node, kind))
    return [node for node in found if isinstance(node, kind)]


def _run(algorithm: Algorithm) -> tuple[Any, dict[str, Any]]:
    """The state after two rounds, and the losses and accuracies of the models that clients would use."""

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(data: Federation) -> tuple[Any, dict[str, Any]]:
        state, _ = fljax.rollout(algorithm, data, rounds=2)
        return state, fljax.evaluate_clients(algorithm, data, state)

    return run(federation())


def _check(build: Any, between: bool) -> None:
    (plain, scores), (watched, found) = _run(build(logistic_regression())), _run(build(watched_regression()))
    assert_close(found, scores)
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


@pytest.mark.sampled(50)
@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(CASES, quick=("iafl", "scaffold")))
def test_law_18_statistics_that_nothing_reads_change_nothing(name: str) -> None:
    """Models are those of the task without statistics. Statistics stay within the values that clients measured."""
    _check(lambda task: _case(name, task), name in BETWEEN)


# fedem and fedproto deploy more than a model.
SCENARIOS = [(scenario, "fedavg") for scenario in scenarios.REGISTRY] + [
    (scenario, name) for scenario in ("byzantine", "clipped", "finetuned") for name in ("fedem", "fedproto")
]
QUICK_SCENARIOS = (("byzantine", "fedavg"), ("free_riding", "fedavg"), ("finetuned", "fedproto"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("scenario", "name"),
    [pytest.param(*pair, marks=[pytest.mark.thorough] * (pair not in QUICK_SCENARIOS)) for pair in SCENARIOS],
)
def test_law_18_in_scenarios(scenario: str, name: str) -> None:
    entry = scenarios.REGISTRY[scenario]
    _check(lambda task: entry.build(_case(name, task), **entry.example), scenario == "free_riding")


@pytest.mark.in_turn
def test_law_17_with_statistics_that_evaluation_reads() -> None:
    """The gradient of the test loss by a learning rate, through two rounds, against central differences."""
    with enable_x64(True):
        task, data = watched_regression(jnp.float64, centred=True), tiny_federation(dtype=jnp.float64)

        def loss(rate: Any) -> Any:
            algorithm = algorithms.fedavg(task, LOCAL._replace(learning_rate=rate), clients_per_round=None)
            state, _ = fljax.rollout(algorithm, data, rounds=2)
            return fljax.evaluate_clients(algorithm, data, state)["test_loss"].mean()

        step, value = 1e-5, jax.jit(loss, compiler_options=QUICK)
        gradient = jax.jit(jax.grad(loss), compiler_options=QUICK)
        for rate in (0.2, 0.9):
            expected = (value(rate + step) - value(rate - step)) / (2 * step)
            np.testing.assert_allclose(gradient(rate), expected, rtol=1e-7)


class Scaled(NamedTuple):
    """A linear model, and a factor that is frozen."""

    weight: Any
    bias: Any
    factor: Any


@pytest.mark.in_turn
@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_every_algorithm_takes_a_frozen_task(name: str) -> None:
    plain = logistic_regression()
    whole = plain._replace(
        init=lambda key: Scaled(plain.init(key).weight, plain.init(key).bias, jnp.ones(3)),
        logits=lambda params, x, key=None: plain.logits(Linear(*params[:2]), x) * params.factor[None, :],
        features=lambda params, x: x @ params.weight,
        roles=lambda tree: Scaled("trained", "head", "trained"),
    )
    task = freeze(whole, whole.init(jax.random.key(0)), lambda path: path == "factor")
    case = ALGORITHMS[name]
    algorithm = case.build(task, Local(0.2, batch_size=2, steps=1), **case.example)
    state = jax.eval_shape(lambda data: fljax.rollout(algorithm, data, rounds=1)[0], federation())
    assert not [
        node for node in jax.tree.leaves(state, is_leaf=_is_scaled) if _is_scaled(node) and node.factor is not None
    ]


def _is_scaled(node: Any) -> bool:
    return isinstance(node, Scaled)
