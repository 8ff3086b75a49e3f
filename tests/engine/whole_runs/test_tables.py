"""Measures on the host: names, dimensions, and NaN for runs that diverged."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fljax.engine.whole_runs.program import RunEnd
from fljax.engine.whole_runs.saved import computed_rows, empty_table, enter, labelled_table, measure_kinds
from fljax.protocol import along

END = RunEnd(
    {
        "count": np.arange(4),
        "matrix": jnp.ones((4, 2, 3), jnp.bfloat16),
        **along("client", loss=np.arange(20, dtype=np.float32).reshape(4, 5)),
    },
    np.array([False, True, False, False]),
)


def test_measures_become_floats_with_names() -> None:
    kinds = measure_kinds(END)
    assert {name: (kind.shape, np.dtype(kind.dtype).name, kind.dimensions) for name, kind in kinds.items()} == {
        "count": ((), "float64", ()),
        "matrix": ((2, 3), "float32", ("matrix_axis_0", "matrix_axis_1")),
        "loss": ((5,), "float32", ("client",)),
    }


def test_rows_go_to_their_places_and_diverged_ones_are_unknown() -> None:
    kinds = measure_kinds(END)
    table = empty_table(kinds, 6)
    enter(table, computed_rows(END, np.array([5, 0, 3])))  # the fourth row was not computed
    assert table.left.tolist() == [False, True, True, False, True, False]
    found = labelled_table(table, kinds, (7, 9), np.ones((3, 5), bool))
    assert found["count"].dims == ("run", "seed")
    np.testing.assert_array_equal(found["count"], [[np.nan, np.nan], [np.nan, 2], [np.nan, 0]])
    np.testing.assert_array_equal(found["loss"].sel(seed=9, run=2), END.measures["loss"].values[0])
    assert found["diverged"].values.tolist() == [[True, False], [False, False], [False, False]]
    assert found["member"].dims == ("run", "client")
