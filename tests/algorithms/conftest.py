"""Both precisions, for equalities that are exact but for rounding."""

from __future__ import annotations

import pytest

from tests.precision import enable_x64


@pytest.fixture(params=[pytest.param(1e-6, marks=pytest.mark.thorough), 1e-12], ids=["single", "double"])
def exact(request):
    """The tolerance: in single precision, then in double."""
    with enable_x64(request.param == 1e-12):
        yield request.param


@pytest.fixture(params=[pytest.param("single", marks=pytest.mark.thorough), "double"])
def tolerance(request):
    """That of rounds against NumPy: in single precision, then in double."""
    with enable_x64(request.param == "double"):
        yield 1e-10 if request.param == "double" else 1e-5
