"""Jobs of a launcher: a note of their numbers, which of them still run, and how they are started and cancelled apart.

``jobs/submitted.json`` in the folder of a sweep has the numbers of the jobs that were not known to have ended when a
launcher last wrote it, by part.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import filelock

from fljax.cli.stopping import SIGNALS
from fljax.core import files

NOTE, LOCK = "submitted.json", "launcher.lock"


class Note(NamedTuple):
    """What a launcher has submitted.

    Attributes:
      launcher: its name.
      host: the machine it ran on.
      count: as for ``fljax.experiments.sweep_parts.split``; None: no launcher has written a note.
      jobs: numbers of jobs by part.
    """

    launcher: str = ""
    host: str = ""
    count: int | None = None
    jobs: Mapping[int, str] = {}


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def write(folder: pathlib.Path, note: Note) -> None:
    """Writes the note into the folder of the jobs."""
    files.write(folder / NOTE, (json.dumps(note._asdict()) + "\n").encode())


def read(folder: pathlib.Path) -> Note:
    """The note of the folder; an empty one if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        jobs = {int(number): str(job) for number, job in found["jobs"].items()}
        return Note(str(found["launcher"]), str(found["host"]), int(found["count"]), jobs)
    return Note()


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Locks the folder of the jobs, since two launchers would submit the same parts.

    Raises:
      ValueError: if another launcher has locked it, or it cannot be written.
    """
    lock = filelock.FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0.2, poll_interval=0.02)
    except filelock.Timeout:
        raise ValueError(
            f"expected a folder in which no other launcher waits for jobs, got {str(folder.parent)!r}"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise ValueError(f"expected a folder to write and lock files in, got {str(folder)!r} ({error})") from None
    try:
        yield
    finally:
        lock.release()


def live(folder: pathlib.Path, note: Note) -> dict[int, Any]:
    """The jobs of a note that wait or run, by part, as submitit's.

    Raises:
      ValueError: if this cannot be said of one.
    """
    found = {}
    for number, job_id in note.jobs.items():
        job = _attached(folder, note.launcher, job_id)
        is_live = _is_live(job, note)
        if is_live is None:
            who = f"jobs of {note.host}" if note.launcher == "local" else f"sacct of {note.launcher}"
            raise ValueError(
                f"expected {who} to be within reach, as job {job_id} of an earlier launcher may still run, got no "
                f"answer (if it has ended, remove {folder / NOTE})"
            )
        if is_live:
            found[number] = job
    return found


def _attached(folder: pathlib.Path, launcher: str, job_id: str) -> Any:
    import submitit  # pyright: ignore[reportMissingImports] - an extra

    if launcher == "local":
        process: Any = _Process(int(job_id), str(folder.absolute()))
        return submitit.LocalJob(folder, job_id, process=process)
    return submitit.SlurmJob(folder, job_id)


def _is_live(job: Any, note: Note) -> bool | None:
    """Whether a job waits or runs; None: nobody can say."""
    if job.paths.result_pickle.exists():
        return False
    if note.launcher == "local":
        return not job.done() if note.host == host() else None
    if job.watcher.get_state(job.job_id, mode="force").upper() == "UNKNOWN":
        return None
    return not job.done()


class _Process:
    """A process that submitit's local launcher has started in another process of ours, as ``subprocess.Popen``."""

    def __init__(self, number: int, folder: str) -> None:
        self._number, self._folder = number, folder

    def poll(self) -> int | None:
        """None while it runs. Its exit code is not known."""
        command = _command(self._number)
        return None if "submitit.local._local" in command and self._folder in command else 0

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._number, number)


def _command(process: int) -> str:
    """The command line of a process of this machine; empty if there is none. Another one may have its number now."""
    if os.path.exists("/proc/self/cmdline"):
        with contextlib.suppress(OSError):
            return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""
    return subprocess.run(["ps", "-o", "args=", "-p", str(process)], capture_output=True, text=True).stdout


def cancel(job: Any) -> None:
    """Cancels a job. Slurm sends SIGTERM, and so is sent to a job of this machine: it saves, and ends."""
    import submitit  # pyright: ignore[reportMissingImports] - an extra

    if not isinstance(job, submitit.LocalJob):
        job.cancel(check=False)
    elif not job.done():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals to stop that come inside are handled afterwards, so that every job that starts is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            before[signal.Signals(number)](number, None)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Processes that start inside ignore Ctrl-C, which a terminal sends to them as well as to the launcher."""
    with undisturbed():
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
