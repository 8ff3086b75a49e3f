"""Precision that several files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.precision import enable_x64


@pytest.fixture
def strict_float64(strict: None) -> Iterator[None]:
    with enable_x64(True):
        yield
