"""``fljax sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fljax.cli.environment import start_jax
from fljax.cli.printing import Json, console, fail, print_json
from fljax.cli.progress import listener, progress_bars
from fljax.cli.running import (
    Cache,
    ConfigFile,
    NoImport,
    NoReport,
    Out,
    Overrides,
    Quiet,
    Resume,
    Seeds,
    TensorBoard,
    extra_callbacks,
    folder_of,
    resumable,
)

if TYPE_CHECKING:
    from fljax.sweep import Best


def sweep(
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
    tensorboard: TensorBoard = False,
) -> int:
    """Run every algorithm of CONFIG for every combination of the values of a grid; numbers share one program."""
    from fljax.config import load_grid

    changes = [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])]
    chosen = load_grid(config, changes, grid or (), imports=not no_import)
    start_jax(cache)
    from fljax import sweep as sweeping

    sweeping.check(chosen)
    folder = folder_of(chosen.config, out, resume)
    with resumable(folder):
        with progress_bars(quiet) as progress:
            outcome = sweeping.run(
                chosen,
                directory=folder,
                resume=resume,
                on_event=listener(progress),
                callbacks=extra_callbacks(tensorboard),
            )
        from fljax import report

        pictures = () if no_report else report.write(folder)
    if as_json:
        diverged = [dict(zip(("algorithm", "cell", "seed", "round"), each, strict=True)) for each in outcome.diverged]
        written = [str(path) for path in pictures]
        best = [each._asdict() for each in outcome.best]
        infinite = [each._asdict() for each in outcome.infinite]
        found = {"directory": str(folder), "best": best, "diverged": diverged, "infinite": infinite}
        print_json(found | {"report": written})
    elif not quiet:
        console(110).print(_table(outcome.best, str(outcome.metrics.attrs["metric"]), len(chosen.config.seeds)))
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
    if outcome.diverged:
        label, cell, seed, round_ = outcome.diverged[0]
        where = ", ".join(f"{name} = {value}" for name, value in cell.items())
        others = len(outcome.diverged) - 1
        more = f", and {others} more" if others else ""
        return fail(
            f"{label} diverged at {where} with seed {seed} in round {round_}{more}; all is saved in {folder}", 1
        )
    if outcome.infinite:
        others = len(outcome.infinite) - 1
        more = f", and so in {others} more" if others else ""
        return fail(f"{outcome.infinite[0]}{more}; all is saved in {folder}", 1)
    return 0


def _table(best: Sequence[Best], metric: str, seeds: int) -> Table:
    from fljax.report import best_rows

    head, *rows = best_rows(best, metric)
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    table = Table(title=f"Best cells at the last evaluation, {spread}", caption="*: at the edge of the grid")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table
