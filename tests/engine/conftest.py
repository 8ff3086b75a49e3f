"""Tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fljax.engine.programs import jit
from fljax.protocol import Federation
from tests.toys.federation import tiny_federation
from tests.toys.quick import quick_programs


@pytest.fixture(scope="package", autouse=True)
def _quick() -> Iterator[None]:
    with quick_programs():
        yield


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Five clients and two unseen ones."""
    return tiny_federation()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that are made from here on."""
    names: list[str] = []
    fresh = jit.Program._fresh

    def noted(self: Any, options: dict[str, Any]) -> Any:
        names.append(self.__name__)
        return fresh(self, options)

    monkeypatch.setattr(jit.Program, "_fresh", noted)
    return names
