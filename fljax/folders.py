"""Run folders: what they hold, how they are locked, written and resumed.

A run folder holds

- ``run.lock``: locked while a process writes to the folder;
- ``config.toml``: the config, with every default;
- ``environment.json``: versions and devices;
- ``log.jsonl``: one event a line;
- ``results.nc``: metrics, the group "records", and the group "origin" with the text of the config and fljax's version;
- ``metrics.csv``: the scalar metrics as a table;
- ``models``: trained models, where they were asked for (``fljax.saved_models``).

Results in one folder are of one config and one version of fljax. Every file but the log is written beside its place,
flushed to the disk and then moved, so that a process that dies leaves the last complete file.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import filelock
import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from fljax.config.comparing import difference
from fljax.environment import environment

RESULTS, TABLE, CONFIG, LOG, LOCK = "results.nc", "metrics.csv", "config.toml", "log.jsonl", "run.lock"
ENVIRONMENT, MODELS = "environment.json", "models"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what systems say where there is no room

# Metrics and records by label of the algorithm.
Parts = Mapping[str, tuple[xr.Dataset, xr.Dataset]]


class Event(NamedTuple):
    """What happens in a run, for progress bars and the log.

    Attributes:
      stage: "data", "standalone", "train", "note" or "saved".
      label: of the algorithm, or "".
      round: rounds done.
      rounds: rounds asked for.
      seconds: since the run began.
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
    """A folder that this process alone writes to.

    Attributes:
      finished: metrics and records by label of what the folder holds already.
      notes: sentences for the user.
    """

    finished: dict[str, tuple[xr.Dataset, xr.Dataset]]
    notes: tuple[str, ...] = ()


def teller(directory: pathlib.Path | None, on_event: OnEvent | None) -> Callable[..., None]:
    """The function that a run reports with: it appends to the log and calls ``on_event``.

    A log that cannot be written is no reason to lose results: the run goes on without it, and says so once.
    """
    began = time.perf_counter()
    failed: list[str] = []

    def tell(stage: str, label: str, round: int, rounds: int, message: str) -> None:
        event = Event(stage, label, round, rounds, _rounded(time.perf_counter() - began), message)
        if directory is not None and not failed:
            try:
                _append(directory / LOG, json.dumps(event._asdict()))
            except OSError as error:
                failed.append(f"{directory / LOG} cannot be written ({error.strerror}); the run goes on without a log")
                if on_event is not None:
                    on_event(event._replace(stage="note", label="", message=failed[0]))
        if on_event is not None:
            on_event(event)

    return tell


def _append(path: pathlib.Path, line: str) -> None:
    """Appends a line, after whatever a process that died has left of its last one."""
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def _rounded(seconds: float) -> float:
    """Milliseconds are enough for a log."""
    return float(np.round(seconds, 3))


@contextlib.contextmanager
def claim(directory: pathlib.Path | None, text: str, resume: bool = False, grid: str | None = None) -> Iterator[Claim]:
    """Takes a run folder for one process, makes it ready, and lets go of it at the end.

    The folder is made if it does not exist. ``config.toml`` and ``environment.json`` are written; ``metrics.csv`` is
    written again from the results that there are.

    Args:
      directory: None: nothing is saved and nothing is done.
      text: the config of the run with every default, as TOML.
      resume: whether the folder may hold results of this config.
      grid: the grid of a sweep as its results name it; None for a run.

    Yields:
      What the folder holds already.

    Raises:
      ValueError: another process writes to the folder, it cannot be written, it holds results and ``resume`` is false,
        or what it holds is damaged, of another config or of another version of fljax.
      OSError: there is no room for the files.
    """
    if directory is None:
        yield Claim({})
        return
    used = any((directory / name).is_file() for name in (LOCK, ENVIRONMENT))
    lock = filelock.FileLock(directory / LOCK)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
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
        found = _resumed(directory, text, grid) if resume else _anew(directory, used)
        if _config_of(directory) is None or not resume:
            write(directory / CONFIG, text.encode())
        notes = _write_environment(directory, bool(found))
        yield Claim(found, notes)
    finally:
        lock.release()


def _anew(directory: pathlib.Path, used: bool) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Makes sure that nothing would be lost; the log of a run that died before it had results is removed."""
    for name in (RESULTS, TABLE, MODELS):
        if (directory / name).exists():
            raise ValueError(
                f"expected a folder without results, or --resume, got {str(directory)!r}, which holds {name}"
            )
    if (directory / CONFIG).exists() and not used:
        raise ValueError(f"expected a folder without a {CONFIG} that no run wrote, got {str(directory)!r}")
    (directory / LOG).unlink(missing_ok=True)
    return {}


def _resumed(directory: pathlib.Path, text: str, grid: str | None) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Results of an interrupted run by label, if they are of the same config, version and grid."""
    from fljax import __version__

    where, written = str(directory), _config_of(directory)
    if not (directory / RESULTS).is_file():
        if written is not None and (changed := difference(written, text)) is not None:
            raise ValueError(
                f"expected the config of the run in {where!r} to resume it, got a changed one: {changed} "
                "(nothing is saved there yet, so that it can also be run anew without --resume)"
            )
        return {}
    metrics, records, origin = _read(directory)
    if origin is None:
        raise ValueError(f"expected results in {where!r} that name their config, got those of an older fljax")
    if origin["fljax"] != __version__:
        raise ValueError(
            f"expected results of fljax {__version__} in {where!r} to resume them, got those of fljax {origin['fljax']}"
        )
    if (changed := difference(origin["config"], text)) is not None:
        raise ValueError(
            f"expected the config of the results in {where!r} to resume them, got a changed one: {changed}"
        )
    if written is not None and (changed := difference(origin["config"], written)) is not None:
        raise ValueError(
            f"expected {CONFIG} and {RESULTS} in {where!r} to be of one run, got another {CONFIG}: {changed} "
            f"(remove {CONFIG} if the results are the right ones)"
        )
    if metrics.attrs.get("grid") != grid:
        kinds = {True: "fljax run", False: "fljax sweep"}
        other, own = kinds["grid" not in metrics.attrs], kinds[grid is None]
        raise ValueError(f"expected results of {own} in {where!r} to resume them, got those of another {other}")
    # A process may have died between the two files.
    write(directory / TABLE, _table(metrics))
    labels = [str(label) for label in metrics["algorithm"].values]
    return {
        label: (metrics.sel(algorithm=label, drop=True), records.sel(algorithm=label, drop=True)) for label in labels
    }


def check_origin(directory: pathlib.Path, text: str) -> None:
    """Raises a ValueError if the folder holds results of another config."""
    origin = _read(directory)[2] if (directory / RESULTS).is_file() else None
    if origin is not None and (changed := difference(origin["config"], text)) is not None:
        raise ValueError(f"expected the config of the results in {str(directory)!r}, got a changed one: {changed}")


def _config_of(directory: pathlib.Path) -> str | None:
    """The text of ``config.toml``; None where it is missing, empty or no TOML."""
    with contextlib.suppress(OSError, ValueError):
        text = (directory / CONFIG).read_text(encoding="utf-8")
        return text if tomllib.loads(text) else None
    return None


def _write_environment(directory: pathlib.Path, resumed: bool) -> tuple[str, ...]:
    """Writes ``environment.json``; where results of another environment are resumed, it stays there as "earlier"."""
    found: dict[str, Any] = environment()
    notes: tuple[str, ...] = ()
    if resumed:
        before: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            before = dict(json.loads((directory / ENVIRONMENT).read_text(encoding="utf-8")))
        earlier = before.pop("earlier", [])
        changed = {name for name in ("versions", "devices", "platform", "x64") if before.get(name) != found[name]}
        if before and changed:
            earlier = [*earlier, before]
            notes = (f"{' and '.join(sorted(changed))} are not those of the earlier results, see {ENVIRONMENT}",)
        found |= {"earlier": earlier} if earlier else {}
    write(directory / ENVIRONMENT, (json.dumps(found, indent=2) + "\n").encode())
    return notes


def save(directory: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset, text: str) -> None:
    """Writes ``results.nc``, then ``metrics.csv``.

    Raises:
      OSError: there is no room; what was saved before is still there.
    """
    write(directory / RESULTS, _encoded(metrics, records, text))
    write(directory / TABLE, _table(metrics))


def _encoded(metrics: xr.Dataset, records: xr.Dataset, text: str) -> bytes:
    """The file, made in memory: HDF5 ends the process where it cannot write to a full disk."""
    from fljax import __version__

    # Variables, because attributes of HDF5 end at 64 kB.
    origin = xr.Dataset({"config": ((), text), "fljax": ((), __version__)})
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        metrics.dump_to_store(H5NetCDFStore(file))
        for name, dataset in (("records", records), ("origin", origin)):
            dataset.dump_to_store(H5NetCDFStore(file.create_group(name)))
    return buffer.getvalue()


def _table(metrics: xr.Dataset) -> bytes:
    scalar = lambda dims: dims[:1] == ("algorithm",) and dims[-2:] == ("seed", "evaluated_round")  # noqa: E731
    scalars = [str(name) for name, values in metrics.items() if scalar(values.dims)]
    return metrics[scalars].to_dataframe().reset_index().to_csv(index=False).encode()


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file as a whole: beside its place, to the disk, then into its place.

    Raises:
      OSError: it cannot be written; one sentence. What stood there before is unchanged.
    """
    fresh = path.with_name(f".{path.name}")
    try:
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise OSError(
            f"expected to write {path.name} ({len(content):,} bytes) in {str(path.parent)!r}, got: {error.strerror}; "
            "what was saved before is kept, --resume goes on after it"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _flush_folder(path: pathlib.Path) -> None:
    """So that a moved file is found after a power failure; not every system can."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset]:
    """(metrics, records) of a run folder.

    Raises:
      ValueError: if the folder holds no results, or damaged ones.
    """
    metrics, records, _ = _read(directory)
    return metrics, records


def _read(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset, dict[str, str] | None]:
    """Metrics, records, and where they are from; None where the file does not say."""
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
        # Without it, what is saved again would be cast to the types of the file: NaN to whole numbers.
        metrics, records = read(None).drop_encoding(), read("records").drop_encoding()
        origin = {str(name): str(each.values) for name, each in read("origin").items()} if named else None
    except Exception:  # what HDF5 raises depends on where the file is damaged
        raise ValueError(
            f"expected {str(path)!r} to be a whole file, got a damaged one: "
            "put back a copy of it, or remove it and run all of its algorithms again with --resume"
        ) from None
    return metrics, records, origin
