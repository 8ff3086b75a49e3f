"""What commands that run experiments share: how JAX starts, the folder of results, how they save and go on.

Signals that stop a command: at the first one a run saves, the second one ends; exit code 130 or 143.

Python's handlers wait for compiled code, so a thread reads the wake-up descriptor: the second signal ends the process.
"""

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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fljax.cli.options import Computing, RunOptions, WholeRunOptions
from fljax.core.errors import ProcessLost
from fljax.core.plain import tell
from fljax.experiments.progress_bars import listener, progress_bars

if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.engine.checkpoints import StopRequest
    from fljax.experiments.conductor import Saving
    from fljax.experiments.inputs.setup import CallbackSetup


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal has stopped the command. Not a subclass of KeyboardInterrupt, as Click handles that itself."""

    def __init__(self, number: int, words: str = "interrupted") -> None:
        super().__init__(words)
        self.number = number

    @property
    def code(self) -> int:
        """The exit code, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


class Ended(Exception):
    """A run has stopped itself. The message says why, and where its results are; the exit code is 1."""


class Signals:
    """Signals to stop that have come, and the request to stop of the run, which may still save what it has computed."""

    def __init__(self) -> None:
        self._stop: StopRequest | None = None
        self._arrived = 0
        self.seen: list[int] = []  # by the handler

    @property
    def stop(self) -> StopRequest:
        if self._stop is None:
            from fljax.engine.checkpoints import StopRequest  # imported here, since it imports JAX

            self._stop = StopRequest()
        return self._stop

    @property
    def _heard(self) -> bool:
        return self._stop is not None and self._stop.heard

    def arrive(self, number: int) -> None:
        """Called from another thread at every signal, since the handler waits until compiled code returns."""
        self._arrived += 1
        if self._arrived > 1:
            os._exit(128 + number)
        if self._heard:
            tell("stopping after these rounds, and saving; again: stopping at once", file=sys.stderr, flush=True)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler. Raises Interrupted unless a run stops by itself and saves."""
        if self._heard:
            self.seen.append(number)
            self.stop.make()
        elif _is_importing(frame):
            self.again(number)
        else:
            self.seen.append(number)
            raise Interrupted(number)

    def again(self, number: int) -> None:
        """Lets a signal come once more, a moment later, since an exception did not arrive or would not arrive."""
        self._arrived -= 1
        sender = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, number])
        sender.daemon = True
        sender.start()


@contextlib.contextmanager
def interruptible() -> Iterator[Signals]:
    """At the first signal, raises Interrupted or lets a run save and stop; the second ends the process at once."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # Signals that the shell set to be ignored stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    with _noticing(signals), _nothing_lost(signals):
        for number in before:
            signal.signal(number, signals.handle)
        try:
            yield signals
        except Exception as error:
            # Libraries may wrap Interrupted in their own errors: after a signal, any error becomes it.
            if signals.seen:
                raise Interrupted(signals.seen[0]) from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether Python imports something: C code that imports prints an exception, or aborts the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _nothing_lost(signals: Signals) -> Iterator[None]:
    """Python ignores exceptions in callbacks of its garbage collector and in finalizers; such a signal comes again."""
    # JAX has a callback there: while it starts, a quarter of all signals come in it.
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if isinstance(lost.exc_value, Interrupted):
            signals.seen.pop()
            signals.again(lost.exc_value.number)
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _noticing(signals: Signals) -> Iterator[None]:
    """A thread that calls ``signals.arrive`` as soon as a signal comes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def read() -> None:
        while (number := os.read(reading, 1)[0]) != 0:
            if number in SIGNALS:
                signals.arrive(number)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")  # no signal has this number
        thread.join()
        os.close(reading)
        os.close(writing)


# typer hands over a context of its own class, of which the public name is a subclass.
if TYPE_CHECKING:
    Context = typer.Context
else:
    Context = typer.Context.__mro__[1]

RUNS = pathlib.Path("runs")


def start_jax(cache: bool = True) -> None:
    """Configures JAX before it starts: cores become devices, and compiled programs are cached between runs."""
    import jax

    from fljax.engine.devices import layout as programs
    from fljax.engine.devices.layout import PATIENT, use_cores

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


def folder_of(config: Config, options: RunOptions | WholeRunOptions) -> pathlib.Path:
    """The folder for results, which is checked later: ``--out``, the latest run of this name, or a new folder."""
    if options.out is not None:
        return options.out
    if options.resume:
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


def saving_of(context: Context, options: Computing) -> Saving:
    """How a command saves checkpoints."""
    from fljax.engine.checkpoints import Checkpoint
    from fljax.experiments.conductor import Saving

    every, keep = options.checkpoint_every, options.keep_checkpoints
    Checkpoint(".", every, keep).check()
    return Saving(every, keep, context.obj.signals.stop, options.force)


@contextlib.contextmanager
def computing(
    context: Context, options: Computing, folder: Callable[[], pathlib.Path], again: str | None = None
) -> Iterator[tuple[pathlib.Path, Callable[..., Any]]]:
    """The folder of a command, and a function that calls an experiment with it, after ``start_jax``.

    The experiment saves there, and shows progress bars. An interruption says how to resume, see ``resumable``.
    """
    from fljax.core import processes

    saving = saving_of(context, options)
    place = processes.agreed(folder)

    def compute(experiment: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        with progress_bars(options.quiet or not processes.is_first()) as progress:
            return experiment(*arguments, directory=place, on_event=listener(progress), saving=saving, **more)

    with resumable(place, context, again):
        yield place, compute


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
