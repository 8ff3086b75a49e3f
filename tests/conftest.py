"""Strict switches for every test, and data that many tests share."""

from __future__ import annotations

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Double precision for one test."""
    switch = getattr(jax, "enable_x64", None)
    if switch is None:  # older JAX
        from jax.experimental import enable_x64 as switch  # type: ignore
    with switch(True):
        yield
