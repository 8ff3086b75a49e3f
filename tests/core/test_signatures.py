"""What is a whole number, for options that a user gives, and what the annotations of a builder are."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from fljax.core.values import annotations_of, is_whole


def test_whole_numbers_of_python_and_numpy() -> None:
    for value in (3, -1, np.int64(2), np.uint8(0)):
        assert is_whole(value)
    for value in (True, np.True_, 1.0, np.float32(1), "1", None, [1], np.array([1])):
        assert not is_whole(value)


def builder(size: Later, rate: float, other=3):  # type: ignore
    """A builder whose type is defined after its first use, as in the cells of a notebook."""


def test_an_annotation_may_be_resolved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (builder, functools.partial(builder)):
        assert annotations_of(call) == {"size": Any, "rate": float, "other": Any}
    monkeypatch.setitem(globals(), "Later", int)
    for call in (builder, functools.partial(builder)):
        known = annotations_of(call)
        assert known == {"size": int, "rate": float, "other": Any}
        known.clear()  # a copy, so that the next caller has all
        assert annotations_of(call) == {"size": int, "rate": float, "other": Any}
