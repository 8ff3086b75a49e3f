"""Sweeps as jobs of a cluster: ``fljax sweep --launcher slurm``, through submitit.

A launcher notes its jobs in their folder (``fljax.cli.jobs``). One that dies leaves them to the launcher that resumes.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fljax.cli import jobs as noted
from fljax.cli.stopping import Ended, Interrupted, Signals, interruptible
from fljax.core.names import unknown

if TYPE_CHECKING:
    from fljax.config.sweeping import Grid
    from fljax.experiments.sweep import Outcome

Launcher = Literal["slurm", "local"]
LAUNCHERS = ("slurm", "local")
JOBS = "jobs"  # submitit's files, in the folder of the sweep
MOST = 16  # parts, if their number is not given
SAVING = 30.0  # seconds that jobs of this machine have for a last checkpoint, and that cancelled jobs of Slurm wait
# States of submitit's local jobs, which end so also if they were killed, and those that say nothing.
_USUAL = ("FINISHED", "INTERRUPTED", "UNKNOWN", "COMPLETED", "NO PROCESS AND NO RESULT")


class Job(NamedTuple):
    """One part of the sweep whose config is in a folder. Jobs are pickled, so that they hold numbers and texts only.

    Attributes:
      folder: of the sweep.
      number: of the part.
      count: as for ``fljax.experiments.sweep_parts.split``.
      imports: whether import paths in the config are followed.
      cache: whether compiled programs are kept.
      checkpoint_every: seconds between two checkpoints; None: no checkpoints.
      keep_checkpoints: how many are kept.
    """

    folder: str
    number: int
    count: int
    imports: bool
    cache: bool
    checkpoint_every: float | None
    keep_checkpoints: int

    def __call__(self) -> None:
        """Runs the part, on the machine that the job is given. A signal to stop lets it save a checkpoint first.

        A job that was stopped ends without a result, so that submitit does not take its part for a finished one.
        """
        try:
            with interruptible() as signals:
                self._run(signals)
        except Interrupted as stop:
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                # Slurm ends a job that is cancelled. One that must make room gets submitit's signal, or is queued again
                # if it has not ended.
                time.sleep(SAVING)
            raise SystemExit(stop.code) from None

    def _run(self, signals: Signals) -> None:
        from fljax.cli.environment import start_jax
        from fljax.config import load_grid
        from fljax.experiments.outputs.progress_files import Saving
        from fljax.results.folders import CONFIG

        folder = pathlib.Path(self.folder)
        grid = load_grid(folder / CONFIG, imports=self.imports)
        start_jax(self.cache)
        from fljax.experiments import sweep_parts

        part = sweep_parts.split(grid, self.count)[self.number]
        saving = Saving(self.checkpoint_every, self.keep_checkpoints, signals.stop)
        with _saving_first(signals):
            sweep_parts.run_part(part, folder, self.number, saving)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit submits again if the cluster takes the machine away: the run goes on after its checkpoint."""
        from submitit.helpers import DelayedSubmission  # pyright: ignore[reportMissingImports] - an extra

        return DelayedSubmission(self)


@contextlib.contextmanager
def _saving_first(signals: Signals) -> Iterator[None]:
    """Submitit's signal, that a job's time is up, lets the run save before submitit submits the job again."""
    from submitit.core.job_environment import JobEnvironment  # pyright: ignore[reportMissingImports] - an extra

    from fljax.engine.checkpoints import Stopped

    number = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
    before: Any = signal.getsignal(number)
    if not callable(before):  # not a job
        yield
        return
    came: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if came or not signals.stop.heard:
            before(number, frame)
        came.append(number)
        signals.stop.make()

    signal.signal(number, handle)
    try:
        yield
    except Stopped:
        if came and not signals.seen:
            before(number, None)  # it ends the process
        raise
    finally:
        signal.signal(number, before)


def executor_of(launcher: str, folder: pathlib.Path, options: Sequence[str]) -> Any:
    """submitit's executor.

    Args:
      launcher: a name of ``LAUNCHERS``.
      folder: for the files of jobs.
      options: ``"name=value"`` of ``submitit.AutoExecutor.update_parameters``, such as ``"slurm_partition=gpu"``.

    Raises:
      ValueError: if submitit is missing, the launcher is not there, or an option is wrong.
    """
    if launcher not in LAUNCHERS:
        raise ValueError(unknown("launcher", launcher, LAUNCHERS))
    try:
        import submitit  # pyright: ignore[reportMissingImports] - an extra
    except ModuleNotFoundError:
        raise ValueError("expected submitit for --launcher, got none (pip install submitit)") from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=launcher)
    except RuntimeError as error:
        raise ValueError(f"expected a machine that can start jobs of {launcher}, got: {error}") from None
    given = {"name": "fljax", "timeout_min": 24 * 60} | dict(map(_option, options))
    try:
        executor.update_parameters(**given)
    except (NameError, AssertionError, TypeError, ValueError) as error:
        words = str(error).splitlines()[0]
        raise ValueError(f"expected options that submitit knows with --job-option, got: {words}") from None
    return executor


def _option(text: str) -> tuple[str, Any]:
    from fljax.config.reading import toml_value

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"expected --job-option NAME=VALUE, got {text!r}")
    return name.strip(), toml_value(value)


def launch(
    grid: Grid,
    folder: pathlib.Path,
    launcher: str,
    job: Job,
    resume: bool,
    options: Sequence[str] = (),
    quiet: bool = False,
    every: float = 1.0,
) -> Outcome:
    """Submits the parts that have no results yet, waits for them, and joins the results; Ctrl-C cancels the jobs.

    Jobs that an earlier launcher has left are waited for. They are submitted again only if they end without a result.

    Args:
      grid: the sweep.
      folder: of the sweep.
      launcher: as for ``executor_of``.
      job: what all parts have in common; ``number`` is replaced.
      resume: whether the folder may have parts already.
      options: as for ``executor_of``.
      quiet: whether nothing is printed.
      every: seconds between two looks at the jobs.

    Raises:
      ValueError: if jobs cannot be started, the folder is refused, it was divided into other parts, or nobody can say
        whether jobs of an earlier launcher still run.
      Ended: if a job has failed; the algorithms whose parts have ended are in the results.
    """
    from fljax.experiments import sweep_parts

    executor = executor_of(launcher, folder / JOBS, options)
    with noted.alone(folder / JOBS):
        note = noted.read(folder / JOBS)
        earlier = noted.live(folder / JOBS, note)
        if earlier and not resume:
            raise ValueError(
                f"expected --resume, or a folder without jobs, got {str(folder)!r}, in which jobs of an earlier "
                f"launcher wait or run: {_ids(earlier)}"
            )
        sweep_parts.begin(grid, folder, resume)
        parts = sweep_parts.split(grid, job.count)
        if resume and note.count is not None:
            _check_same_parts(sweep_parts.split(grid, note.count), parts, note.count, job.count, folder)
        left = sweep_parts.open_parts(parts, folder, busy=earlier)
        work = _Work(executor, launcher, job, folder / JOBS, dict(earlier))
        try:
            work.submit(left)
            if not quiet:
                new = _ids({number: work.jobs[number] for number in left})
                old = f"; of an earlier launcher: jobs {_ids(earlier)}" if earlier else ""
                print(f"{len(parts)} parts, {len(left) + len(earlier)} to do; jobs {new}{old}", flush=True)
            failed = _wait(work.jobs, quiet, every)
            again = [number for number in earlier if isinstance(failed.get(number), NoResult)]
            if again:  # they were stopped with their launcher, say
                work.submit(again)
                if not quiet:
                    print(f"{len(again)} parts again; jobs {_ids({n: work.jobs[n] for n in again})}", flush=True)
                found = _wait({number: work.jobs[number] for number in again}, quiet, every)
                failed = {number: why for number, why in failed.items() if number not in again} | found
        except BaseException:  # Ctrl-C, say: the command that goes on submits them again
            work.cancel(quiet)
            raise
        work.forget()
        outcome = sweep_parts.join(grid, parts, folder)
    if outcome is None or failed:
        words = "no part has results"
        if failed:
            first = min(failed)
            words = f"part{'s' * (len(failed) > 1)} {', '.join(map(str, sorted(failed)))} failed ({failed[first]})"
        raise Ended(
            f"{words}; {folder / JOBS} has what jobs printed; to go on: the same command with --out {folder} --resume"
        )
    return outcome


def _ids(jobs: Mapping[int, Any]) -> str:
    return ", ".join(str(each.job_id) for each in jobs.values()) or "none"


def _check_same_parts(there: Any, here: Any, count: int, given: int, folder: pathlib.Path) -> None:
    """Raises a ValueError if the parts of the folder are not those of this number of jobs."""
    if [(part.places, part.labels) for part in there] != [(part.places, part.labels) for part in here]:
        raise ValueError(f"expected --jobs {count}, as the parts in {str(folder)!r} were made, got {given}")


class _Work:
    """The jobs of one launcher.

    Attributes:
      jobs: by part.
    """

    def __init__(self, executor: Any, launcher: str, job: Job, folder: pathlib.Path, jobs: dict[int, Any]) -> None:
        self._executor, self._launcher, self._job, self._folder = executor, launcher, job, folder
        self.jobs = jobs

    def submit(self, numbers: Sequence[int]) -> None:
        """Submits parts, and notes the numbers of their jobs."""
        if self._launcher == "local":
            for number in numbers:
                with noted.apart():
                    self.jobs[number] = self._executor.submit(self._job._replace(number=number))
                    self._note(self.jobs)
        elif numbers:
            with noted.undisturbed():
                with self._executor.batch():
                    found = {number: self._executor.submit(self._job._replace(number=number)) for number in numbers}
                self.jobs |= found
                self._note(self.jobs)

    def _note(self, jobs: Mapping[int, Any]) -> None:
        ids = {number: str(each.job_id) for number, each in jobs.items()}
        noted.write(self._folder, noted.Note(self._launcher, noted.host(), self._job.count, ids))

    def forget(self) -> None:
        """Notes that all jobs have ended."""
        self._note({})

    def cancel(self, quiet: bool) -> None:
        """Cancels all jobs; those of this machine have some seconds to save what they have computed."""
        running = {number: each for number, each in self.jobs.items() if not each.done()}
        if not running:
            return self.forget()
        for each in running.values():
            noted.cancel(each)
        if not quiet:
            print(f"cancelling jobs {_ids(running)}, which may save first; again: at once", flush=True)
        until = time.monotonic() + SAVING
        while self._launcher == "local" and running and time.monotonic() < until:
            time.sleep(0.1)
            running = {number: each for number, each in running.items() if not each.done()}
        self._note(running)


class NoResult(str):
    """Words about a job that has ended without a result."""


def _wait(jobs: Mapping[int, Any], quiet: bool, every: float) -> dict[int, str]:
    """Returns when all jobs have ended; says of each how. The reasons of those that failed, by part."""
    waiting, failed = dict(jobs), dict[int, str]()
    while waiting:
        for number, each in list(waiting.items()):
            if each.done():
                del waiting[number]
                error = each.exception()
                if error is not None:
                    failed[number] = reason(str(error))
                if not quiet:
                    words = f"failed: {failed[number]}" if number in failed else "ended"
                    print(f"part {number} {words}; {len(waiting)} left", flush=True)
        time.sleep(every if waiting else 0)
    return failed


def reason(text: str) -> str:
    """Why a job has failed, from submitit's words.

    This is the error of the last traceback, without the name of its exception where that is one of fljax's. Without
    any traceback, the job was killed; submitit's words then have its state and what it has logged.
    """
    _, head, trace = text.split("You can check full logs")[0].rpartition("Traceback (most recent call last)")
    if not head:
        state = re.search(r"\(state: ([\w ]+)\)", text)
        known = f", its state is {state[1]}" if state and state[1] not in _USUAL else ""
        return NoResult(f"its job was killed, or has ended without a result{known}")
    told = [line.strip() for line in trace.splitlines()[1:] if line.strip() and not line.startswith(" ")]
    return re.sub(r"^(ValueError|fljax[.\w]*): ", "", told[0]) if told else "nothing was said"


def check_jobs(count: int | None, grid: Grid) -> int:
    """The number of parts to make at most.

    Raises:
      ValueError: if it is not positive.
    """
    if count is not None and count < 1:
        raise ValueError(f"expected --jobs to be at least 1, got {count}")
    return count or min(MOST, len(grid.cells) * len(grid.config.algorithms))
