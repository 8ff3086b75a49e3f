"""What is a whole number, for options that a user gives."""

from __future__ import annotations

import numpy as np

from fljax.core.signatures import is_whole


def test_whole_numbers_of_python_and_numpy() -> None:
    for value in (3, -1, np.int64(2), np.uint8(0)):
        assert is_whole(value)
    for value in (True, np.True_, 1.0, np.float32(1), "1", None, [1], np.array([1])):
        assert not is_whole(value)
