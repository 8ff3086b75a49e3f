"""The tiny federation."""

from __future__ import annotations

import pytest

from fljax.protocol import Federation
from tests.toys.federation import tiny_federation


@pytest.fixture(scope="package")
def federation() -> Federation:
    return tiny_federation()
