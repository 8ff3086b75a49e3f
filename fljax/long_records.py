"""Records that are too many for the memory: a zarr store, written block by block and read where it is asked for.

records = fljax.load("runs/long").records_of("incfl")
records.weight.sel(client=3, round=slice(90_000, 90_100)).values
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterable

import xarray as xr


def save(path: pathlib.Path, parts: Iterable[xr.Dataset]) -> xr.Dataset:
    """Writes the records of a run, and opens them.

    Args:
      path: of the store. What was there is replaced, once the new store is whole.
      parts: ``records.dataset`` of some rounds each, in order; at least one.

    Returns:
      The records. Values are read when they are asked for.

    Raises:
      OSError: one sentence, if the disk has no room.
    """
    fresh = path.with_name(f".{path.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.parent.mkdir(parents=True, exist_ok=True)
        for place, part in enumerate(parts):
            if place:
                alike = part.drop_vars([name for name, each in part.variables.items() if "round" not in each.dims])
                alike.to_zarr(fresh, append_dim="round", consolidated=False, zarr_format=3)
            else:
                chunks = {name: tuple(max(size, 1) for size in each.shape) for name, each in part.items()}
                encoding = {str(name): {"chunks": shape} for name, shape in chunks.items()}
                part.to_zarr(fresh, mode="w", encoding=encoding, consolidated=False, zarr_format=3)
        shutil.rmtree(path, ignore_errors=True)
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
    """Opens records; values are read when they are asked for.

    Raises:
      ValueError: if the store is damaged.
    """
    try:
        return xr.open_zarr(path, chunks=None, consolidated=False, zarr_format=3)
    except Exception:  # the exception depends on where the store is damaged
        raise ValueError(f"expected {str(path)!r} to be a whole zarr store, got a damaged one") from None


def by_round(records: xr.Dataset) -> xr.Dataset:
    """The records that are one value for each seed and round, in memory."""
    short = [name for name, values in records.items() if set(values.dims) <= {"seed", "round"}]
    found = records[short]
    return found.drop_vars([name for name in found.coords if name not in ("seed", "round")]).load()
