"""Strict switches for every test, and data that many tests share."""

from __future__ import annotations

import jax
import pytest

from tests.precision import enable_x64

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update(
    "jax_num_cpu_devices", 2
)  # so that clients are really spread in every test that does not say otherwise


@pytest.fixture
def x64():
    """Double precision for one test."""
    with enable_x64(True):
        yield


@pytest.fixture(scope="module")
def quick_compilation():
    """For files of tiny programs: compiling them costs far more than running them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
