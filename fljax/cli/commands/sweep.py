"""``fljax sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fljax.cli.environment import join, start_jax
from fljax.cli.launching import Job, Launcher, check_jobs, launch
from fljax.cli.printing import Json, console, fail, print_json
from fljax.cli.running import (
    Cache,
    CheckpointEvery,
    ConfigFile,
    Context,
    Coordinator,
    Distributed,
    KeepCheckpoints,
    NoImport,
    NoReport,
    Out,
    Overrides,
    Patience,
    Processes,
    ProcessId,
    Quiet,
    Resume,
    Seeds,
    TensorBoard,
    extra_callbacks,
    folder_of,
    resumable,
    saving_of,
)
from fljax.experiments.outputs.progress_bars import listener, progress_bars

if TYPE_CHECKING:
    from fljax.results.sweeps import Best


def sweep(
    context: Context,
    config: ConfigFile,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="A.B=C,D",
            help="Values of a key to try; may be repeated. Before the config's.",
        ),
    ] = None,
    overrides: Overrides = None,
    seeds: Seeds = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    cache: Cache = True,
    quiet: Quiet = False,
    no_report: NoReport = False,
    no_import: NoImport = False,
    checkpoint_every: CheckpointEvery = 30.0,
    keep_checkpoints: KeepCheckpoints = 2,
    tensorboard: TensorBoard = False,
    launcher: Annotated[
        Launcher | None,
        typer.Option(help="Run parts of the sweep as jobs, which submitit (extra slurm) starts, and join them."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="With --launcher: number of parts at most; 16 if not given.")] = None,
    job_options: Annotated[
        list[str] | None,
        typer.Option(
            "--job-option",
            metavar="NAME=VALUE",
            help="With --launcher: an option of submitit, such as slurm_partition=gpu; may be repeated.",
        ),
    ] = None,
    distributed: Distributed = False,
    coordinator_address: Coordinator = None,
    num_processes: Processes = None,
    process_id: ProcessId = None,
    initialization_timeout: Patience = 60.0,
) -> int:
    """Run every algorithm of CONFIG for every combination of the values of a grid; numbers share one program."""
    from fljax.config import load_grid

    changes = [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])]
    chosen = load_grid(config, changes, grid or (), imports=not no_import)
    if launcher is None and (jobs is not None or job_options):
        raise ValueError("expected --launcher with --jobs and --job-option, got none")
    if launcher is not None and tensorboard:
        raise ValueError("expected no --tensorboard with --launcher, got both")
    if launcher is not None and distributed:
        raise ValueError("expected --launcher or --distributed, got both")
    join(distributed, coordinator_address, num_processes, process_id, initialization_timeout)
    if launcher is None:
        start_jax(cache)
    from fljax.core import processes
    from fljax.experiments import sweep as sweeping

    sweeping.check(chosen)
    saving = saving_of(context, checkpoint_every, keep_checkpoints)
    first = processes.is_first()  # which writes and prints
    folder = processes.agreed(lambda: folder_of(chosen.config, out, resume))
    with resumable(folder, context):
        if launcher is not None:
            count = check_jobs(jobs, chosen)
            job = Job(str(folder.resolve()), 0, count, not no_import, cache, saving.every, saving.keep)
            outcome = launch(chosen, folder, launcher, job, resume, job_options or (), quiet or as_json)
        else:
            with progress_bars(quiet or not first) as progress:
                outcome = sweeping.run(
                    chosen,
                    directory=folder,
                    resume=resume,
                    on_event=listener(progress),
                    saving=saving,
                    callbacks=extra_callbacks(tensorboard),
                )
        from fljax import report
        from fljax.results.non_finite import diverged_seeds, in_which, senders_of

        pictures = () if no_report or not first else report.write(folder)
    names = ("algorithm", "cell", "seed", "round")
    diverged: list[dict[str, Any]] = [dict(zip(names, each, strict=True)) for each in outcome.diverged]
    for each in diverged:
        own = {"algorithm": each["algorithm"], "seed": each["seed"], **each["cell"]}
        each["clients"] = senders_of(outcome.metrics, own)
    if not first:
        pass
    elif as_json:
        written = [str(path) for path in pictures]
        best = [each._asdict() for each in outcome.best]
        infinite = [each._asdict() for each in outcome.infinite]
        found = {"directory": str(folder), "best": best, "diverged": diverged, "infinite": infinite}
        print_json(found | {"report": written})
    elif not quiet:
        metric, marks = str(outcome.metrics.attrs["metric"]), diverged_seeds(outcome.metrics)
        console(110).print(_table(outcome.best, metric, len(chosen.config.seeds), marks))
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
        if pictures and (said := report.font_note(report.texts_of(outcome.metrics))):
            print(said)
    if outcome.diverged:
        label, cell, seed, round_ = outcome.diverged[0]
        where = ", ".join(f"{name} = {value}" for name, value in cell.items())
        others = len(outcome.diverged) - 1
        more = f", and {others} more" if others else ""
        who = in_which(diverged[0]["clients"] or None)
        return fail(
            f"{label} diverged at {where} with seed {seed} in round {round_}{who}{more}; all is saved in {folder}",
            1,
        )
    if outcome.infinite:
        others = len(outcome.infinite) - 1
        more = f", and so in {others} more" if others else ""
        return fail(f"{outcome.infinite[0]}{more}; all is saved in {folder}", 1)
    return 0


def _table(best: Sequence[Best], metric: str, seeds: int, diverged: Mapping[str, str] | None = None) -> Table:
    from fljax.report import best_rows

    head, *rows = best_rows(best, metric, diverged or {})
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    table = Table(title=f"Best cells at the last evaluation, {spread}", caption="*: at the edge of the grid")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table
