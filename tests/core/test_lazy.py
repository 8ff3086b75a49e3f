"""Packages whose names are imported at first use."""

from __future__ import annotations

import importlib
import inspect

import pytest


@pytest.mark.parametrize("package", ["fljax", "fljax.metrics", "fljax.report", "fljax.results"])
def test_every_name_is_found_and_listed(package: str) -> None:
    face = importlib.import_module(package)
    assert len(dir(face)) > 20
    for name in dir(face):
        value = getattr(face, name)
        assert inspect.ismodule(value) or getattr(value, "__name__", name) == name
    for name in ("pictures", "_names"):
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
            getattr(face, name)
