"""Checkpoints in a folder: what a caller says of them, how they are written and read, and arrays that grow."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import pathlib
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

# ``Checkpoint.stop`` is a request by a signal handler. It counts only while a run listens; else the handler raises.


class StopRequest:
    """Asks a run with checkpoints to stop after the block that it computes, for example from a signal handler."""

    def __init__(self) -> None:
        self._listeners = 0
        self.made = False

    @property
    def heard(self) -> bool:
        """Whether a run listens now; without such a run ``make`` has no effect."""
        return self._listeners > 0

    def make(self) -> None:
        """Makes the request. The run saves a checkpoint and raises ``Stopped``."""
        self.made = True

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        """While it is entered, a run listens: it looks at requests after every block."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1


class Stopped(Exception):
    """A run was asked to stop. Its last checkpoint is of the round in which it stopped, if it could be written.

    Attributes:
      round: number of rounds done.
      rounds: number of rounds of the run.
      saved: the round of the newest checkpoint; None if there is none.
      unit: what these numbers count: "rounds", or "runs" where whole runs are saved (``fljax.runs``).
    """

    def __init__(self, round: int, rounds: int, saved: int | None, unit: str = "rounds") -> None:
        super().__init__(f"stopped after {round} of {rounds} {unit}")
        self.round, self.rounds, self.saved, self.unit = round, rounds, saved, unit

    def __reduce__(self) -> Any:
        return Stopped, (self.round, self.rounds, self.saved, self.unit)


class Checkpoint(NamedTuple):
    """Where and how often a run saves checkpoints. A run whose folder has one goes on after it.

    Attributes:
      folder: of one run. It is made if it does not exist.
      every: seconds between two checkpoints, at least. If saving takes long, checkpoints become rarer, so that the run
        waits for them at most a fortieth of its time. 0: a checkpoint after every round, however long it takes.
      keep: number of checkpoints that are kept, the newest ones.
      note: called with sentences for the user: what was resumed, and what could not be read or written.
      stop: a request to stop after the block that is computed; see ``StopRequest``.
      records: where records of more than 256 MB are at the end, as a zarr store, from which ``Result.records`` reads
        what is asked for; None: ``records.zarr`` in the folder. A store that is there is replaced. It must stay there
        as long as the Result is used.
      force: whether a run goes on although JAX's settings, the code of own functions, the data or the numbers of the
        algorithm differ; the attribute ``forced`` of its metrics then says what does.
    """

    folder: str | pathlib.Path
    every: float = 30.0
    keep: int = 2
    note: Callable[[str], Any] | None = None
    stop: StopRequest | None = None
    records: str | pathlib.Path | None = None
    force: bool = False

    @classmethod
    def of(cls, given: str | pathlib.Path | Checkpoint | None) -> Checkpoint | None:
        """The settings that a user gives, checked; a folder alone has the defaults of the others."""
        if given is None:
            return None
        return (given if isinstance(given, Checkpoint) else cls(given)).check()

    def below(self, name: str) -> Checkpoint:
        """The settings of a run in a folder inside of this one."""
        return self._replace(folder=pathlib.Path(self.folder) / name)

    def check(self) -> Checkpoint:
        """Raises a ValueError if a number is out of range; returns the settings."""
        if not isinstance(self.folder, str | pathlib.Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected checkpoint to be a folder or a Checkpoint, got {self.folder!r}")
        if isinstance(self.every, bool) or not (math.isfinite(self.every) and self.every >= 0):
            raise ValueError(f"expected seconds between checkpoints of at least 0, got {self.every}")
        if isinstance(self.keep, bool) or self.keep != int(self.keep) or self.keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, got {self.keep}")
        if self.records is not None:
            self._check_records(pathlib.Path(self.records).absolute(), pathlib.Path(self.folder).absolute())
        return self

    def _check_records(self, records: pathlib.Path, folder: pathlib.Path) -> None:
        """Raises a ValueError if records would replace something else."""
        used = {folder / name for name in ("rounds", "records", "evaluations")}
        if records == folder or records in folder.parents or used & {records, *records.parents}:
            raise ValueError(f"expected records to have a folder of their own, got {str(self.records)!r}")
        if records.exists() and not (records / "zarr.json").is_file():
            raise ValueError(f"expected records to be a new folder or a zarr store, got {str(self.records)!r}")


# Errors of files that are not there, or of another kind than they should be.
_OF_DAMAGE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


class Saved(NamedTuple):
    """One checkpoint."""

    step: int  # its number
    arrays: dict[str, np.ndarray]  # by name
    about: dict[str, Any]  # what else was saved, as in JSON


class Store:
    """Checkpoints by number, written in the background; each is there as a whole or not at all."""

    # A checkpoint that cannot be written stops nothing: ``note`` gets the reason, and the earlier ones stay. Arrays
    # have checksums, so a damaged checkpoint is noticed, and the one before it is taken.

    def __init__(self, folder: pathlib.Path, keep: int, note: Callable[[str], Any]) -> None:
        import orbax.checkpoint

        self._orbax: Any = orbax.checkpoint
        self._folder, self._keep, self._note = folder.absolute(), keep, note
        self._manager: Any = None
        self._end_silence: Callable[[], None] | None = None  # of orbax; None: it is not silent
        self._failing = False  # whether the last checkpoint that is known of has failed
        self._begun = False
        self.saved: int | None = None  # number of the newest checkpoint that was begun and has not failed

    def newest(self, usable: Callable[[Saved], None] = lambda saved: None) -> Saved | None:
        """The newest whole checkpoint, for which ``usable`` raises nothing; damaged ones are noted and removed."""
        damaged: list[int] = []
        for step in sorted(self._found(), reverse=True):
            try:
                checkpoint = self._read(step)
                usable(checkpoint)
            except MemoryError:
                raise
            except Exception as error:  # the exception depends on where the checkpoint is damaged
                if isinstance(error, OSError) and error.errno not in _OF_DAMAGE:
                    raise  # the disk, and not the checkpoint
                damaged.append(step)
                continue
            self._remove(damaged, f"the one of round {step} is taken")
            self.saved = step
            return checkpoint
        self._remove(damaged, "the run begins anew")
        return None

    def save(self, step: int, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Begins to write a checkpoint. The arrays must not change afterwards."""
        tree = {str(place): values for place, values in enumerate(arrays.values()) if values.size}
        leaves = [[name, values.dtype.name, list(values.shape), checksum([values])] for name, values in arrays.items()]
        composed = self._orbax.args.Composite(
            arrays=self._orbax.args.StandardSave(tree),
            about=self._orbax.args.JsonSave({"about": dict(about), "leaves": leaves}),
        )
        try:
            if not self._opened().save(step, args=composed):
                self._manager.wait_until_finished()  # else ``_failed`` would remove what is being written
                raise OSError(f"the folder has a checkpoint of round {step} or a later one")
            # orbax has waited for the one before, so that one is written.
            self._failing = self._failing and not self._begun
            self.saved, self._begun = step, True
        except Exception as error:  # of this checkpoint or, from the background, of the one before
            self._failed(error)

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._manager is not None and bool(self._manager.is_saving_in_progress())

    def close(self) -> None:
        """Waits until the last checkpoint is written."""
        if self._manager is not None:
            try:
                self._manager.wait_until_finished()
                self._manager.close()
            except Exception as error:
                self._failed(error)
            self._manager = None
        if self._end_silence is not None:
            self._end_silence()
        self._end_silence = None

    def _opened(self) -> Any:
        if self._manager is None:
            self._end_silence = self._end_silence or _silence_orbax()
            if self._folder.is_file():
                self._note(f"{self._folder.name} is a file where the folder of checkpoints should be; it is removed")
                self._folder.unlink()
            self._folder.mkdir(parents=True, exist_ok=True)
            options = self._orbax.CheckpointManagerOptions(
                max_to_keep=self._keep, step_prefix="round", cleanup_tmp_directories=True, **self._alone()
            )
            self._manager = self._orbax.CheckpointManager(self._folder, options=options, item_names=("arrays", "about"))
        return self._manager

    def _alone(self) -> dict[str, Any]:
        """Options by which orbax waits for no other process, where there are several."""
        if self._orbax.multihost.process_count() == 1:
            return {}
        process = self._orbax.multihost.process_index()
        options = self._orbax.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"process_{process}"
        )
        return {"multiprocessing_options": options, "create": False}

    def _read(self, step: int) -> Saved:
        args = self._orbax.args
        described = self._opened().restore(step, args=args.Composite(about=args.JsonRestore())).about
        leaves = described["leaves"]
        empty = {
            str(place): np.empty(shape, dtype) for place, (_, dtype, shape, _) in enumerate(leaves) if 0 not in shape
        }
        stored = self._opened().restore(step, args=args.Composite(arrays=args.StandardRestore(empty))).arrays
        arrays = {}
        for place, (name, dtype, shape, expected) in enumerate(leaves):
            values = np.asarray(stored[str(place)]) if 0 not in shape else np.empty(shape, dtype)
            if checksum([values]) != expected:
                raise ValueError(f"expected {name} to have the checksum {expected}")
            arrays[name] = values
        return Saved(step, arrays, described["about"])

    def _remove(self, steps: Iterable[int], then: str) -> None:
        for step in steps:
            self._note(f"the checkpoint of round {step} is damaged; {then}")
            self._opened().close()
            self._manager = None
            shutil.rmtree(self._folder / f"round_{step}", ignore_errors=True)

    def _failed(self, error: Exception) -> None:
        """Forgets what orbax holds of a checkpoint that could not be written, and notes why."""
        # Threads of the failed write may report at any later time, also when this store is closed: the silence stays.
        self._end_silence = lambda: None
        self._manager, self._begun = None, False
        for left in self._folder.glob("*.orbax-checkpoint-tmp*"):  # what it takes of the disk
            shutil.rmtree(left, ignore_errors=True)
        self.saved = max(self._found(), default=None)
        self.tell_failure(error)

    def tell_failure(self, error: Exception) -> None:
        """Notes why a checkpoint could not be written, once for failures in a row."""
        if not self._failing:
            earlier = "earlier ones are intact" if self._found() else "there is no earlier one"
            self._note(f"a checkpoint could not be written ({_reason(error)}); the run goes on, {earlier}")
        self._failing = True

    def _found(self) -> list[int]:
        names = [path.name.removeprefix("round_") for path in self._folder.glob("round_*") if path.is_dir()]
        return [int(name) for name in names if name.isdigit()]


def _silence_orbax() -> Callable[[], None]:
    """Silences orbax's log and the threads that a failed write leaves behind; gives what ends the silence."""
    log, hook = logging.getLogger("absl"), sys.unraisablehook
    if _is_own in log.filters:  # a failed write of another store has left it
        return lambda: None

    def report(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "Event loop is closed" in str(unraisable.exc_value)):
            hook(unraisable)

    def end() -> None:
        log.removeFilter(_is_own)
        if sys.unraisablehook is report:
            sys.unraisablehook = hook

    log.addFilter(_is_own)
    sys.unraisablehook = report
    return end


def _is_own(record: logging.LogRecord) -> bool:
    """Whether a record of absl's log is not orbax's."""
    return "orbax" not in record.pathname


# Bytes of a part of an array that is copied at a time.
_PART = 2**24


def checksum(arrays: Iterable[np.ndarray], total: int = 0) -> int:
    """CRC-32 of the bytes of arrays, one after another, and after those with the checksum ``total``."""
    for values in arrays:
        # An array of another order is copied in parts, since it may be a mapped file.
        whole = values.flags.c_contiguous or not values.size
        rows = 1 if whole else max(1, _PART * len(values) // values.nbytes)
        parts = [values] if whole else (values[first : first + rows] for first in range(0, len(values), rows))
        for part in parts:
            content: Any = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            total = zlib.crc32(content, total)
    return total


def _reason(error: BaseException) -> str:
    """Why writing failed, in a few words."""
    words = str(error)
    for known in ("No space left on device", "File too large", "Disk quota exceeded", "Permission denied"):
        if known in words:
            return known
    return " ".join(words.split())[:200] or type(error).__name__


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
    """Arrays ``[runs, n, ...]`` by name, of NumPy's own dtypes, that grow along their second axis, the rows."""

    # With a folder, rows leave the memory: whole chunks are written to zarr arrays, once, and only the rows after the
    # last whole chunk (``rest``) stay in memory. An array has its final shape (``length`` rows) from the beginning, so
    # nothing that was written changes later, and a process may die at any moment: rows after a checkpoint are written
    # again.

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
        """The series of a checkpoint; OSError, ValueError or KeyError if its folder does not have the rows."""
        # Rows that were written after it are forgotten; ``rest`` are those after the ones that are written.
        series = cls(None if written else folder, length)
        series._folder, series.written, series.chunk, series.checksums = folder, written, chunk, dict(checksums)
        series._rest = [dict(rest)] if rest else []
        if written:
            import zarr

            series._group = zarr.open_group(str(folder), mode="r+")
            for name, array in series._group.arrays():
                if array.shape[1] != length:
                    raise ValueError(f"expected {name} to have {length} rows, got {array.shape[1]}")
            for _ in series.blocks():  # checks them
                pass
        return series

    def __len__(self) -> int:
        return self.written + sum(_rows(block) for block in self._rest)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        written = self.written * self._row_bytes() if self.written else 0
        return written + sum(values.nbytes for block in self._rest for values in block.values())

    def _row_bytes(self) -> int:
        """Bytes of a row in the folder."""
        return sum(array.nbytes // max(array.shape[1], 1) for _, array in self._group.arrays())

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
        """Writes all whole chunks, if there is a folder; after an OSError the rows are still in memory."""
        if self._folder is None or not self._rest:
            return
        if not self.chunk:
            largest = max(values.nbytes // max(values.shape[1], 1) for values in self._rest[0].values())
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
        """All rows in order, some chunks at a time; an OSError after the folder's last one if checksums differ."""
        if self.written:
            sums = dict.fromkeys(self.checksums, 0)
            step = self.chunk * max(1, READ // max(self.chunk * self._row_bytes(), 1))
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
        rows = [slice(first, first + self.chunk) for first in range(0, _rows(chunks), self.chunk)]
        return {
            name: checksum((values[:, chunk] for chunk in rows), before.get(name, 0)) for name, values in chunks.items()
        }

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
