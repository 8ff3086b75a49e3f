"""Law 26: records of one name have the same dimensions in all algorithms, so that results of several can be joined."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, initial_state
from tests.laws.cases import CASES, LOCAL, TASK, federation

# Run folders of before have these: AFL's beside FedEM's, and MW-Fed's beside that of the scenario.
KNOWN = {"mixture": {("client",), ("row", "cluster")}, "effort": {("row",), ("client",)}}


@pytest.mark.thorough
def test_law_26_records_of_one_name_have_the_same_dimensions() -> None:
    data, found = by_id(federation()), defaultdict[str, set[tuple[str, ...]]](set)
    for case in CASES.values():
        algorithm = case.build(TASK, LOCAL, **case.example)

        def one(algorithm: Any = algorithm) -> Any:
            return one_round(algorithm, data, Layout(1, 1, 1), initial_state(algorithm, data, jnp.uint32(0)))[1]

        for name, record in jax.eval_shape(one).items():
            found[name].add(getattr(record, "dimensions", ()))
    assert {name: dimensions for name, dimensions in found.items() if len(dimensions) > 1} == KNOWN
