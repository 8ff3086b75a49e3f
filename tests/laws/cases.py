"""What the laws are tested on, and the compiled programs that the laws of one case share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import pytest

from fljax import algorithms, scenarios
from fljax.contributions import RoundMeasure
from fljax.protocol import Algorithm, Task
from fljax.testing.bench import (
    LOCAL,
    POPULATION,
    ROUNDS,
    SIDE_BY_SIDE,
    TASK,
    Bench,
    Controls,
    controlled,
    federation,
    numbers,
    with_numbers,
)
from fljax.training import Local
from tests.toys.clusters import clusters
from tests.toys.control_variates import control_variates
from tests.toys.models_per_client import models_per_client

__all__ = [
    "ALGORITHMS",
    "CASES",
    "COMPOSED",
    "EIGHT",
    "LOCAL",
    "PAIRS",
    "PAIRS_SLOW",
    "POPULATION",
    "QUICK_PAIRS",
    "REFUSED",
    "ROUNDS",
    "SIDE_BY_SIDE",
    "SLOW",
    "TASK",
    "TOYS",
    "UNLIKE",
    "VARIANTS",
    "Bench",
    "Case",
    "Controls",
    "bench",
    "chosen",
    "controlled",
    "federation",
    "numbers",
    "with_numbers",
    "wrapped",
]


class Case(NamedTuple):
    """An algorithm with example arguments."""

    build: Callable[..., Algorithm]
    example: dict[str, Any] = {}
    scenario: str | None = None
    algorithm: str = ""

    @property
    def signature(self) -> Callable[..., Algorithm]:
        """The builder that has the example's options as parameters."""
        return ALGORITHMS[self.algorithm].build


TOYS = {
    "models_per_client": Case(models_per_client, {"contribution": (1.0, 0.5, 0.8, 0.2, 0.6)}),
    "clusters": Case(clusters, {"poll_every": 2}),
    "control_variates": Case(control_variates),
}


def wrapped(case: Case, scenario: str, **options: Any) -> Case:
    """In a scenario with ``options``, or those of its example."""
    entry = scenarios.REGISTRY[scenario]

    def build(task: Task, local: Local, **hyper_parameters: Any) -> Algorithm:
        return entry.build(case.build(task, local, **hyper_parameters), **(options or entry.example))

    return case._replace(build=build, scenario=scenario)


def _algorithms() -> dict[str, Case]:
    found = {}
    for name, entry in algorithms.REGISTRY.items():
        example = dict(entry.example)
        if "clients_per_round" in inspect.signature(entry.build).parameters:
            example.setdefault("clients_per_round", 4)  # so that somebody is left out
        found[name] = Case(entry.build, example)
    return {name: case._replace(algorithm=name) for name, case in (found | TOYS).items()}


ALGORITHMS = _algorithms()
# Other forms of an algorithm, which differ in what the server or the clients keep; they are under the laws of ``CASES``
# alone.
_MEASURED = {"cosine": {"options": {"normalised": True}}, "fed_shapley": {"judged_by": "loss"}}
VARIANTS = {
    f"iafl_{measure}": ALGORITHMS["iafl"]._replace(
        example=ALGORITHMS["iafl"].example
        | {"contribution": RoundMeasure(measure, memory=0.5, filter_below=0.3, filter_after=1, **more)}
    )
    for measure, more in _MEASURED.items()
}


def _ditto_that_keeps(task: Task, local: Local, **hyper_parameters: Any) -> Algorithm:
    return algorithms.ditto(task, local._replace(options=(("momentum", 0.5),), keep=True), **hyper_parameters)


VARIANTS["ditto_keep"] = ALGORITHMS["ditto"]._replace(build=_ditto_that_keeps)
# Algorithms that add up no updates: ``robust`` refuses them.
_SINGLE = ("qffl", "iafl", "cgsv", "cgsv_iafl", "rank", "ipfl", "fedfomo", "fedproto", "standalone", *TOYS)
REFUSED = {f"robust({name})" for name in _SINGLE}
PAIRS = {
    f"{scenario}({name})": wrapped(case, scenario)
    for scenario in scenarios.REGISTRY
    for name, case in ALGORITHMS.items()
    if f"{scenario}({name})" not in REFUSED
}
# Scenarios inside each other, around everything.
COMPOSED = {
    f"finetuned(byzantine(appeal_based({name})))": functools.reduce(
        wrapped, ("appeal_based", "byzantine", "finetuned"), case
    )
    for name, case in ALGORITHMS.items()
}
PAIRS |= COMPOSED
# Every third pair is not slow, so that each scenario and each algorithm has its share, and so are four of the nested
# ones.
PAIRS_SLOW = {
    name for name, case in COMPOSED.items() if case.algorithm not in ("incfl", "scaffold", "pfedme", "mwfed")
} | {
    f"{scenario}({name})"
    for row, scenario in enumerate(scenarios.REGISTRY)
    for column, name in enumerate(ALGORITHMS)
    if (row + column) % 3 and f"{scenario}({name})" not in REFUSED
}
# Algorithms that differ in where models live: one at the server, one per client, clusters, private state. All laws hold
# for each scenario on these; every other pair is under the laws of test_pairs.py.
UNLIKE = ("fedavg", "models_per_client", "clusters", "standalone")
# Unlike algorithms of the registry: one model, weights by polls, models by client, states at both sides, no server,
# clusters that pay, a second model at each client, models of others at each client. The quick tests have the
# laws of test_laws.py on these, so that the laws of one algorithm share its programs; those of all other cases are
# thorough.
EIGHT = ("fedavg", "incfl", "iafl", "scaffold", "standalone", "ipfl", "ditto", "fedfomo")
CASES = ALGORITHMS | VARIANTS | {name: case for name, case in PAIRS.items() if case.algorithm in UNLIKE}
# Those that are left to the full product: of each scenario one or two of the four remain.
SLOW = {
    name
    for name, case in CASES.items()
    if case.scenario not in (None, "robust")
    and case.algorithm != UNLIKE[2 + list(scenarios.REGISTRY).index(case.scenario) % 2]
}

# Of each scenario one pair is quick.
QUICK_PAIRS = {
    next(
        f"{scenario}({name})"
        for name in (*EIGHT[row % len(EIGHT) :], *EIGHT, *ALGORITHMS)
        if f"{scenario}({name})" not in PAIRS_SLOW | REFUSED | (CASES.keys() - SLOW)
    )
    for row, scenario in enumerate(scenarios.REGISTRY)
}


def chosen(names: Iterable[str], quick: Container[str] = EIGHT, slow: Container[str] = SLOW) -> list[Any]:
    """Parameters of a test: those that are neither quick nor slow are thorough."""
    return [
        pytest.param(name, marks=pytest.mark.slow if name in slow else () if name in quick else pytest.mark.thorough)
        for name in names
    ]


@functools.cache
def bench(name: str) -> Bench:
    """The bench of a case, made once."""
    return Bench(CASES[name])
