"""Records that are too many for the memory: a zarr store, written block by block and read where it is asked for.

The store must stay where it is while it is read. One that was removed or replaced, or that lacks a chunk, is refused;
zarr alone would read zeros. Sweeps join cells, so theirs are read into memory.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

_WRITTEN, _SOURCE = "written", "long_records"  # attribute of a store: when it was written; of a Dataset: where it is


def save(path: pathlib.Path, parts: Iterable[xr.Dataset]) -> xr.Dataset:
    """Writes records, some rounds in each part, in place of what was there, and opens them to be read on demand."""
    import zarr

    fresh = path.with_name(f"{path.name}+new")  # no label has this file name
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.parent.mkdir(parents=True, exist_ok=True)
        stamp = {_WRITTEN: str(time.time_ns())}
        with zarr.config.set({"array.write_empty_chunks": True}):  # else a chunk of zeros would seem to be missing
            for place, part in enumerate(parts):
                settings: Any = {"consolidated": False, "zarr_format": 3}
                if place:
                    fixed = [name for name, values in part.variables.items() if "round" not in values.dims]
                    part.drop_vars(fixed).assign_attrs(stamp).to_zarr(fresh, append_dim="round", **settings)
                else:
                    chunks = {name: tuple(max(size, 1) for size in values.shape) for name, values in part.items()}
                    encoding = {str(name): {"chunks": shape} for name, shape in chunks.items()}
                    part.assign_attrs(stamp).to_zarr(fresh, mode="w", encoding=encoding, **settings)
        if is_store(path):
            shutil.rmtree(path)
        fresh.rename(path)
    except OSError as error:
        raise OSError(
            f"expected to write {path.name} in {str(path.parent)!r}, got: {error.strerror or error}; "
            "what was saved before is kept, --resume goes on after it"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return load(path)


def load(path: pathlib.Path) -> xr.Dataset:
    """Opens records; values are read when they are asked for."""
    import zarr

    path = path.absolute()
    try:
        group = zarr.open_group(str(path), mode="r")
        for _, array in group.arrays():
            if array.size and array.nchunks_initialized != array.nchunks:
                raise ValueError
        records = xr.open_zarr(path, chunks=None, consolidated=False, zarr_format=3)
        written = records.attrs.pop(_WRITTEN)
        for name, values in records.items():
            rows: Any = _Rows(path, written, values.shape, values.dtype, values.variable)
            records[name] = values.copy(data=indexing.LazilyIndexedArray(rows))
    except Exception:  # the exception depends on where the store is damaged
        raise ValueError(f"expected {str(path)!r} to be a whole zarr store, got a damaged one") from None
    records.encoding[_SOURCE] = str(path)
    return records


class _Rows(BackendArray):
    """An array of a store that is read only while the store is the one that was opened."""

    def __init__(self, path: pathlib.Path, written: str, shape: Any, dtype: Any, stored: xr.Variable) -> None:
        self.path, self.written, self.shape, self.dtype, self.stored = path, written, shape, dtype, stored

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        try:
            written = json.loads((self.path / "zarr.json").read_bytes())["attributes"][_WRITTEN]
        except (OSError, ValueError, KeyError):
            written = None
        if written != self.written:
            raise OSError(f"expected the records in {str(self.path)!r}, got none there, or those of another run")
        return np.asarray(self.stored[key].values)


def is_long(records: xr.Dataset) -> bool:
    """Whether records are in a store and not in memory."""
    return _SOURCE in records.encoding


def place_of(records: xr.Dataset) -> pathlib.Path:
    """The store of long records."""
    return pathlib.Path(records.encoding[_SOURCE])


def is_store(path: pathlib.Path) -> bool:
    """Whether there is a store."""
    return (path / "zarr.json").is_file()


def copy(records: xr.Dataset, path: pathlib.Path) -> None:
    """Copies the store of long records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(records.encoding[_SOURCE], path, dirs_exist_ok=True)


def by_round(records: xr.Dataset) -> xr.Dataset:
    """The records that are one value for each seed and round, in memory; ``stored_apart`` says that there are more."""
    short = [name for name, values in records.items() if set(values.dims) <= {"seed", "round"}]
    table = records[short]
    table = table.drop_vars([name for name in table.coords if name not in ("seed", "round")]).load().drop_encoding()
    return table.assign(stored_apart=((), np.int8(1)))
