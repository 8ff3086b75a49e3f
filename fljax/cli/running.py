"""What commands that run experiments share: how JAX starts, the folder of results, how they save and go on."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fljax.cli.stopping import Ended, Interrupted, Signals
from fljax.core.errors import ProcessLost

if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.experiments.inputs.setup import CallbackSetup
    from fljax.experiments.running import Saving

# typer hands over a context of its own class, of which the public name is a subclass.
if TYPE_CHECKING:
    Context = typer.Context
else:
    Context = typer.Context.__mro__[1]

RUNS = pathlib.Path("runs")


def start_jax(cache: bool = True) -> None:
    """Configures JAX before it starts: cores become devices, and compiled programs are cached between runs."""
    import jax

    from fljax.engine.devices import cache as programs
    from fljax.engine.devices.cores import PATIENT, use_cores

    with contextlib.suppress(RuntimeError):  # JAX is already running in this process
        use_cores(None if PATIENT else 1)
    if cache:
        programs.begin()
    else:
        jax.config.update("jax_enable_compilation_cache", False)


def join(
    distributed: bool, coordinator: str | None, processes: int | None, process: int | None, patience: float
) -> None:
    """Joins this process with others if it is asked to, before JAX starts."""
    from fljax.core import processes as hosts

    if not distributed:
        if any(value is not None for value in (coordinator, processes, process)):
            raise ValueError(
                "expected --distributed beside --coordinator-address, --num-processes and --process-id, got none"
            )
        return
    # What libraries print goes to stderr: gloo's greetings would stand in the output of --json.
    sys.stdout.flush()
    printed = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(printed, "w", encoding=sys.stdout.encoding)
    before = signal.getsignal(signal.SIGTERM)
    try:
        hosts.distributed(coordinator, processes, process, initialization_timeout=patience)
    except RuntimeError as error:
        raise Ended(str(error)) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # JAX's preemption service takes this signal for itself


def memory() -> dict[str, str]:
    """The memory of the machine, and of each accelerator that reports it."""
    import jax

    sizes = {}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        sizes["machine"] = f"{pages * size / 2**30:.1f} GiB"
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit:
            sizes[f"{device.platform}:{device.id}"] = f"{limit / 2**30:.1f} GiB"
    return sizes


def folder_of(config: Config, out: pathlib.Path | None, resume: bool) -> pathlib.Path:
    """The folder for results, which is checked later: ``out``, the latest run of this name, or a new folder."""
    if out is not None:
        return out
    if resume:
        return latest_run(config.name, RUNS)
    try:
        return new_folder(config.name, RUNS)
    except OSError as error:
        raise ValueError(f"expected a folder to write in, got {str(RUNS)!r} ({error.strerror})") from None


def new_folder(name: str, runs: pathlib.Path) -> pathlib.Path:
    """Makes ``runs/NAME-TIME``, or ``NAME-TIME-2`` and so on if the folder already exists."""
    stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    runs.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def latest_run(name: str, runs: pathlib.Path) -> pathlib.Path:
    """The latest folder that ``new_folder`` made for exactly this name."""
    folders = []
    for folder in runs.glob("*"):
        match = re.fullmatch(re.escape(name) + r"-(\d{8}-\d{6})(?:-(\d+))?", folder.name)
        if match and folder.is_dir() and _name_in(folder) in (None, name):
            folders.append((match[1], int(match[2] or 1), folder))
    if not folders:
        raise ValueError(f"expected an earlier run of {name!r} in {str(runs)!r} to resume, got none")
    return max(folders)[-1]


def _name_in(folder: pathlib.Path) -> str | None:
    """The name in a folder's config; None if it cannot be read."""
    from fljax.core.files import check_links  # it needs NumPy

    with contextlib.suppress(OSError, ValueError):
        check_links(folder, ("config.toml",))
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")).get("name")
    return None


# Options that are not those of a command that resumes, with the number of words that follow them.
_LEFT_OUT = {
    "--out": 1,
    "--resume": 0,
    "--distributed": 0,
    "--coordinator-address": 1,
    "--num-processes": 1,
    "--process-id": 1,
}


class Invocation(NamedTuple):
    """How the command line was called: the arguments after ``fljax``, and the signals that have come."""

    arguments: tuple[str, ...]
    signals: Signals

    def again(self) -> str:
        """The same command, for those that go on by themselves."""
        return shlex.join(["fljax", *self.arguments])

    def command(self, folder: pathlib.Path) -> str:
        """The command that resumes this one in its folder, in one process."""
        words, chosen = list(self.arguments), []
        while words:
            word = words.pop(0)
            if word in _LEFT_OUT:
                words[: _LEFT_OUT[word]] = []
            elif word.partition("=")[0] not in _LEFT_OUT:
                chosen.append(word)
        return shlex.join(["fljax", *chosen, "--out", str(folder), "--resume"])


def saving_of(context: Context, every: float, keep: int, force: bool) -> Saving:
    """How a command saves checkpoints."""
    from fljax.engine.checkpoints import Checkpoint
    from fljax.experiments.running import Saving

    Checkpoint(".", every, keep).check()
    return Saving(every, keep, context.obj.signals.stop, force)


@contextlib.contextmanager
def resumable(folder: pathlib.Path, context: Context, again: str | None = None) -> Iterator[None]:
    """Says how to resume an interrupted command (``again``), and where results are of a run that stopped itself."""
    from fljax.engine.checkpoints import Stopped

    called: Invocation = context.obj
    command = called.command(folder) if again is None else again
    try:
        yield
    except Stopped as stop:
        number = called.signals.seen[0] if called.signals.seen else signal.SIGTERM
        part()
        rounds = f"round {stop.saved} of {stop.rounds}"
        where = rounds if stop.unit == "rounds" else f"{stop.saved} of {stop.rounds} {stop.unit}"
        there = "nothing could be saved" if stop.saved is None else f"saved after {where}"
        raise Interrupted(number, f"interrupted; {there}; to go on: {command}") from None
    except (KeyboardInterrupt, Interrupted) as stop:
        number = stop.number if isinstance(stop, Interrupted) else signal.SIGINT
        words = f"interrupted; what was saved before is kept; to go on: {command}"
        raise Interrupted(number, words) from None
    except ProcessLost as lost:
        raise ProcessLost(f"{lost}; to go on in one process: {command}") from None
    except ArithmeticError as error:
        from fljax.results.non_finite import NotFinite

        if not isinstance(error, NotFinite):
            raise
        part()
        raise Ended(f"{error}; what was computed before is saved in {folder}") from None


def part() -> None:
    """Where all processes of a command end alike, each waits here for the others."""
    hosts: Any = sys.modules.get("fljax.core.processes")  # not imported here, since it imports JAX
    if hosts is not None:
        hosts.part()


def extra_callbacks(tensorboard: bool) -> tuple[CallbackSetup, ...]:
    """The callbacks that options ask for, beside those of the config."""
    from fljax.engine.callbacks import CALLBACKS
    from fljax.experiments.inputs.setup import CallbackSetup

    return (CallbackSetup(CALLBACKS["tensorboard"]),) if tensorboard else ()
