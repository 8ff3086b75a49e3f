"""Checksums of traced programs, which several processes compare."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.engine.programs.shapes import checksum_of_programs


def checksum(constant: Any, power: int = 2) -> int:
    """Of a program that holds a constant and names a function, which has another address in each call."""

    def added(x: Any) -> Any:
        chosen = jax.lax.cond(x.sum() > 0, lambda x: x**power, lambda x: x, x)
        return chosen + constant

    return checksum_of_programs([jax.jit(added).trace(jnp.ones(3))])


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_programs_are_equal_if_text_and_constants_are(array: Any) -> None:
    one = checksum(array([1.0, 2.0, 3.0], np.float32))
    assert one == checksum(array([1.0, 2.0, 3.0], np.float32))
    assert one != checksum(array([1.0, 2.0, 4.0], np.float32))
    assert one != checksum(array([1.0, 2.0, 3.0], np.float32), power=3)
