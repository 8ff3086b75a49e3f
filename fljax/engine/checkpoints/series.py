"""Arrays that grow round by round, in memory or on the disk."""
# Chunks have a running checksum, since zarr reads a missing one as zeros.

from __future__ import annotations

import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

# Bytes of one chunk of the largest array. The rows after the last whole chunk are part of every checkpoint.
CHUNK = 2**20
# More rows than this in a chunk save no files and make checkpoints larger.
MOST = 4096
# Bytes of the rows that are read at once, and that wait in memory to be written.
READ = 2**26


def _clear(place: pathlib.Path) -> None:
    """Removes a folder, or a file in its place."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


class Series:
    """Arrays ``[runs, n, ...]`` by name that grow along their second axis, the rows.

    With a folder, rows leave the memory: whole chunks are written to zarr arrays, once, and only the rows after the
    last whole chunk (``rest``) stay in memory. An array has its final shape from the beginning, so nothing that was
    written changes later, and a process may die at any moment: rows after a checkpoint are written again.

    Args:
      folder: of the arrays; it is emptied. None: all rows stay in memory.
      length: the largest number of rows; needed with a folder.

    Dtypes are those of NumPy itself.
    """

    def __init__(self, folder: pathlib.Path | None = None, length: int = 0) -> None:
        self._folder, self._length = folder, length
        self._rest: list[dict[str, np.ndarray]] = []
        self._group: Any = None
        self._waiting = 0  # bytes of the rows since the last write
        self.written = 0  # rows in the folder
        self.chunk = 0  # rows of a chunk; 0: not known yet
        self.checksums: dict[str, int] = {}  # of the chunks in the folder, by name
        if folder is not None:
            _clear(folder)

    @classmethod
    def resume(
        cls,
        folder: pathlib.Path,
        length: int,
        written: int,
        chunk: int,
        checksums: Mapping[str, int],
        rest: Mapping[str, np.ndarray],
    ) -> Series:
        """The series of a checkpoint; rows that were written after it are forgotten.

        ``length`` is the largest number of rows. ``written``, ``chunk`` and ``checksums`` are as they were at the
        checkpoint, and ``rest`` the rows after those that are written.

        Raises:
          OSError, ValueError, KeyError: if the folder does not have the rows, or other ones.
        """
        series = cls.__new__(cls)
        series._folder, series._length, series.written, series.chunk = folder, length, written, chunk
        series._rest, series._group = [dict(rest)] if rest else [], None
        series.checksums, series._waiting = dict(checksums), 0
        if written:
            import zarr

            series._group = zarr.open_group(str(folder), mode="r+")
            for name, array in series._group.arrays():
                if array.shape[1] != length:
                    raise ValueError(f"expected {name} to have {length} rows, got {array.shape[1]}")
            for _ in series.blocks():  # checks them
                pass
        else:
            _clear(folder)
        return series

    def __len__(self) -> int:
        return self.written + sum(_rows(block) for block in self._rest)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        stored = () if self._group is None else (array for _, array in self._group.arrays())
        written = sum(array.nbytes // max(array.shape[1], 1) * self.written for array in stored)
        return written + sum(values.nbytes for block in self._rest for values in block.values())

    def append(self, block: Mapping[str, np.ndarray]) -> None:
        """Adds the rows of ``block``, ``[runs, rows, ...]`` by name."""
        if _rows(block):
            self._rest.append(dict(block))
            self._waiting += sum(values.nbytes for values in block.values())

    @property
    def is_due(self) -> bool:
        """Whether many rows wait in memory to be written."""
        return self._folder is not None and self._waiting > READ

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
        import zarr

        joined = self.rest()
        self._waiting = 0  # also if this fails: then it is tried again after as many rows
        group = self._group if self._group is not None else self._created(joined)
        with zarr.config.set({"array.write_empty_chunks": True}):  # else -0.0 may come back as 0.0
            for name, values in joined.items():
                group[name][:, self.written : self.written + count] = values[:, :count]
        self.checksums = self._checksums(self.checksums, {name: values[:, :count] for name, values in joined.items()})
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
        blocks = list(self.blocks())
        if len(blocks) < 2:
            return blocks[0] if blocks else {}
        return {name: np.concatenate([block[name] for block in blocks], axis=1) for name in blocks[0]}

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """All rows in order, some chunks at a time; few of them are in memory at once.

        Raises:
          OSError: after the last block of the folder, if its chunks do not have the checksums.
        """
        if self.written:
            sums = dict.fromkeys(self.checksums, 0)
            row = sum(array.nbytes // max(array.shape[1], 1) for _, array in self._group.arrays())
            step = self.chunk * max(1, READ // max(self.chunk * row, 1))
            for first in range(0, self.written, step):
                rows = slice(first, min(first + step, self.written))
                block = {name: np.asarray(self._group[name][:, rows]) for name in self.checksums}
                sums = self._checksums(sums, block)
                yield block
            # A missing chunk reads as zeros.
            if odd := [name for name in sums if sums[name] != self.checksums[name]]:
                raise OSError(f"expected whole rows of {odd[0]} in {str(self._folder)!r}, got damaged ones")
        if rest := self.rest():
            yield dict(rest)

    def _checksums(self, before: Mapping[str, int], chunks: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The checksums by name after further chunks."""
        sums = {}
        for name, values in chunks.items():
            sums[name] = before.get(name, 0)
            for first in range(0, values.shape[1], self.chunk):
                content: Any = np.ascontiguousarray(values[:, first : first + self.chunk])
                sums[name] = zlib.crc32(content.reshape(-1).view(np.uint8), sums[name])
        return sums

    def _created(self, joined: Mapping[str, np.ndarray]) -> Any:
        import zarr

        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        group = zarr.open_group(str(self._folder), mode="w")
        for name, values in joined.items():
            shape = (values.shape[0], self._length, *values.shape[2:])
            chunks = (max(values.shape[0], 1), self.chunk, *(max(size, 1) for size in values.shape[2:]))
            group.create_array(name, shape=shape, chunks=chunks, dtype=values.dtype)
        self._group = group
        return group


def _rows(block: Mapping[str, np.ndarray]) -> int:
    return next(iter(block.values())).shape[1] if block else 0


def _row_bytes(values: np.ndarray) -> int:
    return values.nbytes // max(values.shape[1], 1)
