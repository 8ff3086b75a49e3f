"""Labelled arrays as the bytes of one file."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import xarray as xr

from fljax.core.version import __version__
from fljax.results import stores
from tests.refusals import refuses


def test_groups_come_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.nc"
    root = xr.Dataset({"x": ("seed", np.arange(3.0))}, {"seed": [4, 5, 6]}, {"name": "µ"})
    inner = xr.Dataset({"y": ("label", np.array([1, 2], np.int8))}, {"label": ["a", "b"]})
    path.write_bytes(stores.encoded(root, {"inner": inner, "origin": stores.origin("x = 1")}))
    found = stores.read(path, ("inner", "origin"))
    xr.testing.assert_identical(found[0], root)
    xr.testing.assert_identical(found[1], inner)
    assert (str(found[2]["config"].values), str(found[2]["fljax"].values)) == ("x = 1", __version__)
    assert not found[1]["y"].encoding


def test_files_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    refuses(lambda: stores.read(tmp_path / "absent.nc", ()), "to be readable")
    path = tmp_path / "damaged.nc"
    path.write_bytes(b"no netCDF")
    refuses(lambda: stores.read(path, ()), r"expected .* to be a whole file of fljax")


def test_values_in_another_file_are_not_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_bytes(np.arange(3.0).tobytes())
    path = tmp_path / "a.nc"
    path.write_bytes(stores.encoded(xr.Dataset({"x": ("seed", np.arange(3.0))}), {"inner": xr.Dataset()}))
    with h5py.File(path, "a") as file:
        inner: Any = file["inner"]
        inner.create_dataset("y", (3,), "f8", external=[(str(tmp_path / "secret"), 0, 24)])
    refuses(lambda: stores.read(path, ("inner",)), r"expected .* to be a whole file of fljax")
