"""Examples as vectors: they are read as the array that they stand for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.protocol import Vectors


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2), (5, 4, 3, 2), (0, 3), (3, 0)])
def test_they_are_the_array(shape: tuple[int, ...]) -> None:
    x = jnp.arange(np.prod(shape)).reshape(shape)
    found: Any = Vectors.of(x)
    assert Vectors.of(found) is found
    assert (found.shape, found.ndim, found.dtype, len(found)) == (x.shape, x.ndim, x.dtype, len(x))
    for index in (slice(2), None, Ellipsis, (None, Ellipsis), (slice(2), *[0] * (x.ndim - 1)) if x.size else ()):
        np.testing.assert_array_equal(found[index], x[index])
    np.testing.assert_array_equal(jnp.asarray(found), x)
    np.testing.assert_array_equal(np.asarray(found), x)
    assert len(list(found)) == len(x)
    np.testing.assert_array_equal(
        jax.jit(lambda x: jnp.sum(x) + jnp.ones(x.shape, int))(found), x.sum() + jnp.ones(shape)
    )
    if len(x):
        rows = jnp.asarray([[1, 0], [2, 2]])
        np.testing.assert_array_equal(found[rows], x[rows])
        np.testing.assert_array_equal(jax.vmap(lambda row: found[row])(rows[0]), x[rows[0]])
        np.testing.assert_array_equal(jnp.take(found, rows, axis=0), x[rows])
