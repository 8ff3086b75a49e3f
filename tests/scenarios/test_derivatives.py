"""Derivatives of what clients send by every float of a scenario, also at 0 and at honest values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fljax
from fljax import algorithms, data, models, scenarios
from fljax.protocol import Algorithm
from fljax.scenarios import REGISTRY, ByReport, Strategy
from fljax.testing.bench import is_float, is_record
from tests.drawn import at_most
from tests.precision import enable_x64
from tests.scenarios.test_strategic import MODELS, UPDATES, played, reports, told
from tests.slopes import check_slopes

SIZE, WHO = 3, np.array([True, True])


def message(wrap: Callable[..., Algorithm], update: Any, loss: Any, **values: Any) -> Any:
    """What client 1 sends in three rounds, in double precision; some of its updates and reports are 0 or infinite."""
    report = reports(
        loss=jnp.stack([2 + 0 * update, loss]),
        size=np.array([7, 5], np.int32),
        accuracy=np.array([0.5, 0.0]),
        threshold=np.array([1.0, np.inf]),
        contribution=np.array([0.5, 0.5]),
        bid=np.eye(2),
    )
    scale = jnp.stack([1 + 0 * update, update, 1 + 0 * update])[:, None, None]
    inner = told(np.float64(UPDATES[:, :, :SIZE]) * scale, report)
    return played(wrap(inner, **values), 1, models=np.float64(MODELS[:, :SIZE]))


def strategy(inner: Algorithm, **values: Any) -> Algorithm:
    """The scenario by the dotted names of its floats."""
    by_report: Any = {
        kind: ByReport(**{name: values.pop(f"strategy.{kind}.{name}") for name in ByReport._fields})
        for kind in ("factor", "shift")
    }
    own = {name.removeprefix("strategy."): value for name, value in values.items()}
    return scenarios.strategic(inner, strategy=Strategy(**own, **by_report))


def misreporting(inner: Algorithm, factor: Any, offset: Any) -> Algorithm:
    """Of all values."""
    for name in ByReport._fields:
        inner = scenarios.misreporting(inner, report=name, factor=factor, offset=offset, who=WHO)  # type: ignore
    return inner


MESSAGES: dict[str, Callable[..., Algorithm]] = {
    "strategic": strategy,
    "misreporting": misreporting,
    "byzantine": functools.partial(scenarios.byzantine, who=WHO),
    "clipped": scenarios.clipped,
    "effort": functools.partial(scenarios.effort, scale_contribution=True),
}
PROGRAMS = {name: functools.partial(message, wrap) for name, wrap in MESSAGES.items()}


@pytest.mark.parametrize("name", REGISTRY)
def test_every_float_is_declared(name: str) -> None:
    entry = REGISTRY[name]
    assert not set(entry.differentiable) & set(entry.flat)
    given = {key: value for key, value in entry.example.items() if not is_record(value) and is_float(value)}
    assert set(given) - {"trace"} <= {*entry.differentiable, *entry.flat}
    if name == "strategic":
        fields = {f"strategy.{key}" for key in Strategy._fields if not is_record(getattr(Strategy(), key))}
        fields |= {f"strategy.{kind}.{key}" for kind in ("factor", "shift") for key in ByReport._fields}
        assert fields == {*entry.differentiable, *entry.flat}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "strategic" else pytest.mark.in_turn) for name in MESSAGES]
)
@given(st.integers(0, 10**6), st.sampled_from([0, 1]), st.sampled_from([0.0, 2.0, np.inf]))
@at_most(30)
def test_derivatives_are_differences(name: str, seed: int, update: int, loss: float) -> None:
    rng, entry = np.random.default_rng(seed), REGISTRY[name]
    flat = entry.flat if name == "strategic" else ()
    values: dict[str, Any] = {
        key: float(rng.choice([0.0, 1.0, float(rng.uniform(0.1, 2))])) for key in (*entry.differentiable, *flat)
    }
    if name == "strategic" and rng.integers(2):  # honest
        values = {key: float(key.endswith("own") or "factor" in key or "effort" in key) for key in values}
    if name == "clipped":  # above 0, and at the bound in round 0
        values["norm"] = rng.choice([0.5, float(np.linalg.norm(np.float64(UPDATES[0, 1, :SIZE])))])
    with enable_x64(True):
        values |= {"update": update, "loss": loss}
        check_slopes(PROGRAMS[name], values, flat=flat, others=("update", "loss"))


class Point(nn.Module):
    """A model of one number."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return jnp.broadcast_to(self.param("w", nn.initializers.zeros, (1,)), (x.shape[0], 1))


@functools.cache
def two_targets() -> tuple[Algorithm, Any]:
    """FedAvg of two clients whose one step ends at their targets, 0 and 1."""
    task = models.task_from_module(
        Point(), np.zeros((1, 1), "float32"), loss=models.squared_error, example_y=np.zeros(1, "float32")
    )
    rows = {
        id: dict.fromkeys(("train", "test"), (np.zeros((1, 1), "float32"), np.array([target], "float32")))
        for id, target in (("a", 0.0), ("b", 1.0))
    }
    local = fljax.Local(0.5, 1, steps=1)
    fedavg = algorithms.fedavg(task, local, clients_per_round=None, weights="uniform")
    with jax.ensure_compile_time_eval():
        return fedavg, data.from_clients(rows, regression=True)


def payoff(wrap: Callable[..., Algorithm], **values: Any) -> Any:
    """Minus the test loss of client b."""
    inner, federation = two_targets()
    algorithm = wrap(inner, **values)
    state, _ = fljax.rollout(algorithm, federation, rounds=1)
    return -fljax.evaluate_clients(algorithm, federation, state)["test_loss"][1]


@pytest.mark.in_turn
@pytest.mark.parametrize("own", [0.0, 1.0, 1.1])
def test_the_payoff_of_a_scaled_update(own: float) -> None:
    """``-(1 - own / 2)^2`` has the slope ``1 - own / 2``, at the honest value as well."""

    def scaled(own: Any) -> Any:
        wrap = lambda inner, own: scenarios.strategic(inner, strategy=Strategy(own=jnp.stack([1 + 0 * own, own])))  # noqa: E731
        return payoff(wrap, own=own)

    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(mode(scaled))(jnp.float32(own)), 1 - own / 2, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(scaled)))(jnp.float32(own)), -0.5, rtol=1e-5)


ROUNDS: dict[str, tuple[Callable[..., Algorithm], dict[str, float]]] = {
    "finetuned": (functools.partial(scenarios.finetuned, batch_size=1, steps=1), {"learning_rate": 0.1}),
    "median_clipped": (scenarios.median_clipped, {"times": 0.7}),
    "dropout": (scenarios.dropout, {"rate": 0.3}),
    "appeal_based": (functools.partial(scenarios.appeal_based, after=0), {"threshold": 0.9}),
    "effort": (scenarios.effort, {"share": 0.7}),
    "heterogeneous_training": (scenarios.heterogeneous_training, {"rate_factor": 0.7}),
    "strategic": (lambda inner, effort: scenarios.strategic(inner, strategy=Strategy(effort=effort)), {"effort": 0.7}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_have_derivatives(name: str) -> None:
    wrap, values = ROUNDS[name]
    flat = values if name in ("effort", "strategic") else REGISTRY[name].flat
    forward, backward = (jax.jit(each(lambda values: payoff(wrap, **values))) for each in (lambda it: it, jax.grad))
    for value in (*values.values(), 0.0, 1.0):
        found, step = {key: jnp.float32(value) for key in values}, 2.0**-8
        ahead, behind = (forward({key: each + sign * step for key, each in found.items()}) for sign in (1, -1))
        for key, slope in backward(found).items():
            np.testing.assert_allclose(slope, 0 if key in flat else (ahead - behind) / (2 * step), rtol=1e-3)
