"""Run folders: their contents (names below), locking, writing and resuming.

Results in one folder are of one config and one version of fljax. Every file except the two of lines is written under a
temporary name, flushed to the disk and then renamed, so a process that dies leaves the last complete file. ``run.lock``
is never removed, since then two processes could hold it. ``results.nc`` has metrics, the group "records", and the group
"origin" with the text of the config and fljax's version. Records of more than 256 MB are zarr stores in ``records``;
the results then have only those that are one value for each seed and round.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

import xarray as xr

from fljax.core import processes
from fljax.core.files import check_links, locked, write
from fljax.core.names import file_name
from fljax.core.plain import as_csv
from fljax.core.sameness import Differences
from fljax.results import further_rounds, stores
from fljax.results.events import EVALUATIONS, LOG, Parts, Results
from fljax.results.identity import (
    CHECKPOINTS,
    RECORD,
    Origin,
    added,
    check_checkpoints,
    check_same_run,
    difference,
    labels_in,
    write_environment,
)

# ``comparison.toml`` stands in place of the config if ``fljax.compare`` made the results. ``records`` are zarr stores.
# ``parts`` has the run folder of each part of a sweep; ``checkpoints`` has what is not in the results yet.
RESULTS, TABLE, CONFIG, LOCK = "results.nc", "metrics.csv", "config.toml", "run.lock"
ENVIRONMENT, MODELS = "environment.json", "models"
RECORDS, COMPARISON, PARTS, WORTH = "records", "comparison.toml", "parts", "worth.nc"
CERTIFICATES, DESIGN = "certificates.nc", "design.nc"
# Where the commands of these names have their checkpoints, apart from those of a run in the same folder.
OF_WORTH, OF_CERTIFY, OF_DESIGN = _COMMANDS = "worth", "certify", "design"
# What whole runs leave in a folder.
_OF_WHOLE_RUNS = (WORTH, CERTIFICATES, DESIGN, *(f"{folder}/{CHECKPOINTS}" for folder in _COMMANDS))
# What is read, locked or appended, and folders to write in. Everything else is written as a whole, over a link.
_OWN = (LOCK, CONFIG, COMPARISON, ENVIRONMENT, LOG, EVALUATIONS, RESULTS, WORTH, CERTIFICATES, DESIGN)
_FOLDERS = (MODELS, "data.npz", RECORDS, PARTS, CHECKPOINTS, *_COMMANDS, "pictures")
PATIENCE = 60.0  # seconds that parts of a sweep, and who joins them, wait for others that begin in the same folder


def check_own_files(directory: pathlib.Path) -> None:
    """Raises a ValueError if something in a run folder is a link, a pipe or a device; the folder may be a link."""
    check_links(directory, (*_OWN, *_FOLDERS))


class OpenFolder(NamedTuple):
    """A run folder that this process has locked."""

    finished: Parts  # metrics and records in the folder, by label of the finished algorithm
    notes: tuple[str, ...] = ()  # sentences for the user
    begun: Parts = {}  # metrics and records of the algorithms that go on for more rounds


@contextlib.contextmanager
def claim(
    directory: pathlib.Path | None,
    text: str,
    resume: bool = False,
    grid: str | None = None,
    *,
    computes: bool = True,
    force: bool = False,
) -> Iterator[OpenFolder]:
    """Locks a run folder (None: there is none) for this process, prepares it, and unlocks it at the end."""
    # With several processes, process 0 does. If ``resume``, the folder may have results: of this config, of one with
    # fewer rounds, or of one that lacks its last algorithms. ``grid`` is that of a sweep, as in the attributes of its
    # results. Unless a process ``computes``, JAX does not start: no environment is written, and records of settings and
    # code are not compared. With ``force`` a run goes on where these differ, and a note says what does.
    with contextlib.ExitStack() as opened:
        how = force if computes else None
        yield processes.agreed(lambda: opened.enter_context(_claimed(directory, text, resume, grid, how)))


@contextlib.contextmanager
def _claimed(
    directory: pathlib.Path | None, text: str, resume: bool, grid: str | None, force: bool | None
) -> Iterator[OpenFolder]:
    if directory is None:
        yield OpenFolder({})
        return
    check_own_files(directory)
    used, computes = is_used(directory), force is not None
    # Who joins waits for parts of a sweep that begin in this moment.
    lock = locked(directory / LOCK) if computes else locked(directory / LOCK, PATIENCE)
    with lock, _as_before_if_refused(directory) if resume else contextlib.nullcontext():
        if not resume:
            check_new(directory, used)
        elif grid is None and (directory / PARTS).is_dir():
            raise ValueError(f"expected the folder of a run, got {str(directory)!r}, which has the parts of a sweep")
        finished, begun, differ = _resumed(directory, text, grid, force) if resume else ({}, {}, Differences())
        written = config_of(directory)
        if written is None or not resume or added(written, text) or added(text, written):
            write(directory / CONFIG, text.encode())
        earlier = bool(finished) or bool(begun)
        earlier = earlier or (resume and any((directory / name).exists() for name in (CHECKPOINTS, *_OF_WHOLE_RUNS)))
        notes = write_environment(directory / ENVIRONMENT, earlier) if computes else ()
        yield OpenFolder(finished, (*differ.sentences, *notes), begun)


# What a process writes about itself, before it computes anything.
_ABOUT = (CONFIG, ENVIRONMENT, LOG, TABLE)


@contextlib.contextmanager
def _as_before_if_refused(directory: pathlib.Path) -> Iterator[None]:
    """Puts back what a process wrote about itself, if a ValueError ends it before anything else there changed."""
    # For example, a method that is added to a run and refused, because the data are others now.
    texts, others = {name: _bytes_of(directory / name) for name in _ABOUT}, _times_of_others(directory)
    try:
        yield
    except ValueError:
        if _times_of_others(directory) == others:
            with contextlib.suppress(OSError):
                for name, content in texts.items():
                    if content is None:
                        (directory / name).unlink(missing_ok=True)
                    elif content != _bytes_of(directory / name):
                        write(directory / name, content)
        raise


def _bytes_of(path: pathlib.Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None


def _times_of_others(directory: pathlib.Path) -> dict[str, int]:
    """By path when results and whatever else is in a folder changed, and all folders in it, as those of checkpoints."""
    paths = [directory / name for name in os.listdir(directory) if name not in (*_ABOUT, LOCK)]
    for where, names, _ in os.walk(directory):
        paths += [pathlib.Path(where) / name for name in names]
    times: dict[str, int] = {}
    for path in paths:
        with contextlib.suppress(OSError):  # another process may have removed it since
            times[str(path)] = path.lstat().st_mtime_ns  # of a link itself, which may lead nowhere
    return times


def read_finished(directory: pathlib.Path, text: str, grid: str | None = None) -> Parts:
    """The finished algorithms of a run folder, in which a run may go on; raises a ValueError as ``claim`` does."""
    return by_algorithm(_finished(directory, text, grid, grows=False, force=None)[0])


def is_used(directory: pathlib.Path) -> bool:
    """Whether a run has been in the folder; to be asked before it is locked."""
    return any((directory / name).is_file() for name in (LOCK, ENVIRONMENT))


def check_new(directory: pathlib.Path, used: bool, remedy: str = ", or --resume") -> None:
    """Raises a ValueError if a new run would overwrite results; removes what a run that died without results logged."""
    for name in (RESULTS, TABLE, MODELS, CHECKPOINTS, RECORDS, PARTS, *_OF_WHOLE_RUNS):
        if (directory / name).exists():
            raise ValueError(f"expected a folder without results{remedy}, got {str(directory)!r}, which holds {name}")
    if (directory / CONFIG).exists() and not used:
        raise ValueError(f"expected a folder without a {CONFIG} that no run wrote, got {str(directory)!r}")
    for name in (LOG, EVALUATIONS):
        (directory / name).unlink(missing_ok=True)


def _resumed(
    directory: pathlib.Path, text: str, grid: str | None, force: bool | None
) -> tuple[Parts, Parts, Differences]:
    """Results of a run by label, those that are finished, and those that go on for more rounds; and what differs."""
    differ = Differences() if force is None else check_checkpoints(directory, text, grid, force)
    results, before, others = _finished(directory, text, grid, grows=True, force=force)
    if results is not None:  # an earlier process may have died after writing the results and before the table
        write(directory / TABLE, _table(results.metrics))
    finished, begun = further_rounds.divided(by_algorithm(results), before)
    models = {label: models_of(directory, label) for label in begun}
    further_rounds.check_models(text, models, {label: records_of(directory, label) for label in begun})
    return finished, begun, differ | others


def by_algorithm(results: Results | None) -> Parts:
    """Metrics and records of each finished algorithm, by label; empty if nothing is saved."""
    if results is None:
        return {}
    labels = [str(label) for label in results.metrics["algorithm"].values]
    return {label: Results(*(dataset.sel(algorithm=label, drop=True) for dataset in results)) for label in labels}


def _finished(
    directory: pathlib.Path, text: str, grid: str | None, *, grows: bool, force: bool | None
) -> tuple[Results | None, int | None, Differences]:
    """The results as written, the rounds after which some of them go on (None: none do), and what differs by force."""
    where, written = str(directory), config_of(directory)
    if not (directory / RESULTS).is_file():
        grown = grows and written is not None and added(written, text)
        if written is not None and not grown and (changed := difference(written, text)) is not None:
            raise ValueError(
                f"expected the config of the run in {where!r} to resume it, got a changed one: {changed} "
                "(nothing is saved there yet, so that it can also be run anew without --resume)"
            )
        return None, None, Differences()
    results, origin = _read(directory)
    metrics = results.metrics
    if origin is None:
        raise ValueError(f"expected results in {where!r} that name their config, got those of an older fljax")
    before = further_rounds.rounds_before(metrics, origin.config, text) if grows and grid is None else None
    may_differ = before is not None or (grows and bool(added(origin.config, text)))
    differ = check_same_run(origin, text, grid, "results", directory, may_differ=may_differ, force=force)
    behind = written is None or further_rounds.is_behind(metrics, origin.config, written)
    behind = behind or (grows and bool(added(origin.config, written or "")))
    if not behind and (changed := difference(origin.config, written or "")) is not None:
        raise ValueError(
            f"expected {CONFIG} and {RESULTS} in {where!r} to be of one run, got another {CONFIG}: {changed} "
            f"(remove {CONFIG} if the results are the right ones)"
        )
    return results, before, differ


def models_of(directory: pathlib.Path, label: str, part: str = "") -> pathlib.Path:
    """The file of an algorithm's models; ``part`` is a folder among them."""
    return directory / MODELS / part / f"{file_name(label)}.npz"


def labels_of(directory: pathlib.Path) -> list[str]:
    """The labels of the algorithms of a run folder or a saved comparison; empty if its text cannot be read."""
    return labels_in(tomllib.loads(config_of(directory) or _text_of(directory, COMPARISON) or ""))


def checkpoints_of(directory: pathlib.Path, label: str) -> pathlib.Path:
    """The folder of an algorithm's checkpoints."""
    return directory / CHECKPOINTS / file_name(label)


def records_of(directory: pathlib.Path, label: str) -> pathlib.Path:
    """The store of an algorithm's records, if they are long."""
    return directory / RECORDS / file_name(label)


def check_origin(directory: pathlib.Path) -> None:
    """Raises a ValueError if the folder has results of another config; nothing that the config names is imported."""
    text = config_of(directory) or ""
    origin = _read(directory)[1] if (directory / RESULTS).is_file() else None
    if origin is None or added(origin.config, text):  # a method that was added is not finished
        return
    if (changed := difference(origin.config, text)) is not None:
        raise ValueError(f"expected the config of the results in {str(directory)!r}, got a changed one: {changed}")


def config_of(directory: pathlib.Path) -> str | None:
    """The text of ``config.toml``; None if the file is missing, empty or not valid TOML."""
    return _text_of(directory, CONFIG)


def _text_of(directory: pathlib.Path, name: str) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        check_links(directory, (name,))
        text = (directory / name).read_text(encoding="utf-8")
        return text if tomllib.loads(text) else None
    return None


def record_in(directory: pathlib.Path) -> tuple[str, str]:
    """The record of a folder's results, as JSON ("" if there is none), and the version of fljax that wrote them."""
    origin = _read(directory)[1]
    return ("", "") if origin is None else (origin.record, origin.fljax)


def save_results(directory: pathlib.Path, results: Results, text: str, record: str | None = None) -> None:
    """Writes ``results.nc``, then ``metrics.csv``; ``text`` is the config of the results, ``record`` that of others."""
    origin = stores.origin(text) if record is None else stores.origin(text).assign({RECORD: ((), record)})
    content = stores.encoded(results.metrics, {"records": results.records, "origin": origin})
    write(directory / RESULTS, content)
    if further_rounds.CONTINUES in results.metrics.attrs:
        write(directory / CONFIG, text.encode())
    write(directory / TABLE, _table(results.metrics))


def _table(metrics: xr.Dataset) -> bytes:
    def is_scalar(dims: tuple[Any, ...]) -> bool:
        return dims[:1] == ("algorithm",) and dims[-2:] == ("seed", "evaluated_round")

    scalars = [str(name) for name, values in metrics.items() if is_scalar(values.dims) or name == "diverged"]
    return as_csv(metrics[scalars].to_dataframe().reset_index()).encode()


def load_results(directory: pathlib.Path) -> Results:
    """The results of a run folder."""
    return _read(directory)[0]


def _read(directory: pathlib.Path) -> tuple[Results, Origin | None]:
    """Results and their origin; None if the file has no origin."""
    check_own_files(directory)
    path = directory / RESULTS
    if not path.is_file():
        raise ValueError(f"expected a run folder with {RESULTS}, got {directory}")
    remedy = "put back a copy of it, or remove it and run all of its algorithms again with --resume"
    metrics, records, *origins = stores.read(
        path, ["records"], ["origin"], f"a whole file, got a damaged one: {remedy}"
    )
    if not origins:
        return Results(metrics, records), None
    texts = {name: str(origins[0][name].values) for name in ("config", "fljax", RECORD) if name in origins[0]}
    return Results(metrics, records), Origin(grid=metrics.attrs.get("grid"), **texts)
