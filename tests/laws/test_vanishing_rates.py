"""A learning rate that ``decay`` brings to zero stops training, and no seed diverges by it."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fljax import engine
from tests.laws.cases import ALGORITHMS, LOCAL, TASK, chosen, federation


# 1e-41 is no normal number of float32 in round 2, 1e-61 is zero.
@pytest.mark.parametrize("decay", [1e-20, pytest.param(1e-30, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("scaffold", "qffl")))
def test_no_seed_diverges(name: str, decay: float) -> None:
    case = ALGORITHMS[name]
    algorithm = case.build(TASK, LOCAL._replace(decay=decay), **case.example)
    found = engine.simulate(algorithm, federation(), rounds=4)
    assert found.diverged == ()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.state.server) if leaf.dtype.kind == "f")
