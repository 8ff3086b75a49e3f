"""Packages whose names are imported at first use."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import pathlib
from typing import Any

import pytest

from fljax.core.lazy import at_first_use


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


class _Loader:
    """As that of pytest, which rewrites assertions: without get_source."""

    def get_data(self, path: str) -> bytes:
        return pathlib.Path(path).read_bytes()


def test_any_loader_that_reads_files_is_enough() -> None:
    import fljax.metrics

    loader: Any = _Loader()
    spec = importlib.machinery.ModuleSpec("fljax.metrics", loader, origin=fljax.metrics.__file__)
    get, names = at_first_use(spec)
    assert names() == dir(fljax.metrics)
    assert get("SCORES") is fljax.metrics.SCORES
    compiled = importlib.machinery.ModuleSpec("fljax.metrics", loader, origin="fljax/metrics/__init__.pyc")
    with pytest.raises(ImportError, match=r"expected the source of fljax\.metrics, got .*pyc"):
        at_first_use(compiled)[1]()
