"""Strict switches for every test, and data that many tests share."""

from __future__ import annotations

import jax
import pytest

from tests.precision import enable_x64

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Double precision for one test."""
    with enable_x64(True):
        yield
