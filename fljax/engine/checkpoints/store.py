"""Checkpoints in a folder: what a caller says of them, and how they are written and read."""
# ``Checkpoint.stop`` is a request by a signal handler. It counts only while a run listens; else the handler raises.

from __future__ import annotations

import contextlib
import errno
import logging
import math
import pathlib
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


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
    """One checkpoint.

    Attributes:
      step: its number.
      arrays: by name.
      about: what else was saved, as in JSON.
    """

    step: int
    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


class Store:
    """Checkpoints by number, written in the background; each is there as a whole or not at all.

    A checkpoint that cannot be written stops nothing: the reason is noted, and the earlier ones stay. Every array has a
    checksum, so a damaged checkpoint is noticed, and the one before it is taken.

    Args:
      folder: of the checkpoints.
      keep: number of checkpoints to keep.
      note: called with sentences.
    """

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
        """The newest whole checkpoint; damaged ones are noted and removed.

        ``usable`` raises an OSError, KeyError or ValueError if something that the checkpoint needs is damaged.
        """
        damaged: list[int] = []
        for step in sorted(self._steps(), reverse=True):
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

    def _steps(self) -> Iterable[int]:
        if not self._folder.is_dir():
            return []
        return list(self._opened().all_steps())

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
        self._end_silence = _do_nothing
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
        return _do_nothing

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


def _do_nothing() -> None:
    """What ``_silence_orbax`` returns where nothing was silenced: a function without effect."""


# Bytes of a part of an array that is copied at a time.
_PART = 2**24


def checksum(arrays: Iterable[np.ndarray]) -> int:
    """CRC-32 of the bytes of arrays, one after another."""
    total = 0
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
