"""Sweeps as jobs of a cluster: ``fljax sweep --launcher slurm``, through submitit."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fljax.cli.stopping import Ended
from fljax.naming import unknown

if TYPE_CHECKING:
    from fljax.config.sweeping import Grid
    from fljax.sweep import Outcome

Launcher = Literal["slurm", "local"]
LAUNCHERS = ("slurm", "local")
JOBS = "jobs"  # submitit's files, in the folder of the sweep
MOST = 16  # parts, if their number is not given


class Job(NamedTuple):
    """One part of the sweep whose config is in a folder. Jobs are pickled, so that they hold numbers and texts only.

    Attributes:
      folder: of the sweep.
      number: of the part.
      count: as for ``sweep_parts.split``.
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
        """Runs the part, on the machine that the job is given."""
        from fljax.cli.environment import start_jax
        from fljax.config import load_grid
        from fljax.folders import CONFIG
        from fljax.progress_files import Saving

        folder = pathlib.Path(self.folder)
        grid = load_grid(folder / CONFIG, imports=self.imports)
        start_jax(self.cache)
        from fljax import sweep_parts

        part = sweep_parts.split(grid, self.count)[self.number]
        sweep_parts.run_part(part, folder, self.number, Saving(self.checkpoint_every, self.keep_checkpoints))

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit submits again if the cluster takes the machine away: the run goes on after its checkpoint."""
        from submitit.helpers import DelayedSubmission  # pyright: ignore[reportMissingImports] - an extra

        return DelayedSubmission(self)


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
      ValueError: if jobs cannot be started, or the folder is refused.
      Ended: if a job has failed; the algorithms whose parts have ended are in the results.
    """
    from fljax import sweep_parts

    executor = executor_of(launcher, folder / JOBS, options)
    sweep_parts.begin(grid, folder, resume)
    parts = sweep_parts.split(grid, job.count)
    left = sweep_parts.open_parts(parts, folder)
    jobs: dict[int, Any] = {}
    if left:
        with executor.batch():
            jobs = {number: executor.submit(job._replace(number=number)) for number in left}
    if not quiet:
        ids = ", ".join(str(each.job_id) for each in jobs.values()) or "none"
        print(f"{len(parts)} parts, {len(left)} to do; jobs {ids}", flush=True)
    try:
        _wait(jobs, quiet, every)
    except BaseException:  # Ctrl-C, say: the command that goes on submits them again
        for each in jobs.values():
            each.cancel(check=False)
        raise
    outcome = sweep_parts.join(grid, parts, folder)
    failed = [number for number, each in jobs.items() if _failed(each)]
    if outcome is None or failed:
        which = ", ".join(map(str, failed))
        one = failed[0] if failed else 0
        why = _reason(jobs[one]) if failed else "no part has results"
        raise Ended(f"part{'s' * (len(failed) > 1)} {which} failed ({why}); {folder / JOBS} has what jobs printed")
    return outcome


def _wait(jobs: Mapping[int, Any], quiet: bool, every: float) -> None:
    """Returns when all jobs have ended; says of each how."""
    waiting = dict(jobs)
    while waiting:
        for number, each in list(waiting.items()):
            if each.done():
                del waiting[number]
                if not quiet:
                    words = f"failed: {_reason(each)}" if _failed(each) else "ended"
                    print(f"part {number} {words}; {len(waiting)} left", flush=True)
        time.sleep(every if waiting else 0)


def _failed(job: Any) -> bool:
    return job.exception() is not None


def _reason(job: Any) -> str:
    """The last line of a failed job's traceback, without the name of its exception where that is one of fljax's."""
    text = str(job.exception()).split("You can check full logs")[0]  # submitit's words, and paths after them
    told = [line.strip() for line in text.splitlines() if line.strip(" -^~")]
    return re.sub(r"^(ValueError|fljax[.\w]*): ", "", told[-1]) if told else "nothing was said"


def check_jobs(count: int | None, grid: Grid) -> int:
    """The number of parts to make at most.

    Raises:
      ValueError: if it is not positive.
    """
    if count is not None and count < 1:
        raise ValueError(f"expected --jobs to be at least 1, got {count}")
    return count or min(MOST, len(grid.cells) * len(grid.config.algorithms))
