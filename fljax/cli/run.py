"""``fljax run``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from fljax.cli.environment import start_jax
from fljax.cli.printing import Json, console, fail, print_json
from fljax.cli.progress import listener, progress_bars
from fljax.cli.reproduce import check_chosen, print_chosen
from fljax.cli.running import (
    Cache,
    ConfigFile,
    NoImport,
    NoReport,
    Out,
    Overrides,
    Quiet,
    Resume,
    SaveModels,
    Seeds,
    TensorBoard,
    extra_callbacks,
    folder_of,
    resumable,
)

if TYPE_CHECKING:
    from fljax.report import Row

COLUMNS = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}
# Additional columns for a task without accuracy.
LOSSES = {"average_loss": "average loss", "unseen_average_loss": "average loss unseen"}


def run(
    config: ConfigFile,
    overrides: Overrides = None,
    seeds: Seeds = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    cache: Cache = True,
    quiet: Quiet = False,
    no_report: NoReport = False,
    no_import: NoImport = False,
    save_models: SaveModels = False,
    tensorboard: TensorBoard = False,
) -> int:
    """Run an experiment: every algorithm of CONFIG on the same data and seeds."""
    from fljax.config import load

    changes = [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])]
    chosen = load(config, changes, imports=not no_import)
    if chosen.published is not None:
        check_chosen(chosen.published)
    start_jax(cache)
    from fljax import experiment, saved_models

    folder = folder_of(chosen, out, resume)
    keep = functools.partial(saved_models.save, folder) if save_models else None
    with resumable(folder):
        with progress_bars(quiet) as progress:
            listen = listener(progress)
            outcome = experiment.run(
                chosen,
                directory=folder,
                resume=resume,
                on_event=listen,
                on_result=keep,
                callbacks=extra_callbacks(tensorboard),
            )
        from fljax import report

        rows = report.summary(outcome.metrics)
        pictures = () if no_report else report.write(folder)
    if as_json:
        diverged = [dict(zip(("algorithm", "seed", "round"), each, strict=True)) for each in outcome.diverged]
        written = [str(path) for path in pictures]
        summary = [row._asdict() for row in rows]
        infinite = [each._asdict() for each in outcome.infinite]
        found = {"directory": str(folder), "summary": summary, "diverged": diverged, "infinite": infinite}
        print_json(found | {"report": written})
    elif not quiet:
        console(110).print(_table(rows, len(chosen.seeds)))
        if chosen.published is not None:
            print_chosen(outcome.metrics, chosen.published)
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
    labels = [entry.label for entry in chosen.algorithms] if save_models else []
    absent = [label for label in labels if not saved_models.path_of(folder, label).is_file()]
    if absent:
        return fail(
            f"expected models of all algorithms, got none of {', '.join(absent)}, which were finished before models "
            "were asked for or could be saved; run them again in a new folder",
            1,
        )
    if outcome.diverged:
        label, seed, round_ = outcome.diverged[0]
        others = len(outcome.diverged) - 1
        more = f", and {others} more" if others else ""
        return fail(f"{label} diverged with seed {seed} in round {round_}{more}; all is saved in {folder}", 1)
    if outcome.infinite:
        others = len(outcome.infinite) - 1
        more = f", and so in {others} more" if others else ""
        return fail(f"{outcome.infinite[0]}{more}; all is saved in {folder}", 1)
    return 0


def _table(rows: Sequence[Row], seeds: int) -> Table:
    from fljax.report import pivot
    from fljax.report.tables import cell, when

    accuracies = any(row.metric == "average_accuracy" for row in rows)
    columns = COLUMNS if accuracies else COLUMNS | LOSSES
    lines = pivot(rows, list(columns))
    shown = [place for place in range(len(columns)) if any(line[place] for line in lines.values())]
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    last = f"{when(rows)}, " if rows else ""
    about = "IPR: share of clients that prefer the deployed model" + (
        "; accuracies are shares of 1" if accuracies else ""
    )
    table = Table(title=f"Test results {last}{spread}", caption=about)
    table.add_column("algorithm")
    for place in shown:
        table.add_column(list(columns.values())[place], justify="right")
    for label, line in lines.items():
        table.add_row(label, *[cell(line[place]) for place in shown])
    return table
