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


@pytest.mark.thorough
def test_law_26_records_of_one_name_have_the_same_dimensions() -> None:
    data = by_id(federation())
    found: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for label, case in CASES.items():
        algorithm = case.build(TASK, LOCAL, **case.example)

        def one(algorithm: Any = algorithm) -> Any:
            return one_round(algorithm, data, Layout(1, 1, 1), initial_state(algorithm, data, jnp.uint32(0)))[1]

        for name, record in jax.eval_shape(one).items():
            found[name][getattr(record, "dimensions", ())].append(label)
    assert {"weight", "mixture", "cohort_id"} <= found.keys()
    assert {name: dict(dimensions) for name, dimensions in found.items() if len(dimensions) > 1} == {}
