"""``fljax run``."""

from __future__ import annotations

import datetime
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fljax.cli.environment import environment, start_jax
from fljax.cli.printing import Json, fail, print_json
from fljax.cli.reproduce import print_chosen

if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.experiment import Event
    from fljax.report import Row

COLUMNS = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}


def run(
    config: Annotated[pathlib.Path, typer.Argument(help="A TOML file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds, from 0.")] = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Folder of the results; runs/NAME-TIME if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --out, or with the latest run of this name.")
    ] = False,
    as_json: Json = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep compiled programs for later runs, in ~/.cache/fljax.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Draw no pictures.")] = False,
) -> int:
    """Run an experiment: every algorithm of CONFIG on the same data and seeds."""
    from fljax.config import load

    chosen = load(config, [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])])
    folder = _folder(chosen, out, resume)
    start_jax(cache)
    from fljax import experiment

    _prepare(folder, chosen, resume)
    with _progress(quiet) as progress:
        listen = _listener(progress, chosen)
        try:
            outcome = experiment.run(chosen, directory=folder, resume=resume, on_event=listen)
        except KeyboardInterrupt:
            again = f"--resume --out {folder}"
            return fail(f"interrupted; finished algorithms are saved, {again} goes on after them", 1)
    from fljax import report

    rows = report.summary(outcome.metrics)
    pictures = () if no_report else report.write(folder)
    if as_json:
        diverged = [dict(zip(("algorithm", "seed", "round"), each, strict=True)) for each in outcome.diverged]
        written = [str(path) for path in pictures]
        summary = [row._asdict() for row in rows]
        print_json({"directory": str(folder), "summary": summary, "diverged": diverged, "report": written})
    elif not quiet:
        # Where there is no terminal to fit into (a file, a pipe), no cell is broken in two.
        Console(width=None if sys.stdout.isatty() else 110).print(_table(rows, len(chosen.seeds)))
        if chosen.published is not None:
            print_chosen(outcome.metrics, chosen.published)
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
    if outcome.diverged:
        label, seed, round_ = outcome.diverged[0]
        others = len(outcome.diverged) - 1
        more = f", and {others} more" if others else ""
        return fail(f"{label} diverged with seed {seed} in round {round_}{more}; all is saved in {folder}", 1)
    return 0


def _folder(config: Config, out: pathlib.Path | None, resume: bool) -> pathlib.Path:
    """Where results go.

    Raises:
      ValueError: there is nothing to resume, or the folder holds results that would be lost.
    """
    if resume and out is None:
        runs = sorted(pathlib.Path("runs").glob(f"{config.name}-[0-9]*"))
        if not runs:
            raise ValueError(f"expected an earlier run of {config.name!r} in 'runs' to resume, got none")
        return runs[-1]
    if out is None:
        return pathlib.Path("runs") / f"{config.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if (out / "results.nc").exists() and not resume:
        raise ValueError(f"expected a folder without results, or --resume, got {str(out)!r}, which holds some")
    return out


def _prepare(folder: pathlib.Path, config: Config, resume: bool) -> None:
    """Makes the folder and writes what was asked for and where it runs, before anything is computed."""
    from fljax.config import dumps

    text, written = dumps(config), folder / "config.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if resume and written.exists() and written.read_text(encoding="utf-8") != text:
            raise ValueError(f"expected the config of the run in {str(folder)!r} to resume it, got a changed one")
        written.write_text(text, encoding="utf-8")
        found = json.dumps(environment(), indent=2) + "\n"
        (folder / "environment.json").write_text(found, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"expected a folder to write in, got {str(folder)!r} ({error.strerror})") from None


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def _listener(progress: Progress, config: Config) -> Any:
    """Turns events into bars, one for each algorithm; anything else is a line above them."""
    bars: dict[str, Any] = {}
    began: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.stage == "train":
            if event.label not in bars:
                bars[event.label] = progress.add_task(event.label, total=event.rounds, speed="")
                began[event.label] = event.seconds
            elapsed = event.seconds - began[event.label]
            speed = f"{event.round / elapsed:.1f} rounds/s" if event.round and elapsed > 0 else ""
            progress.update(bars[event.label], completed=event.round, speed=speed)
        elif event.message and not progress.disable:
            start = f"{event.label}: " if event.label else ""
            progress.console.print(f"{start}{event.message}", highlight=False, markup=False)

    return listen


def _table(rows: Sequence[Row], seeds: int) -> Table:
    from fljax.report import pivot
    from fljax.report.tables import cell

    lines = pivot(rows, list(COLUMNS))
    shown = [place for place in range(len(COLUMNS)) if any(line[place] for line in lines.values())]
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    last = f"after round {rows[0].round}, " if rows else ""
    about = "IPR: share of clients that prefer the deployed model; accuracies are shares of 1"
    table = Table(title=f"Test results {last}{spread}", caption=about)
    table.add_column("algorithm")
    for place in shown:
        table.add_column(list(COLUMNS.values())[place], justify="right")
    for label, line in lines.items():
        table.add_row(label, *[cell(line[place]) for place in shown])
    return table
