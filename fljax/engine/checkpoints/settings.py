"""What a caller says of checkpoints: where, how often, how many, and when to stop.

``Checkpoint.stop`` is a request that a signal handler makes. It counts only while a run listens; else the handler
raises.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple


class StopRequest:
    """Asks a run with checkpoints to stop after the block that it computes, for example from a signal handler."""

    def __init__(self) -> None:
        self._listeners = 0
        self.made = False

    @property
    def heard(self) -> bool:
        """Whether a run looks at requests now: only then does ``make`` stop something."""
        return self._listeners > 0

    def make(self) -> None:
        """Makes the request. The run saves a checkpoint and raises ``Stopped``."""
        self.made = True

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        """A run that looks at requests after every block."""
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
    """

    def __init__(self, round: int, rounds: int, saved: int | None) -> None:
        super().__init__(f"stopped after {round} of {rounds} rounds")
        self.round, self.rounds, self.saved = round, rounds, saved

    def __reduce__(self) -> Any:
        return Stopped, (self.round, self.rounds, self.saved)


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
    """

    folder: str | pathlib.Path
    every: float = 30.0
    keep: int = 2
    note: Callable[[str], Any] | None = None
    stop: StopRequest | None = None
    records: str | pathlib.Path | None = None

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
