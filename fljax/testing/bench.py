"""The programs that the laws of one algorithm share, on the tiny federation, and how they are compiled quickly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from fljax import engine
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import State, by_id, initial_state
from fljax.protocol import Algorithm, Available, Cohort, Federation, Task, unlabelled
from fljax.results import Result
from fljax.testing.federation import logistic_regression, tiny_federation
from fljax.training import Local

POPULATION = 5
ROUNDS = 2
SIDE_BY_SIDE = Layout(16, 1, 16)
TASK = logistic_regression()
LOCAL = Local(learning_rate=0.2, batch_size=2, steps=3)

# The switch to double precision, under the name that this JAX has for it.
enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # type: ignore


@runtime_checkable
class Example(Protocol):
    """An algorithm with example arguments: ``build(task, local, **example)``."""

    # ``signature`` is the builder that has these options as parameters, where a scenario wraps it; None: ``build``.

    @property
    def build(self) -> Callable[..., Algorithm]: ...

    @property
    def example(self) -> Mapping[str, Any]: ...

    @property
    def signature(self) -> Callable[..., Algorithm] | None: ...


class Case(NamedTuple):
    """An ``Example`` as a value."""

    build: Callable[..., Algorithm]
    example: Mapping[str, Any] = {}
    signature: Callable[..., Algorithm] | None = None


@functools.cache
def quick_options() -> dict[str, Any] | None:
    """Compiler options with which tiny programs compile three times faster; None where XLA does not know them."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.default_backend() == "cpu":
        options["xla_cpu_use_fusion_emitters"] = False
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(0)
    except Exception:
        return None
    return options


@functools.cache
def federation() -> Federation:
    """The tiny federation in single precision."""
    return tiny_federation()


def is_float(value: Any) -> bool:
    """A float, or a sequence or an array of floats."""
    return bool(jnp.issubdtype(np.asarray(value).dtype, jnp.floating)) if value is not None else False


def numbers(case: Example) -> dict[str, Any]:
    """Every hyper-parameter that is a float, by default or in the example, as arrays; in records by dotted name."""
    arrays = {}
    for name, value in arguments(case).items():
        fields = (
            {f"{name}.{key}": field for key, field in value._asdict().items()} if is_record(value) else {name: value}
        )
        floats = {key: field for key, field in fields.items() if not isinstance(field, str) and is_float(field)}
        arrays |= {key: jnp.asarray(number, jnp.float32) for key, number in floats.items()}
    return arrays


def arguments(case: Example) -> dict[str, Any]:
    """Every argument that has a default or stands in the example."""
    parameters = inspect.signature(case.signature or case.build).parameters
    values = {name: case.example.get(name, parameter.default) for name, parameter in parameters.items()}
    return {name: value for name, value in values.items() if value is not inspect.Parameter.empty}


def is_record(value: Any) -> bool:
    """Whether a value is a NamedTuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def with_numbers(case: Example, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the example with other numbers, given by the names of ``numbers``."""
    example, every = dict(case.example), arguments(case)
    for key, value in numbers.items():
        name, _, field = key.partition(".")
        example[name] = example.get(name, every[name])._replace(**{field: value}) if field else value
    return example


class Controls(NamedTuple):
    """What the laws do to a cohort after the algorithm has selected it."""

    order: jax.Array  # [S] permutation of the rows
    present: jax.Array  # [S] rows that may stay


def controlled(algorithm: Algorithm, controls: Controls) -> Algorithm:
    """Reorders the rows of the cohort, and clears some of them first."""

    def select(*arguments: Any) -> Any:
        server, cohort, info = algorithm.select(*arguments)
        cohort = cohort._replace(present=cohort.present & controls.present)
        return server, Cohort(*(leaf[controls.order] for leaf in cohort)), info

    return algorithm._replace(select=select)


class Bench:
    """The programs of one case; every law of the case runs them, so that each is compiled once."""

    def __init__(self, case: Example) -> None:
        self.case = case
        self.numbers = numbers(case)
        self.traces = 0
        self.init = jax.jit(self._init, compiler_options=quick_options())
        self.step = jax.jit(self.round, compiler_options=quick_options())
        self.evaluate = jax.jit(self._evaluate, compiler_options=quick_options())
        self.plan = engine.Plan(self._build, {"task": TASK, "local": LOCAL, **with_numbers(case, self.numbers)})
        self.rows: int = jax.eval_shape(self._cohort, federation()).id.shape[0]
        self.all = Controls(jnp.arange(self.rows), jnp.ones(self.rows, bool))
        self.everybody = jnp.ones(POPULATION, bool)

    def _build(self, task: Task, local: Local, **hyper_parameters: Any) -> Algorithm:
        self.traces += 1
        return self.case.build(task, local, **hyper_parameters)

    def algorithm(self, numbers: dict[str, Any] | None = None, task: Task = TASK) -> Algorithm:
        """The case's algorithm, with other numbers if there are any."""
        return self._build(task, LOCAL, **with_numbers(self.case, numbers or {}))

    def _cohort(self, data: Federation) -> Cohort:
        algorithm, data = self.algorithm(), by_id(data)
        state = initial_state(algorithm, data, jnp.uint32(0))
        everybody = Available(POPULATION)
        return algorithm.select(jax.random.key(0), jnp.int32(0), state.server, state.ballots, everybody)[1]

    def _init(self, numbers: Any, data: Federation, seed: Any) -> State:
        return initial_state(self.algorithm(numbers), by_id(data), seed)

    def round(
        self,
        numbers: Any,
        data: Federation,
        state: State,
        available: Any,
        controls: Controls,
        *,
        layout: Layout = SIDE_BY_SIDE,
    ) -> Any:
        """One round, not compiled."""
        algorithm = controlled(self.algorithm(numbers), controls)
        return engine.one_round(algorithm, by_id(data), layout, state, available=available)

    def _evaluate(self, numbers: Any, data: Federation, state: State, round: Any) -> Any:
        return unlabelled(evaluate_state(self.algorithm(numbers), by_id(data), SIDE_BY_SIDE, state, round))

    def whole(self, numbers: Any, data: Federation, seed: Any, rounds: Any) -> State:
        """A run from its seed, not compiled."""
        algorithm, data = self.algorithm(numbers), by_id(data)

        def step(round: Any, state: State) -> State:
            return engine.one_round(algorithm, data, SIDE_BY_SIDE, state, round)[0]

        return jax.lax.fori_loop(jnp.int32(0), rounds, step, initial_state(algorithm, data, seed))

    def simulate(self, **arguments: Any) -> Result:
        """``simulate`` as the laws call it: clients one by one, seeds side by side, always the same programs."""
        arguments = {"seeds": (0, 3), "evaluate_every": ROUNDS} | arguments
        return engine.simulate(
            arguments.pop("plan", self.plan),
            federation(),
            execution=engine.Execution("scan", "vmap", "vmap"),
            **arguments,
        )

    def start(self, data: Federation | None = None, seed: int = 0) -> State:
        """The state before round 0."""
        return self.init(self.numbers, federation() if data is None else data, jnp.uint32(seed))

    def run(
        self,
        state: State,
        *,
        data: Federation | None = None,
        available: Any = None,
        controls: Controls | None = None,
        rounds: int = ROUNDS,
    ) -> State:
        """The state after some rounds."""
        for _ in range(rounds):
            state, _ = self.step(
                self.numbers,
                federation() if data is None else data,
                state,
                self.everybody if available is None else available,
                self.all if controls is None else controls,
            )
        return state

    def judge(self, state: State, data: Federation | None = None, round: int | None = None) -> dict[str, Any]:
        """Metrics of all clients, with the randomness of a given round."""
        at = state.round if round is None else jnp.int32(round)
        return self.evaluate(self.numbers, federation() if data is None else data, state, at)
