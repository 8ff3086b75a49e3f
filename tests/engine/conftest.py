"""Tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.toys.quick import quick_programs


@pytest.fixture(scope="package", autouse=True)
def _quick() -> Iterator[None]:
    with quick_programs():
        yield
