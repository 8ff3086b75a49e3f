"""Examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pathlib

import pytest

import fljax

ROOT = pathlib.Path(fljax.__file__).parent
MODULES = sorted(
    ".".join(("fljax", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_protocol_has_a_complete_example() -> None:
    assert "fljax.types.protocol" in MODULES
