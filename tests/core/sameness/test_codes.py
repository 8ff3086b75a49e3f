"""The code of own functions: what changes it, and what does not."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

from fljax.core.sameness import code_of, codes_of, named_in, without_later

MODULE = '''
"""A module of a user."""
import dataclasses, functools, jax, optax
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import own_helpers
from fljax import algorithms

RATE, STEPS = 0.5, [1, 2]
TABLE = np.arange(3.0)
UNUSED = 1
CALLS = []

def before(value):
    "Words."
    return RATE * value

def decorated(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given) + 2
    return inner

@decorated
def step(value, by=1.0):
    from own_helpers import late
    return late(before(value)) * by

class Base:
    def power(self):
        return 2

@dataclasses.dataclass(frozen=True)
class Schedule(Base):
    start: float = 0.1
    def __call__(self, round):
        return self.start ** self.power()

SCHEDULE = Schedule()

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(jnp.tanh(x))

class Objective:
    def __init__(self):
        self.scale, self.seen = 4, 0
    def __call__(self, value):
        self.seen += 1
        return value * self.scale

OBJECTIVE = Objective()

@jax.custom_vjp
def curved(x):
    return x
curved.defvjp(lambda x: (x, None), lambda _, g: (3 * g,))

def unused():
    return 7

def algorithm(task, local, mu=0.1):
    inner = algorithms.fedavg(task, local)
    CALLS.append(1)
    net, clipped = Net(), functools.partial(optax.clip, 5.0)
    def aggregate(*given):
        kinds = {"mean": own_helpers.kept}
        return OBJECTIVE(kinds["mean"](given, step(mu), SCHEDULE(0), curved(TABLE), STEPS, net, clipped))
    return inner._replace(aggregate=aggregate)
'''
HELPERS = """
from own_inner import deepest
def kept(*given):
    return deepest(given)
def late(value):
    return value
"""
INNER = "def deepest(value):\n    return value\n"
FILES = {"own_parts": MODULE, "own_helpers": HELPERS, "own_inner": INNER}
CHANGES = [
    ("own_parts", "RATE, STEPS = 0.5", "RATE, STEPS = 0.25"),
    ("own_parts", "[1, 2]", "[2, 1]"),
    ("own_parts", "arange(3.0)", "arange(4.0)"),
    ("own_parts", "RATE * value", "RATE + value"),
    ("own_parts", "function(*given) + 2", "function(*given) + 3"),
    ("own_parts", "by=1.0", "by=2.0"),
    ("own_parts", "return 2\n", "return 3\n"),
    ("own_parts", "start: float = 0.1", "start: float = 0.2"),
    ("own_parts", "SCHEDULE = Schedule()", "SCHEDULE = Schedule(0.3)"),
    ("own_parts", "nn.Dense(3)", "nn.Dense(4)"),
    ("own_parts", "jnp.tanh", "jnp.sin"),
    ("own_parts", "self.scale, self.seen = 4, 0", "self.scale, self.seen = 5, 0"),
    ("own_parts", "3 * g", "4 * g"),
    ("own_parts", "mu=0.1", "mu=0.2"),
    ("own_parts", "optax.clip, 5.0", "optax.clip, 6.0"),
    ("own_parts", "optax.clip,", "optax.scale,"),
    ("own_parts", "algorithms.fedavg", "algorithms.scaffold"),
    ("own_parts", "own_helpers.kept}", "own_helpers.late}"),
    ("own_helpers", "return value", "return -value"),
    ("own_inner", "return value", "return -value"),
]
SAME = [
    ("own_parts", "RATE, STEPS", "# why\n\nRATE, STEPS"),
    ("own_parts", '"Words."', '"Other words."'),
    ("own_parts", "UNUSED = 1", "UNUSED = 2"),
    ("own_parts", "return 7", "return 8"),
    ("own_parts", "[1, 2]", "[1,\n    2]"),
]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """The code of the algorithm after changes of its files, as of a new process."""

    def of(*changes: tuple[str, str, str]) -> str:
        texts, folder = dict(FILES), tmp_path_factory.mktemp("own")
        for name, old, new in changes:
            texts[name] = texts[name].replace(old, new)
        assert changes == () or texts != FILES
        for name, text in texts.items():
            sys.modules.pop(name, None)
            (folder / f"{name}.py").write_text(text)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        try:
            importlib.import_module("own_parts")
            return code_of(named_in({"algorithms": [{"name": "own_parts:algorithm"}]})["own_parts:algorithm"])
        finally:
            sys.path.remove(str(folder))

    yield of
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def first(code: Callable[..., str]) -> str:
    return code()


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_own_function_reaches_counts(code: Callable[..., str], first: str, change: Any) -> None:
    assert code(change) != first


@pytest.mark.parametrize("change", SAME)
def test_what_computes_the_same_does_not_count(code: Callable[..., str], first: str, change: Any) -> None:
    assert code(change) == first


@hypothesis.given(st.lists(st.sampled_from(CHANGES), min_size=1, unique=True), st.sets(st.sampled_from(SAME)))
def test_several_changes(code: Callable[..., str], first: str, changes: Any, same: Any) -> None:
    assert code(*changes) == code(*changes, *same) != first


def test_calls_change_no_code(code: Callable[..., str], first: str) -> None:
    """Lists and objects of a module that count something are as they are written."""
    code()
    parts: Any = sys.modules["own_parts"]
    parts.CALLS.append(1)
    parts.STEPS.append(3)
    parts.OBJECTIVE(1.0)
    assert code_of(parts.algorithm) == first


def test_code_of_installed_packages_and_of_fljax_is_theirs() -> None:
    import optax

    from fljax import algorithms

    mine = inspect.unwrap(algorithms.fedavg)  # where annotations are checked, a function of the tests is around it
    assert codes_of([optax.adam(0.1), mine, len, functools.partial(max, 1)]) == {}
    (name,) = codes_of(functools.partial(jax.jit(lambda x: x + 1), 2))
    assert name.endswith("<lambda>")


@pytest.mark.parametrize(
    ("there", "here", "same"),
    [
        ({}, {"local.keep": "False"}, True),
        ({}, {"arguments/local/keep": False}, True),
        ({}, {"local.keep": "True"}, False),
        ({"local.keep": "True"}, {"local.keep": "True", "algorithms.0.fedavg.local.keep": "False"}, False),
        ({}, {"algorithms.0.fedavg.local.shuffle": "False"}, False),  # where ``local`` says True
        ({"local/keep": False}, {}, False),
    ],
)
def test_a_switch_that_an_earlier_version_did_not_have_is_off(there, here, same):
    assert (without_later(there, here) == there) == same
