"""What a run has computed before an algorithm is finished: standalone models and checkpoints, in its run folder.

checkpoints/origin.json       the config and fljax's version
checkpoints/standalone.npz    scores of the standalone models, which are trained once
checkpoints/LABEL/            checkpoints of an algorithm; of a sweep: of each of its programs
checkpoints/LABEL/begin.npz   the models from which it goes on for more rounds
"""

from __future__ import annotations

import functools
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core import processes
from fljax.core.files import read_npz, write_npz
from fljax.engine.checkpoints import Checkpoint, StopRequest
from fljax.results import Reference, folders
from fljax.results.events import EventLog
from fljax.results.identity import begin_checkpoints

_STANDALONE = "standalone.npz"


class Saving(NamedTuple):
    """How a run saves what it has computed.

    Attributes:
      every: seconds between two checkpoints of an algorithm; None: no checkpoints.
      keep: number of checkpoints that are kept.
      stop: a request to stop after the block that is computed.
    """

    every: float | None = 30.0
    keep: int = 2
    stop: StopRequest | None = None


class ProgressFiles(NamedTuple):
    """The folder ``checkpoints`` of a run. Of several processes, only process 0 reads and writes it.

    Attributes:
      directory: the run folder, which this process has locked; None: nothing is saved.
      text: the config of the run.
      grid: as for ``fljax.results.folders.claim``.
      saving: how.
      log: is told what is resumed and what fails.
      lasting: whether the files stay after the run.
    """

    directory: pathlib.Path | None
    text: str
    grid: str | None
    saving: Saving
    log: EventLog
    lasting: bool = False

    @property
    def is_on(self) -> bool:
        """Whether anything is saved."""
        return self.directory is not None and self.saving.every is not None

    def checkpoint(self, label: str, *parts: str) -> Checkpoint | None:
        """Checkpoints of an algorithm, or of one ``part`` of it."""
        if self.directory is None or self.saving.every is None:
            return None
        refused = processes.agreed(self._refused)
        if refused is not None:
            self.log.note(f"checkpoints cannot be written; the run goes on without ({refused})", label)
            return None
        place = folders.checkpoints_of(self.directory, label).joinpath(*parts)
        note = functools.partial(self.log.note, label=label)
        long = folders.records_of(self.directory, label)
        return Checkpoint(place, self.saving.every, self.saving.keep, note, self.saving.stop, long)

    def begin(self) -> None:
        """Makes the folder of checkpoints, which names the config.

        Raises:
          OSError: if the disk has no room.
        """
        if self.directory is not None and processes.is_first():
            self._begin()

    def references(self, data: int, make: Callable[[], Sequence[Reference]]) -> list[Reference]:
        """The scores of standalone models: those of an earlier process, or of ``make``, which are then saved.

        Args:
          data: a checksum of the data that the models are of.
          make: trains the models.

        Raises:
          ValueError: if the earlier process had other data.
        """
        if self.directory is None or self.saving.every is None:
            return list(make())
        path = self.directory / folders.CHECKPOINTS / _STANDALONE
        earlier = processes.agreed(lambda: self._read(path, data))
        if earlier is not None:
            self.log.note("standalone models are those of the earlier process")
            return earlier
        made = list(make())
        if not processes.is_first():
            return made
        try:
            self._begin()
            write_npz(path, _arrays(made, data))
        except OSError as error:
            self.log.note(f"standalone models could not be saved; the run goes on ({error})")
        return made

    def forget_records(self, label: str) -> None:
        """Removes the long records of an earlier process, in place of which there are short ones now."""
        if self.directory is not None and processes.is_first():
            shutil.rmtree(folders.records_of(self.directory, label), ignore_errors=True)

    def finished(self, label: str) -> None:
        """Removes the checkpoints of an algorithm, whose results are saved."""
        if self.directory is not None and not self.lasting and processes.is_first():
            shutil.rmtree(folders.checkpoints_of(self.directory, label), ignore_errors=True)

    def all_finished(self) -> None:
        """Removes everything."""
        if self.directory is not None and not self.lasting and processes.is_first():
            shutil.rmtree(self.directory / folders.CHECKPOINTS, ignore_errors=True)

    def _begin(self) -> None:
        assert self.directory is not None
        begin_checkpoints(self.directory, self.text, self.grid)

    def _refused(self) -> str | None:
        """Why the folder cannot be made; None if it can."""
        try:
            self._begin()
        except OSError as error:
            return str(error)
        return None

    def _read(self, path: pathlib.Path, data: int) -> list[Reference] | None:
        if not path.is_file():
            return None
        try:
            stored = read_npz(path, "scores of standalone models")
            checksum, count = int(stored.pop("data")), int(stored.pop("count"))
            references = [_reference(stored, place) for place in range(count)]
        except (ValueError, KeyError, TypeError):
            self.log.note(f"{_STANDALONE} is damaged; standalone models are trained again")
            return None
        if checksum != data:
            raise ValueError(
                f"expected the data of the run in {str(self.directory)!r} to resume it, got other data "
                "(with another folder a run begins anew)"
            )
        return references


def _reference(stored: Mapping[str, np.ndarray], place: int) -> Reference:
    start = f"{place}/"
    fields: dict[str, Any] = {
        name.removeprefix(start): array for name, array in stored.items() if name.startswith(start)
    }
    fields.setdefault("test_accuracy", None)  # absent without a score
    return Reference(**fields)


def _arrays(references: Sequence[Reference], data: int) -> dict[str, np.ndarray]:
    """The scores of standalone models by name; ``data`` is the checksum of what they were trained on."""
    arrays: dict[str, Any] = {"data": np.asarray(data), "count": np.asarray(len(references))}
    for place, reference in enumerate(references):
        fields = reference._replace(params=None)._asdict()
        arrays |= {f"{place}/{name}": values for name, values in fields.items() if values is not None}
    return arrays
