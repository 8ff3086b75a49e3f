"""Run folders: their contents, locking, writing and resuming.

A run folder contains

- ``run.lock``: locked while a process writes to the folder; never removed, since then two processes could hold it;
- ``config.toml``: the config, with every default;
- ``comparison.toml``: in place of the config, if ``fljax.compare`` made the results: its numbers and labels;
- ``environment.json``: versions and devices;
- ``log.jsonl``: one event a line;
- ``metrics.jsonl``: one evaluation a line, as it happens (``fljax.results``);
- ``results.nc``: metrics, the group "records", and the group "origin" with the text of the config and fljax's version;
- ``metrics.csv``: the scalar metrics as a table, and the round in which a seed diverged;
- ``models``: trained models, if requested (``fljax.experiments.outputs.saved_models``);
- ``records``: of algorithms whose records need more than 256 MB: those by client, as zarr stores; the results then only
  have those that are one value for each seed and round (``fljax.results.stores``);
- ``parts``: of a sweep in parts, the run folder of each, such as ``2-of-8`` (``fljax.experiments.sweep_parts``);
- ``checkpoints``: until the run is finished, what is not in the results yet
  (``fljax.experiments.outputs.progress_files``).

Results in one folder are of one config and one version of fljax. Every file except the two of lines is written under a
temporary name, flushed to the disk and then renamed, so a process that dies leaves the last complete file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pathlib
import time
import tomllib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import filelock
import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from fljax.core import processes
from fljax.core.files import write
from fljax.core.names import file_name
from fljax.results import checkpoint_origins, further_rounds
from fljax.results.checkpoint_origins import CHECKPOINTS
from fljax.results.differences import difference
from fljax.results.environment import write_environment

RESULTS, TABLE, CONFIG, LOG, LOCK = "results.nc", "metrics.csv", "config.toml", "log.jsonl", "run.lock"
ENVIRONMENT, MODELS = "environment.json", "models"
EVALUATIONS, RECORDS, COMPARISON, PARTS = "metrics.jsonl", "records", "comparison.toml", "parts"
PATIENCE = 60.0  # seconds that parts of a sweep, and who joins them, wait for others that begin in the same folder
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk

Parts = further_rounds.Parts


class Event(NamedTuple):
    """A step of a run, for progress bars and the log.

    Attributes:
      stage: "data", "standalone", "train", "note" or "saved".
      label: label of the algorithm, or "".
      round: number of rounds done.
      rounds: number of rounds of the run.
      seconds: seconds since the run began.
      message: one sentence, or "".
    """

    stage: str
    label: str
    round: int
    rounds: int
    seconds: float
    message: str


OnEvent = Callable[[Event], None]


class Claim(NamedTuple):
    """A run folder that this process has locked.

    Attributes:
      finished: metrics and records in the folder, by label of the finished algorithm.
      notes: sentences for the user.
      begun: metrics and records of the algorithms that go on for more rounds (``fljax.results.further_rounds``).
    """

    finished: Parts
    notes: tuple[str, ...] = ()
    begun: Parts = {}


def teller(directory: pathlib.Path | None, on_event: OnEvent | None) -> Callable[..., None]:
    """A function ``(stage, label, round, rounds, message)`` that appends to the log and calls ``on_event``.

    If the log cannot be written, the run continues without it and reports this once. Of several processes, only process
    0 writes it.
    """
    began = time.perf_counter()
    failed: list[str] = []

    def tell(stage: str, label: str, round: int, rounds: int, message: str) -> None:
        seconds = float(np.round(time.perf_counter() - began, 3))
        event = Event(stage, label, round, rounds, seconds, message)
        if directory is not None and not failed and processes.is_first():
            try:
                append_line(directory / LOG, json.dumps(event._asdict()))
            except OSError as error:
                failed.append(f"{directory / LOG} cannot be written ({error.strerror}); the run goes on without a log")
                if on_event is not None:
                    on_event(event._replace(stage="note", label="", message=failed[0]))
        if on_event is not None:
            on_event(event)

    return tell


def append_line(path: pathlib.Path, line: str) -> None:
    """Appends a line. An incomplete last line (of a process that died) is ended first."""
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


@contextlib.contextmanager
def claim(
    directory: pathlib.Path | None, text: str, resume: bool = False, grid: str | None = None, *, computes: bool = True
) -> Iterator[Claim]:
    """Locks a run folder for this process, prepares it, and unlocks it at the end; of several processes, 0 does.

    The folder is created if it does not exist. ``config.toml`` and ``environment.json`` are written; ``metrics.csv`` is
    rewritten from existing results.

    Args:
      directory: the run folder; None: nothing is saved or locked.
      text: the config of the run with every default, as TOML.
      resume: whether the folder may have results of this config.
      grid: the grid of a sweep, as in the attributes of its results; None for a run.
      computes: whether this process computes; else ``environment.json`` is not written, for which JAX would start.

    Yields:
      The finished algorithms of the folder, and notes.

    Raises:
      ValueError: if another process has locked the folder, if the folder cannot be written, if it has results and
        ``resume`` is False, or if its results are damaged, of another config or of another version of fljax.
      OSError: if the disk has no room for the files.
    """
    with contextlib.ExitStack() as held:
        yield processes.agreed(lambda: held.enter_context(_claimed(directory, text, resume, grid, computes)))


@contextlib.contextmanager
def _claimed(
    directory: pathlib.Path | None, text: str, resume: bool, grid: str | None, computes: bool
) -> Iterator[Claim]:
    if directory is None:
        yield Claim({})
        return
    used = is_used(directory)
    # Who joins waits for parts of a sweep that begin in this moment.
    with locked(directory) if computes else locked(directory, PATIENCE):
        if not resume:
            check_new(directory, used)
        elif grid is None and (directory / PARTS).is_dir():
            raise ValueError(f"expected the folder of a run, got {str(directory)!r}, which has the parts of a sweep")
        found, begun = _resumed(directory, text, grid) if resume else ({}, {})
        if config_of(directory) is None or not resume:
            write(directory / CONFIG, text.encode())
        earlier = bool(found) or bool(begun) or (resume and (directory / CHECKPOINTS).is_dir())
        yield Claim(found, write_environment(directory / ENVIRONMENT, earlier) if computes else (), begun)


def read_finished(directory: pathlib.Path, text: str, grid: str | None = None) -> Parts:
    """The finished algorithms of a run folder, in which a run may go on; raises a ValueError as ``claim`` does."""
    return _by_label(_finished(directory, text, grid, grows=False)[0])


@contextlib.contextmanager
def locked(directory: pathlib.Path, patience: float = 0.2) -> Iterator[None]:
    """Makes a folder if there is none, and holds its lock.

    Args:
      directory: the folder.
      patience: seconds to wait for the lock; the default is for those who watch a run, and take it for an instant.

    Raises:
      ValueError: if another process holds the lock, or the folder cannot be written or locked.
      OSError: if the disk has no room.
    """
    lock = filelock.FileLock(directory / LOCK)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience, poll_interval=0.02)
    except filelock.Timeout:
        raise ValueError(
            f"expected a folder that no other process writes to, got {str(directory)!r}, in which another run goes on"
        ) from None
    except NotImplementedError:
        raise ValueError(f"expected a file system that can lock files, got that of {str(directory)!r}") from None
    except OSError as error:
        kind = OSError if error.errno in FULL else ValueError
        raise kind(f"expected a folder to write in, got {str(directory)!r} ({error.strerror})") from None
    try:
        yield
    finally:
        lock.release()


def is_used(directory: pathlib.Path) -> bool:
    """Whether a run has been in the folder; to be asked before it is locked."""
    return any((directory / name).is_file() for name in (LOCK, ENVIRONMENT))


def check_new(directory: pathlib.Path, used: bool, remedy: str = ", or --resume") -> None:
    """Raises a ValueError if a new run would overwrite results; removes what a run that died without results logged."""
    for name in (RESULTS, TABLE, MODELS, CHECKPOINTS, RECORDS, PARTS):
        if (directory / name).exists():
            raise ValueError(f"expected a folder without results{remedy}, got {str(directory)!r}, which holds {name}")
    if (directory / CONFIG).exists() and not used:
        raise ValueError(f"expected a folder without a {CONFIG} that no run wrote, got {str(directory)!r}")
    for name in (LOG, EVALUATIONS):
        (directory / name).unlink(missing_ok=True)


def _resumed(directory: pathlib.Path, text: str, grid: str | None) -> tuple[Parts, Parts]:
    """Results of a run by label: those that are finished, and those that go on for more rounds.

    Raises:
      ValueError: if config, version or grid differ.
    """
    checkpoint_origins.check(directory, text, grid)
    found, before = _finished(directory, text, grid, grows=grid is None)
    if found is not None:  # an earlier process may have died after writing the results and before the table
        write(directory / TABLE, _table(found[0]))
    finished, begun = further_rounds.divided(_by_label(found), before)
    models = {label: models_of(directory, label) for label in begun}
    further_rounds.check_models(text, models, {label: records_of(directory, label) for label in begun})
    return finished, begun


def _by_label(found: tuple[xr.Dataset, xr.Dataset] | None) -> Parts:
    if found is None:
        return {}
    one = lambda label: (found[0].sel(algorithm=label, drop=True), found[1].sel(algorithm=label, drop=True))  # noqa: E731
    return {str(label): one(label) for label in found[0]["algorithm"].values}


def _finished(
    directory: pathlib.Path, text: str, grid: str | None, *, grows: bool
) -> tuple[tuple[xr.Dataset, xr.Dataset] | None, int | None]:
    """Metrics and records, as they were written, and the rounds after which some of them go on; None if there are none.

    Nothing is changed. ``grows``: whether the config may ask for more rounds than the results have.
    """
    from fljax.core.version import __version__

    where, written = str(directory), config_of(directory)
    if not (directory / RESULTS).is_file():
        if written is not None and (changed := difference(written, text)) is not None:
            raise ValueError(
                f"expected the config of the run in {where!r} to resume it, got a changed one: {changed} "
                "(nothing is saved there yet, so that it can also be run anew without --resume)"
            )
        return None, None
    metrics, records, origin = _read(directory)
    if origin is None:
        raise ValueError(f"expected results in {where!r} that name their config, got those of an older fljax")
    if origin["fljax"] != __version__:
        raise ValueError(
            f"expected results of fljax {__version__} in {where!r} to resume them, got those of fljax {origin['fljax']}"
        )
    before = further_rounds.rounds_before(metrics, origin["config"], text) if grows else None
    if before is None and (changed := difference(origin["config"], text)) is not None:
        raise ValueError(
            f"expected the config of the results in {where!r} to resume them, got a changed one: {changed}"
        )
    behind = written is None or further_rounds.is_behind(metrics, origin["config"], written)
    if not behind and (changed := difference(origin["config"], written or "")) is not None:
        raise ValueError(
            f"expected {CONFIG} and {RESULTS} in {where!r} to be of one run, got another {CONFIG}: {changed} "
            f"(remove {CONFIG} if the results are the right ones)"
        )
    if metrics.attrs.get("grid") != grid:
        kinds = {True: "fljax run", False: "fljax sweep"}
        other, own = kinds["grid" not in metrics.attrs], kinds[grid is None]
        raise ValueError(f"expected results of {own} in {where!r} to resume them, got those of another {other}")
    return (metrics, records), before


def models_of(directory: pathlib.Path, label: str, part: str = "") -> pathlib.Path:
    """The file of an algorithm's models; ``part`` is a folder among them."""
    return directory / MODELS / part / f"{file_name(label)}.npz"


def labels_of(directory: pathlib.Path) -> list[str]:
    """The labels of the algorithms of a run folder or a saved comparison; empty if its text cannot be read."""
    entries = tomllib.loads(config_of(directory) or _text_of(directory, COMPARISON) or "").get("algorithms", [])
    return [str(each.get("label", each.get("name"))) for each in entries]


def checkpoints_of(directory: pathlib.Path, label: str) -> pathlib.Path:
    """The folder of an algorithm's checkpoints."""
    return directory / CHECKPOINTS / file_name(label)


def records_of(directory: pathlib.Path, label: str) -> pathlib.Path:
    """The store of an algorithm's records, if they are long."""
    return directory / RECORDS / file_name(label)


def check_origin(directory: pathlib.Path, text: str) -> None:
    """Raises a ValueError if the folder has results of another config."""
    origin = _read(directory)[2] if (directory / RESULTS).is_file() else None
    if origin is not None and (changed := difference(origin["config"], text)) is not None:
        raise ValueError(f"expected the config of the results in {str(directory)!r}, got a changed one: {changed}")


def config_of(directory: pathlib.Path) -> str | None:
    """The text of ``config.toml``; None if the file is missing, empty or not valid TOML."""
    return _text_of(directory, CONFIG)


def _text_of(directory: pathlib.Path, name: str) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        text = (directory / name).read_text(encoding="utf-8")
        return text if tomllib.loads(text) else None
    return None


def save(directory: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset, text: str) -> None:
    """Writes ``results.nc``, then ``metrics.csv``.

    Raises:
      OSError: if the disk has no room; files saved before are unchanged.
    """
    write(directory / RESULTS, _encoded(metrics, records, text))
    if further_rounds.CONTINUES in metrics.attrs:
        write(directory / CONFIG, text.encode())
    write(directory / TABLE, _table(metrics))


def _encoded(metrics: xr.Dataset, records: xr.Dataset, text: str) -> bytes:
    """The bytes of ``results.nc``, made in memory: HDF5 ends the process if the disk is full."""
    from fljax.core.version import __version__

    # Variables, because attributes of HDF5 are limited to 64 kB.
    origin = xr.Dataset({"config": ((), text), "fljax": ((), __version__)})
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        metrics.dump_to_store(H5NetCDFStore(file))
        for name, dataset in (("records", records), ("origin", origin)):
            dataset.dump_to_store(H5NetCDFStore(file.create_group(name)))
    return buffer.getvalue()


def _table(metrics: xr.Dataset) -> bytes:
    scalar = lambda dims: dims[:1] == ("algorithm",) and dims[-2:] == ("seed", "evaluated_round")  # noqa: E731
    scalars = [str(name) for name, values in metrics.items() if scalar(values.dims) or name == "diverged"]
    return metrics[scalars].to_dataframe().reset_index().to_csv(index=False).encode()


def load(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset]:
    """(metrics, records) of a run folder.

    Raises:
      ValueError: if the folder has no results, or damaged ones.
    """
    metrics, records, _ = _read(directory)
    return metrics, records


def _read(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset, dict[str, str] | None]:
    """Metrics, records, and their origin (config and version); None if the file has no origin."""
    path = directory / RESULTS
    if not path.is_file():
        raise ValueError(f"expected a run folder with {RESULTS}, got {directory}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"expected {str(path)!r} to be readable, got: {error.strerror}") from None
    try:
        with h5netcdf.File(io.BytesIO(content), "r") as file:
            named = "origin" in file.groups
        read = lambda group: xr.load_dataset(io.BytesIO(content), engine="h5netcdf", group=group)  # noqa: E731
        # Otherwise a later save would cast to the file's dtypes, e.g. NaN to whole numbers.
        metrics, records = read(None).drop_encoding(), read("records").drop_encoding()
        origin = {str(name): str(each.values) for name, each in read("origin").items()} if named else None
    except Exception:  # the exception depends on where the file is damaged
        raise ValueError(
            f"expected {str(path)!r} to be a whole file, got a damaged one: "
            "put back a copy of it, or remove it and run all of its algorithms again with --resume"
        ) from None
    return metrics, records, origin
