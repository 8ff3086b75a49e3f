"""Results on the disk: labelled arrays as the bytes of a netCDF file, and a zarr store of records beyond the memory.

A netCDF file is made and read in memory, since HDF5 ends the process if the disk is full. A zarr store is written block
by block and read where it is asked for. It must stay where it is while it is read. One that was removed or replaced, or
that lacks a chunk, is refused; zarr alone would read zeros. Sweeps join cells, so theirs are read into memory.
"""

from __future__ import annotations

import io
import json
import pathlib
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray, H5NetCDFStore
from xarray.core import indexing

from fljax.results.identity import RECORD, record_of


def encoded(dataset: xr.Dataset, groups: Mapping[str, xr.Dataset]) -> bytes:
    """The bytes of a file with a dataset at its root, and further ones by the name of their group."""
    import h5netcdf  # runs that write no file need neither this nor h5py

    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
        for name, inner in groups.items():
            inner.dump_to_store(H5NetCDFStore(file.create_group(name)))
    return buffer.getvalue()


def origin(text: str) -> xr.Dataset:
    """What results are of: the text of their config, the version of fljax, and the record of this process."""
    from fljax.core.version import __version__

    record = json.dumps(record_of(text))
    # Variables, because attributes of HDF5 are limited to 64 kB.
    return xr.Dataset({"config": ((), text), "fljax": ((), __version__), RECORD: ((), record)})


def check_alone(content: bytes) -> None:
    """Raises a ValueError if an array of a file has its values in another file, which HDF5 would read."""
    import h5py

    def elsewhere(name: str, entry: Any) -> str | None:
        return name if isinstance(entry, h5py.Dataset) and (entry.external or entry.is_virtual) else None

    with h5py.File(io.BytesIO(content), "r") as file:
        if name := file.visititems(elsewhere):
            raise ValueError(f"expected the values of {name} in the file, got them in another one")


_WHOLE = "a whole file of fljax, got another or a damaged one"


def read(
    path: pathlib.Path, groups: Sequence[str], optional: Sequence[str] = (), expected: str = _WHOLE
) -> list[xr.Dataset]:
    """The dataset at the root of a file, those of its groups, and of optional ones if they are there."""
    import h5netcdf

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"expected {str(path)!r} to be readable, got: {error.strerror or error}") from None
    try:
        check_alone(content)
        with h5netcdf.File(io.BytesIO(content), "r") as file:
            named = (None, *groups, *(group for group in optional if group in file.groups))
        datasets = [xr.load_dataset(io.BytesIO(content), engine="h5netcdf", group=group) for group in named]
    except Exception:  # the exception depends on where the file is damaged
        raise ValueError(f"expected {str(path)!r} to be {expected}") from None
    # With its encoding, a later save would cast to the file's dtypes, e.g. NaN to whole numbers.
    return [dataset.drop_encoding() for dataset in datasets]


def encoded_by_label(root: xr.Dataset, datasets: Mapping[str, xr.Dataset], *, listed: str, group: str) -> bytes:
    """The bytes of a file with datasets by any label, in groups ``GROUP_0`` and so on; ``listed`` has the labels."""
    groups = {f"{group}_{place}": dataset for place, dataset in enumerate(datasets.values())}
    return encoded(root.assign({listed: ((), json.dumps(list(datasets)))}), groups)


def read_by_label(
    path: pathlib.Path, what: str, *, listed: str, group: str
) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """The root and the datasets by label of a file of ``encoded_by_label``; ``what`` they are, for errors."""
    (root,) = read(path, ())
    if listed not in root:
        raise ValueError(f"expected a file with {what}, got {str(path)!r}, which has none")
    labels: list[str] = json.loads(str(root[listed].values))
    _, *datasets = read(path, [f"{group}_{place}" for place in range(len(labels))])
    return root, dict(zip(labels, datasets, strict=True))


_WRITTEN, _SOURCE = "written", "long_records"  # attribute of a store: when it was written; of a Dataset: where it is


def save_records(path: pathlib.Path, parts: Iterable[xr.Dataset]) -> xr.Dataset:
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
        if (path / "zarr.json").is_file():
            shutil.rmtree(path)
        fresh.rename(path)
    except OSError as error:
        raise OSError(
            f"expected to write {path.name} in {str(path.parent)!r}, got: {error.strerror or error}; "
            "what was saved before is kept, --resume goes on after it"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return load_records(path)


def load_records(path: pathlib.Path) -> xr.Dataset:
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
