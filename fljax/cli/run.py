"""``fljax run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fljax.cli.environment import start_jax
from fljax.cli.printing import Json, console, fail, main_columns, print_json
from fljax.cli.progress import listener, progress_bars
from fljax.cli.reproduce import check_chosen, print_chosen
from fljax.cli.running import (
    Cache,
    CheckpointEvery,
    ConfigFile,
    Context,
    KeepCheckpoints,
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
    saving_of,
)

if TYPE_CHECKING:
    from fljax.report import Row


def run(
    context: Context,
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
    checkpoint_every: CheckpointEvery = 30.0,
    keep_checkpoints: KeepCheckpoints = 2,
    save_models: SaveModels = None,
    tensorboard: TensorBoard = False,
) -> int:
    """Run an experiment: every algorithm of CONFIG on the same data and seeds."""
    from fljax.config import load

    changes = [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])]
    changes += [] if save_models is None else [f"save_models={save_models}"]
    chosen = load(config, changes, imports=not no_import)
    if chosen.published is not None:
        check_chosen(chosen.published)
    start_jax(cache)
    from fljax import experiment
    from fljax.model_files import ModelFiles

    saving = saving_of(context, checkpoint_every, keep_checkpoints)
    folder = folder_of(chosen, out, resume)
    with resumable(folder, context):
        with progress_bars(quiet) as progress:
            listen = listener(progress)
            outcome = experiment.run(
                chosen,
                directory=folder,
                resume=resume,
                on_event=listen,
                saving=saving,
                callbacks=extra_callbacks(tensorboard),
            )
        from fljax import report
        from fljax.anomalies import diverged_seeds, in_which, senders_of

        rows = report.summary(outcome.metrics)
        pictures = () if no_report else report.write(folder)
    names = ("algorithm", "seed", "round")
    diverged: list[dict[str, Any]] = [dict(zip(names, each, strict=True)) for each in outcome.diverged]
    for each in diverged:
        each["clients"] = senders_of(outcome.metrics, {name: each[name] for name in ("algorithm", "seed")})
    if as_json:
        written = [str(path) for path in pictures]
        summary = [row._asdict() for row in rows]
        infinite = [each._asdict() for each in outcome.infinite]
        found = {"directory": str(folder), "summary": summary, "diverged": diverged, "infinite": infinite}
        print_json(found | {"report": written})
    elif not quiet:
        console(110).print(_table(rows, len(chosen.seeds), diverged_seeds(outcome.metrics)))
        if chosen.published is not None:
            print_chosen(outcome.metrics, chosen.published)
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
    absent = ModelFiles(folder, chosen.save_models).absent([entry.label for entry in chosen.algorithms])
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
        who = in_which(diverged[0]["clients"] or None)
        return fail(f"{label} diverged with seed {seed} in round {round_}{who}{more}; all is saved in {folder}", 1)
    if outcome.infinite:
        others = len(outcome.infinite) - 1
        more = f", and so in {others} more" if others else ""
        return fail(f"{outcome.infinite[0]}{more}; all is saved in {folder}", 1)
    return 0


def _table(rows: Sequence[Row], seeds: int, diverged: Mapping[str, str] | None = None) -> Table:
    from fljax.report.tables import cell, pivot, when

    diverged = diverged or {}
    accuracies = any(row.metric == "average_accuracy" for row in rows)
    columns = main_columns({row.metric for row in rows if row.seeds})
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    last = f"{when(rows)}, " if rows else ""
    about = "IPR: share of clients that prefer the deployed model" + (
        "; accuracies are shares of 1" if accuracies else ""
    )
    table = Table(title=f"Test results {last}{spread}", caption=about)
    table.add_column("algorithm")
    for words in columns.values():
        table.add_column(words, justify="right")
    if diverged:
        table.add_column("diverged")
    for label, line in pivot(rows, list(columns)).items():
        table.add_row(label, *map(cell, line), *[diverged.get(label, "")] * bool(diverged))
    return table
