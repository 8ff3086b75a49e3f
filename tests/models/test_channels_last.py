"""Convolution as a product of tiles: the values and gradients of XLA's own convolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import models
from fljax.models import channels_last
from tests import drawn
from tests.laws.compare import assert_close
from tests.platforms import forms_of
from tests.precision import enable_x64

NUMBERS = ("NHWC", "HWIO", "NHWC")


def _slopes(convolve: Any, x: Any, kernel: Any) -> Any:
    return jax.jit(jax.value_and_grad(lambda x, k: jnp.sum(jnp.sin(convolve(x, k))), (0, 1)))(x, kernel)


def _assert_equal(height: int, width: int, size: tuple[int, int], padding: Any, side: int) -> None:
    generator = np.random.default_rng(0)
    with enable_x64(True):
        x, kernel = generator.normal(size=(2, height, width, 3)), generator.normal(size=(*size, 3, 4))
        found = _slopes(lambda x, k: channels_last.convolve_by_tiles(x, k, padding, side), x, kernel)
        expected = _slopes(lambda x, k: channels_last.convolve(x, k, (1, 1), padding), x, kernel)
        assert_close(found, expected, 1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("side", channels_last.SIDES)
@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0), (0, 2))])
def test_tiles_convolve(padding: Any, side: int) -> None:
    _assert_equal(7, 9, (3, 2), padding, side)


@drawn.at_most(25)  # each compiles programs for its sizes
@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(["VALID", "SAME"]),
    st.sampled_from(channels_last.SIDES),
)
@pytest.mark.thorough
def test_tiles_convolve_images_and_kernels_of_all_sizes(more_rows, more_columns, size, padding, side):
    _assert_equal(size[0] + more_rows - 1, size[1] + more_columns - 1, size, padding, side)


def test_the_side_is_the_measured_one_for_lenet() -> None:
    # LeNet's sides are those that were measured on an H100 (benchmarks/results, 2026-11-26).
    assert (channels_last.tile_side((5, 5, 3, 6), 28, 28), channels_last.tile_side((5, 5, 6, 16), 10, 10)) == (4, 2)
    assert channels_last.tile_side((3, 3, 512, 512), 4, 4) == 1  # the product takes longer than the memory
    assert channels_last.tile_side((1, 1, 64, 128), 16, 16) == 1


def test_strides_are_those_of_patches() -> None:
    x, kernel = jnp.arange(2.0 * 7 * 8 * 3).reshape(2, 7, 8, 3) / 100, jnp.ones((3, 2, 3, 4))
    found = channels_last.convolve_tiles(x, kernel, (2, 1), "SAME")
    np.testing.assert_allclose(found, channels_last.convolve(x, kernel, (2, 1), "SAME"), rtol=1e-5)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_padding_may_be_negative(platform: str, strides: tuple[int, int]) -> None:
    x, kernel = jnp.arange(2.0 * 7 * 8 * 3).reshape(2, 7, 8, 3) / 100, jnp.ones((3, 2, 3, 4))
    padding = [(-1, -1), (0, 2)]
    with forms_of(platform):
        found = jax.jit(lambda x, k: models.convolution(x, k, strides, padding, dimension_numbers=NUMBERS))(x, kernel)
    np.testing.assert_allclose(found, channels_last.convolve(x, kernel, strides, padding), rtol=1e-5)


def test_images_without_channels_have_no_product() -> None:
    found = channels_last.convolve_tiles(jnp.zeros((2, 5, 5, 0)), jnp.zeros((3, 3, 0, 4)))
    np.testing.assert_array_equal(found, jnp.zeros((2, 3, 3, 4)))


@pytest.mark.thorough
def test_gradients_of_half_precision_are_added_in_single_precision() -> None:
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(8, 16, 16, 3)), jnp.bfloat16)
    kernel, weight = (jnp.asarray(generator.normal(size=size)) for size in ((5, 5, 3, 6), (8, 12, 12, 6)))

    def error(convolve: Any) -> float:
        slope = lambda k: jnp.sum(convolve(x, k.astype(jnp.bfloat16)).astype(jnp.float32) * weight)  # noqa: E731
        wide = lambda k: jnp.sum(channels_last.convolve(x.astype(jnp.float32), k) * weight)  # noqa: E731
        expected = jax.grad(wide)(kernel)
        return float(jnp.linalg.norm(jax.grad(slope)(kernel) - expected) / jnp.linalg.norm(expected))

    patches = error(channels_last.convolve_patches)
    assert error(lambda x, k: channels_last.convolve_by_tiles(x, k, "VALID", 4)) < 1.3 * patches
