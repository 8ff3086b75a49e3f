"""The program that judges the global models of all algorithms gives the bits of the algorithm's own evaluation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.engine.loop import compilation
from fljax.engine.programs import program
from fljax.protocol import unlabelled
from tests.laws.cases import ALGORITHMS, LOCAL, TASK, Case, chosen, federation


def _is_global(case: Case) -> bool:
    algorithm = case.build(TASK, LOCAL, **case.example)
    return algorithm.common is not None and algorithm.personal is None and algorithm.models is None


# Most optimisations change no claim here, and take long.
pytestmark = pytest.mark.usefixtures("quick_compilation")
GLOBAL = [name for name, case in ALGORITHMS.items() if _is_global(case)]


@pytest.mark.parametrize("name", chosen(GLOBAL, quick=()))
def test_scores_after_rounds_are_those_of_the_algorithm(name: str) -> None:
    """After rounds, the copies of a model at a Server differ."""
    case = ALGORITHMS[name]
    plan = engine.Plan(case.build, {"task": TASK, "local": LOCAL, **case.example})
    prepared = compilation.Together.of([plan], federation(), engine.Schedule(2, seeds=2)).on()
    run: Any = compilation.programs_of(prepared)
    assert run.spec.global_model is not None
    state, _ = run.rounds(run.start(), 0, 2)
    found = unlabelled(run.evaluate(state, 2))
    own = program.evaluate_runs(run.spec._replace(global_model=None), run.layout, run.inputs, state, jnp.int32(2))
    expected = unlabelled(own)
    assert found.keys() == expected.keys()
    for metric, scores in found.items():
        np.testing.assert_array_equal(scores, expected[metric], err_msg=metric)
