"""Labelled arrays as the bytes of a netCDF file, in groups.

Both ways go through memory, since HDF5 ends the process if the disk is full.
"""

from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5netcdf
import h5py
import xarray as xr
from xarray.backends import H5NetCDFStore

from fljax.results.identity import RECORD, record_of


def encoded(dataset: xr.Dataset, groups: Mapping[str, xr.Dataset]) -> bytes:
    """The bytes of a file with a dataset at its root, and further ones by the name of their group."""
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
