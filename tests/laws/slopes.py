"""Derivatives of two rounds of any algorithm in each of its floats, in both modes and both precisions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.core import trees
from fljax.core.errors import AlgorithmError
from fljax.engine import rollout
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import by_id
from fljax.protocol import Federation, Task, unlabelled
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, POPULATION, ROUNDS, numbers, with_numbers
from tests.precision import enable_x64
from tests.toys.federation import tiny_federation
from tests.toys.task import Linear, logistic_regression

RATE = "the clients' learning rate"
MODES = {"steps": Local(0.2, 2, steps=3), "epochs": Local(0.2, 2, epochs=1)}
# An objective may be a mean of millions of terms, so its cotangents are small. A power of two adds no rounding error.
SMALL = 2.0**-24
# With QUICK, whose second option is added to this one, jaxlib 0.10.2 computes wrong numbers in the program of fedala.
UNOPTIMISED = {"xla_backend_optimization_level": 0}

Values = Mapping[str, Any]


class Setting(NamedTuple):
    """Who trains what, in one precision."""

    task: Task
    federation: Federation
    local: Local


class Single(NamedTuple):
    """What single precision says: the objective, and its derivatives in every float, by name.

    Attributes:
      value: ``[]``.
      reverse: like the values.
      small: reverse mode of ``SMALL`` times the objective, divided by ``SMALL``.
      forward: along ``along`` of each float, ``[]``; None where a loop has no forward mode (``repeat`` of ``loops``).
    """

    value: Any
    reverse: dict[str, np.ndarray]
    small: dict[str, np.ndarray]
    forward: dict[str, np.ndarray] | None


class Double(NamedTuple):
    """What double precision says: reverse mode, and central differences along ``along`` of each float."""

    value: float
    reverse: dict[str, np.ndarray]
    differences: dict[str, float]


def tiny(mode: str, dtype: Any) -> Setting:
    """The tiny federation, with the start of single precision."""
    start = logistic_regression().init
    task = logistic_regression(dtype)._replace(init=lambda key: trees.cast(start(key), dtype))
    return Setting(task, tiny_federation(dtype=dtype), MODES[mode])


def digits(clients: int, dtype: Any) -> Setting:
    """Logistic regression on digits, with clients that are alike."""
    found = data.load("digits")
    assert found.classes is not None
    width, mean, std = math.prod(found.x.shape[1:]), np.asarray(found.mean, dtype), np.asarray(found.std, dtype)

    classes = found.classes

    def start(key: Any) -> Linear:
        weight = 0.1 * jax.random.normal(key, (width, classes), jnp.float32)
        return Linear(weight, jnp.zeros(classes, jnp.float32))

    task = logistic_regression(dtype)._replace(
        init=lambda key: trees.cast(start(key), dtype),
        prepare=lambda x: ((x.astype(dtype) / 255 - mean) / std).reshape(x.shape[0], -1),
        classes=classes,
        width=classes,
    )
    federation = data.federate(found, "iid", clients=clients, test="global", valid_fraction=0.2, held_fraction=0.1)
    return Setting(task, federation, Local(0.05, 16, steps=5))


def values_of(name: str, setting: Setting, dtype: Any) -> dict[str, np.ndarray]:
    """Every float of an algorithm, and the clients' learning rate: numbers of single precision."""
    clients = setting.federation.clients.id.shape[0]
    found = {key: np.asarray(value, np.float32) for key, value in numbers(ALGORITHMS[name]).items()}
    found = {key: np.resize(value, clients) if value.shape == (POPULATION,) else value for key, value in found.items()}
    found[RATE] = np.asarray(setting.local.learning_rate, np.float32)
    return {key: value.astype(dtype) for key, value in found.items()}


def objective(name: str, setting: Setting, **options: Any) -> Callable[[Values], Any]:
    """A weighted sum of the clients' test losses after two rounds, as a function of the floats."""
    case, (task, federation, local) = ALGORITHMS[name], setting
    clients = federation.clients.id.shape[0]
    weight = 1 + jnp.arange(clients) % 5

    def loss(values: Values) -> Any:
        given = {key: value for key, value in values.items() if key != RATE}
        arguments = with_numbers(case, given) | options
        algorithm = case.build(task, local._replace(learning_rate=values[RATE]), **arguments)
        state, _ = rollout(algorithm, federation, rounds=ROUNDS)
        found = evaluate_state(algorithm, by_id(federation), Layout(clients, 1, clients), state, jnp.int32(ROUNDS))
        losses = unlabelled(found)["test_loss"]
        return jnp.vdot(losses, weight.astype(losses.dtype))

    return loss


def along(value: np.ndarray) -> np.ndarray:
    """The direction in which a float is moved."""
    return np.random.default_rng(0).uniform(0.5, 1, value.shape).astype(np.float32).astype(value.dtype)


def single(loss: Callable[[Values], Any], values: Values) -> Single:
    """Derivatives in single precision: one compiled program, and another one for forward mode."""

    def backward(values: Values) -> Any:
        value, pull = jax.vjp(loss, values)
        return value, jax.vmap(pull)(jnp.asarray([1, SMALL], value.dtype))[0]

    value, found = jax.jit(backward, compiler_options=UNOPTIMISED)(values)
    reverse = {key: np.asarray(each[0]) for key, each in found.items()}
    small = {key: np.asarray(each[1]) / np.float32(SMALL) for key, each in found.items()}
    return Single(value, reverse, small, _forward(loss, values))


def _forward(loss: Callable[[Values], Any], values: Values) -> dict[str, np.ndarray] | None:
    directions = {key: np.zeros((len(values), *np.shape(value)), np.float32) for key, value in values.items()}
    for row, (key, value) in enumerate(values.items()):
        directions[key][row] = along(value)

    def push(values: Values, directions: Values) -> Any:
        return jax.vmap(lambda each: jax.jvp(loss, (values,), (each,))[1])(directions)

    try:
        found = jax.jit(push, compiler_options=UNOPTIMISED)(dict(values), directions)
    except (TypeError, AlgorithmError) as error:  # the latter where an unseen client trains
        if "forward-mode" not in str(error):
            raise
        return None
    return dict(zip(values, np.asarray(found), strict=True))


def double(loss: Callable[[Values], Any], values: Values) -> Double:
    """Derivatives in double precision; call it under ``enable_x64``."""
    forward = jax.jit(loss, compiler_options=UNOPTIMISED)
    value, slopes = jax.jit(jax.value_and_grad(loss), compiler_options=UNOPTIMISED)(dict(values))
    differences = {}
    for key, at in values.items():
        step = step_of(at)
        ahead, behind = (forward({**values, key: at + sign * step * along(at)}) for sign in (1, -1))
        differences[key] = float(ahead - behind) / (2 * step)
    return Double(float(value), {key: np.asarray(each) for key, each in slopes.items()}, differences)


def step_of(value: np.ndarray) -> float:
    """The step of central differences in double precision."""
    return 1e-5 * max(float(np.abs(value).max()), 1e-3)


@functools.cache
def both(name: str, where: str) -> tuple[Single, Double]:
    """The derivatives of an algorithm in both precisions; ``where`` is "steps", "epochs" or a number of clients."""

    def made(dtype: Any) -> tuple[Callable[[Values], Any], Values]:
        if where in MODES:
            setting, options = tiny(where, dtype), {}
        else:  # all clients take part
            setting = digits(int(where), dtype)
            options = {"clients_per_round": int(where)} if "clients_per_round" in ALGORITHMS[name].example else {}
        return objective(name, setting, **options), values_of(name, setting, dtype)

    first = single(*made(np.float32))
    with enable_x64(True):
        return first, double(*made(np.float64))


def apart(found: Any, expected: Any) -> float:
    """The largest difference by the largest entry of what is expected; 0 if both are zero."""
    difference = float(np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max())
    largest = float(np.abs(expected).max())
    return difference if largest == 0 else difference / largest
