"""Convolution as a product of tiles: the values and gradients of XLA's own convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.models import channels_last, tiles
from tests.precision import enable_x64


def _slopes(convolve: Any, x: Any, kernel: Any) -> Any:
    return jax.value_and_grad(lambda x, k: jnp.sum(jnp.sin(convolve(x, k))), (0, 1))(x, kernel)


def _assert_equal(height: int, width: int, size: tuple[int, int], padding: Any, side: int) -> None:
    generator = np.random.default_rng(0)
    with enable_x64(True):
        x, kernel = generator.normal(size=(2, height, width, 3)), generator.normal(size=(*size, 3, 4))
        found = _slopes(lambda x, k: tiles.convolve(x, k, padding, side), x, kernel)
        expected = _slopes(lambda x, k: channels_last.convolve(x, k, (1, 1), padding), x, kernel)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("side", tiles.SIDES)
@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0), (0, 2))])
def test_tiles_convolve(padding: Any, side: int) -> None:
    _assert_equal(7, 9, (3, 2), padding, side)


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(["VALID", "SAME"]),
    st.sampled_from(tiles.SIDES),
)
@pytest.mark.thorough
def test_tiles_convolve_images_and_kernels_of_all_sizes(
    more_rows: int, more_columns: int, size: tuple[int, int], padding: str, side: int
) -> None:
    _assert_equal(size[0] + more_rows - 1, size[1] + more_columns - 1, size, padding, side)


def test_an_image_smaller_than_the_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 5 pixels, got 4"):
        tiles.convolve(jnp.zeros((1, 4, 6, 1)), jnp.zeros((5, 5, 1, 2)), "VALID", 2)


def test_the_side_is_the_measured_one_for_lenet() -> None:
    # On an H100, sides 4 and 2, or 4 and 4, were the fastest ones (benchmarks/results, 2026-11-26).
    assert tiles.tile_side((5, 5, 3, 6), 28, 28) == 4
    assert tiles.tile_side((5, 5, 6, 16), 10, 10) == 2
    assert tiles.tile_side((3, 3, 512, 512), 4, 4) == 1  # the product takes longer than the memory
    assert tiles.tile_side((1, 1, 64, 128), 16, 16) == 1


def test_strides_are_those_of_patches() -> None:
    x, kernel = jnp.arange(2.0 * 7 * 8 * 3).reshape(2, 7, 8, 3) / 100, jnp.ones((3, 2, 3, 4))
    found = channels_last.convolve_tiles(x, kernel, (2, 1), "SAME")
    np.testing.assert_allclose(found, channels_last.convolve(x, kernel, (2, 1), "SAME"), rtol=1e-5)
