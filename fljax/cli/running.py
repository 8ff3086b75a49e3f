"""Helpers for the commands that run experiments: the folder of the results, how they save, and how they go on."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import pathlib
import re
import shlex
import signal
import sys
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


def folder_of(config: Config, out: pathlib.Path | None, resume: bool) -> pathlib.Path:
    """The folder for results: ``out``, the latest run of this name, or a new folder.

    ``fljax.results.folders.claim`` checks later whether the folder may be used.

    Raises:
      ValueError: if there is no run to resume, or no folder can be made.
    """
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
    """The latest folder that ``new_folder`` made for exactly this name.

    Raises:
      ValueError: if there is no such folder.
    """
    found = []
    for folder in runs.glob("*"):
        match = re.fullmatch(re.escape(name) + r"-(\d{8}-\d{6})(?:-(\d+))?", folder.name)
        if match and folder.is_dir() and _name_in(folder) in (None, name):
            found.append((match[1], int(match[2] or 1), folder))
    if not found:
        raise ValueError(f"expected an earlier run of {name!r} in {str(runs)!r} to resume, got none")
    return max(found)[-1]


def _name_in(folder: pathlib.Path) -> str | None:
    """The name in a folder's config; None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
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
    """How the command line was called.

    Attributes:
      arguments: after ``fljax``.
      signals: those that have come.
    """

    arguments: tuple[str, ...]
    signals: Signals

    def again(self) -> str:
        """The same command, for those that go on by themselves."""
        return shlex.join(["fljax", *self.arguments])

    def command(self, folder: pathlib.Path) -> str:
        """The command that resumes this one in its folder, in one process."""
        given, kept = list(self.arguments), []
        while given:
            word = given.pop(0)
            if word in _LEFT_OUT:
                given[: _LEFT_OUT[word]] = []
            elif word.partition("=")[0] not in _LEFT_OUT:
                kept.append(word)
        return shlex.join(["fljax", *kept, "--out", str(folder), "--resume"])


def saving_of(context: Context, every: float, keep: int) -> Saving:
    """How a command saves checkpoints.

    Raises:
      ValueError: if a number is out of range.
    """
    from fljax.engine.checkpoints import Checkpoint
    from fljax.experiments.running import Saving

    Checkpoint(".", every, keep).check()
    return Saving(every, keep, context.obj.signals.stop)


@contextlib.contextmanager
def resumable(folder: pathlib.Path, context: Context, again: str | None = None) -> Iterator[None]:
    """Says how to resume a command that is interrupted, and where the results of a run are that stopped itself.

    ``again`` is the command that goes on; None: the same one with ``--resume``.
    """
    from fljax.engine.checkpoints import Stopped

    called: Invocation = context.obj
    command = called.command(folder) if again is None else again
    try:
        yield
    except Stopped as stop:
        number = called.signals.seen[0] if called.signals.seen else signal.SIGTERM
        part()
        there = "nothing could be saved" if stop.saved is None else f"saved after round {stop.saved} of {stop.rounds}"
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
