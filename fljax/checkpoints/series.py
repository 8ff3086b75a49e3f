"""Arrays that grow round by round, in memory or on the disk."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

# Bytes of one chunk of the largest array. The rows after the last whole chunk are part of every checkpoint.
CHUNK = 2**20
# More rows than this in a chunk save no files and make checkpoints larger.
MOST = 4096


class Series:
    """Arrays ``[runs, n, ...]`` by name that grow along their second axis, the rows.

    With a folder, rows leave the memory: whole chunks are written to zarr arrays, once, and only the rows after the
    last whole chunk (``rest``) stay in memory. An array has its final shape from the beginning, so nothing that was
    written changes later, and a process may die at any moment: rows after a checkpoint are written again.

    Args:
      folder: of the arrays; it is emptied. None: all rows stay in memory.
      length: the largest number of rows; needed with a folder.
    """

    def __init__(self, folder: pathlib.Path | None = None, length: int = 0) -> None:
        self._folder, self._length = folder, length
        self._rest: list[dict[str, np.ndarray]] = []
        self._group: Any = None
        self.written = 0  # rows in the folder
        self.chunk = 0  # rows of a chunk; 0: not known yet
        if folder is not None and folder.exists():
            shutil.rmtree(folder)

    @classmethod
    def resume(
        cls, folder: pathlib.Path, length: int, written: int, chunk: int, rest: Mapping[str, np.ndarray]
    ) -> Series:
        """The series of a checkpoint; rows that were written after it are forgotten.

        Raises:
          OSError, ValueError, KeyError: if the folder does not have the rows.
        """
        found = cls.__new__(cls)
        found._folder, found._length, found.written, found.chunk = folder, length, written, chunk
        found._rest, found._group = [dict(rest)] if rest else [], None
        if written:
            import zarr

            found._group = zarr.open_group(str(folder), mode="r+")
            for name, array in found._group.arrays():
                if array.shape[1] != length:
                    raise ValueError(f"expected {name} to have {length} rows, got {array.shape[1]}")
        elif folder.exists():
            shutil.rmtree(folder)
        return found

    def __len__(self) -> int:
        return self.written + sum(_rows(block) for block in self._rest)

    def append(self, block: Mapping[str, np.ndarray]) -> None:
        """Adds the rows of ``block``, ``[runs, rows, ...]`` by name."""
        if _rows(block):
            self._rest.append(dict(block))

    def write(self) -> None:
        """Writes all whole chunks, if there is a folder.

        Raises:
          OSError: if the disk has no room. The rows stay in memory.
        """
        if self._folder is None or not self._rest:
            return
        if not self.chunk:
            largest = max(_row_bytes(values) for values in self._rest[0].values())
            self.chunk = int(max(1, min(MOST, CHUNK // max(largest, 1))))
        count = sum(_rows(block) for block in self._rest) // self.chunk * self.chunk
        if not count:
            return
        joined = self.rest()
        group = self._group if self._group is not None else self._created(joined)
        for name, values in joined.items():
            group[name][:, self.written : self.written + count] = _storable(values[:, :count])
        self.written += count
        self._rest = [{name: values[:, count:].copy() for name, values in joined.items()}]

    def rest(self) -> dict[str, np.ndarray]:
        """The rows in memory, after those that are written."""
        if not self._rest:
            return {}
        if len(self._rest) > 1:
            names = self._rest[0]
            self._rest = [{name: np.concatenate([block[name] for block in self._rest], axis=1) for name in names}]
        return self._rest[0]

    def read(self) -> dict[str, np.ndarray]:
        """All rows."""
        rest = self.rest()
        if not self.written:
            return dict(rest)
        found = {}
        for name, array in self._group.arrays():
            values = np.asarray(array[:, : self.written])
            if rest:
                values = np.concatenate([values.astype(rest[name].dtype), rest[name]], axis=1)
            found[str(name)] = values
        return {name: found[name] for name in rest or sorted(found)}

    def _created(self, joined: Mapping[str, np.ndarray]) -> Any:
        import zarr

        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        group = zarr.open_group(str(self._folder), mode="w")
        for name, values in joined.items():
            stored = _storable(values)
            shape = (stored.shape[0], self._length, *stored.shape[2:])
            chunks = (max(stored.shape[0], 1), self.chunk, *(max(size, 1) for size in stored.shape[2:]))
            group.create_array(name, shape=shape, chunks=chunks, dtype=stored.dtype)
        self._group = group
        return group


def _rows(block: Mapping[str, np.ndarray]) -> int:
    return next(iter(block.values())).shape[1] if block else 0


def _row_bytes(values: np.ndarray) -> int:
    return values.nbytes // max(values.shape[1], 1)


def _storable(values: np.ndarray) -> np.ndarray:
    """The values in a dtype that zarr has: bfloat16 is stored in float32."""
    return values.astype(np.float32) if values.dtype.kind == "V" else values
