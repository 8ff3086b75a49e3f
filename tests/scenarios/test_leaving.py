"""Who left for good is no member: the others are as in a federation that never had it, and it keeps its model."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms.registry import REGISTRY
from fljax.engine.federations import by_id
from fljax.engine.layout import Layout
from fljax.engine.round import one_round
from fljax.engine.states import State, initial_state
from fljax.scenarios import opting_out
from fljax.testing.comparing import assert_close
from fljax.training import Local
from fljax.types import unlabelled
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation", "x64")

LOCAL = Local(0.2, 2, steps=3)
POPULATION, LEAVER = 5, 4


def federation(population: int = POPULATION) -> Any:
    """The tiny federation of 5 clients, or that of its first ``population``."""
    data = by_id(tiny_federation(dtype=np.float64))
    return data._replace(clients=jax.tree.map(lambda leaf: leaf[:population], data.clients))


def algorithm(name: str, population: int = POPULATION, *, leaves: bool = True, how: Any = None, **options: Any) -> Any:
    """An algorithm that client 4 leaves before round 1; its options are those of the first clients."""
    entry = REGISTRY[name]
    options = dict(entry.example) | options
    cut = lambda value: value[:population] if isinstance(value, tuple) and len(value) == POPULATION else value  # noqa: E731
    options = {key: cut(value) for key, value in options.items()}
    if "clients_per_round" in inspect.signature(entry.build).parameters:
        options.setdefault("clients_per_round", 3)
    inner = entry.build(logistic_regression(jnp.float64), LOCAL, **options)
    baseline = np.where(leaves & (np.arange(population) == LEAVER), 2.0, 0.0)
    return opting_out(inner, baseline=baseline, every=1, **(how or {}))


def rounds(algorithm: Any, data: Any, state: Any = None, count: int = 1) -> tuple[State, Any]:
    """The state after ``count`` rounds, and the records of the last one."""
    population = data.clients.id.shape[0]
    step = jax.jit(lambda state: one_round(algorithm, data, Layout(population, 1, population), state))
    state = jax.jit(initial_state, static_argnums=0)(algorithm, data, jnp.uint32(0)) if state is None else state
    info: Any = {}
    for _ in range(count):
        state, info = step(state)
    assert int(state.diverged) == -1
    return state, jax.tree.map(np.asarray, unlabelled(info))


def like(tree: Any, example: Any) -> Any:
    """The first rows of arrays, as many as those of ``example`` have: those of the other clients."""
    return jax.tree.map(lambda leaf, small: leaf[tuple(map(slice, small.shape))], tree, example)


CASES = {
    "iafl": ("iafl", {"joining": None}),
    "iafl, median": ("iafl", {"reference_rule": "median"}),
    "iafl, copied": ("iafl", {"reference_draw": "copied"}),
    "iafl, copied median": ("iafl", {"reference_draw": "copied", "reference_rule": "median"}),
} | {name: (name, {}) for name in REGISTRY if name != "iafl"}


@pytest.mark.parametrize("case", CASES)
def test_members_are_as_in_a_federation_that_never_had_who_left(case: str) -> None:
    name, options = CASES[case]
    whole, others = (algorithm(name, population, **options) for population in (POPULATION, POPULATION - 1))
    before, _ = rounds(whole, federation())
    start = jax.eval_shape(lambda data: initial_state(others, data, jnp.uint32(0)), federation(LEAVER))
    found, info = rounds(whole, federation(), before, 2)
    assert info["opted_out"].tolist() == [False] * 4 + [True]
    expected, _ = rounds(others, federation(LEAVER), like(before, start), 2)
    assert_close(like(found, start), expected, 1e-12)
