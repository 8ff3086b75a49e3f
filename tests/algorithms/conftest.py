"""Both precisions, for equalities that are exact but for rounding."""

from __future__ import annotations

import pytest

from tests.precision import enable_x64


@pytest.fixture(params=[pytest.param(1e-6, marks=pytest.mark.thorough), 1e-12], ids=["single", "double"])
def exact(request):
    """The tolerance: in single precision, then in double."""
    with enable_x64(request.param == 1e-12):
        yield request.param
