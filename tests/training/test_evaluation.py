"""Evaluation of long lists of rows, part by part."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fljax import training
from tests.local_tools import KEY, examples, logistic_task, subset


@pytest.mark.parametrize("ragged", [False, True])
def test_the_parts_of_a_long_list_are_traced_once(ragged):
    """For the shapes of the sums and for the loop over parts."""
    task, rows = logistic_task(), subset(range(5), 3 * training.AT_ONCE)
    params, seen = task.init(KEY), []

    def predict(x):
        seen.append(x.shape)
        return task.logits(params, x)

    jax.make_jaxpr(lambda rows: training.evaluate(task, predict, rows, ragged=ragged))(rows)
    assert len(seen) == 1


@pytest.mark.thorough
def test_parts_without_rows_are_left_out():
    """Also where ``jax.jit`` is off: only the part with rows is computed, after the shapes are known."""
    task, rows = logistic_task(), subset(range(5), 3 * training.AT_ONCE)
    params, data = task.init(KEY), examples()
    expected = task.loss(task.logits(params, data.x[:5]), data.y[:5]).mean()
    for off in (False, True):
        with jax.disable_jit(off):
            loss, _ = training.evaluate(task, lambda x: task.logits(params, x), rows, ragged=True)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
