"""``fljax run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fljax.cli.commands.reproduce import check_chosen, print_chosen
from fljax.cli.environment import join, start_jax
from fljax.cli.options import ConfigFile, RunOptions, SaveModels, TensorBoard, Together
from fljax.cli.printing import console, fail, print_json
from fljax.cli.running import Context, extra_callbacks, folder_of, resumable, saving_of
from fljax.experiments.progress_bars import listener, progress_bars

if TYPE_CHECKING:
    from fljax.report import Row


def run(
    context: Context,
    config: ConfigFile,
    options: RunOptions,
    *,
    save_models: SaveModels = None,
    tensorboard: TensorBoard = False,
    together: Together,
) -> int:
    """Run an experiment: every algorithm of CONFIG on the same data and seeds."""
    from fljax.config import load

    changes = [*options.changes, *([] if save_models is None else [f"save_models={save_models}"])]
    chosen = load(config, changes, imports=not options.no_import)
    if chosen.published is not None:
        check_chosen(chosen.published)
    join(*together)
    start_jax(options.cache)
    from fljax.core import processes
    from fljax.experiments import run as experiment
    from fljax.experiments.saved_models import ModelFiles

    saving = saving_of(context, options.checkpoint_every, options.keep_checkpoints)
    first = processes.is_first()  # which writes and prints
    folder = processes.agreed(lambda: folder_of(chosen, options.out, options.resume))
    with resumable(folder, context):
        with progress_bars(options.quiet or not first) as progress:
            listen = listener(progress)
            outcome = experiment.run(
                chosen,
                directory=folder,
                resume=options.resume,
                on_event=listen,
                saving=saving,
                callbacks=extra_callbacks(tensorboard),
            )
        from fljax import report
        from fljax.results.non_finite import diverged_seeds, in_which, senders_of

        rows = report.summary(outcome.metrics)
        pictures = () if options.no_report or not first else report.write(folder, (outcome.metrics, outcome.records))
    names = ("algorithm", "seed", "round")
    diverged: list[dict[str, Any]] = [dict(zip(names, each, strict=True)) for each in outcome.diverged]
    for each in diverged:
        each["clients"] = senders_of(outcome.metrics, {name: each[name] for name in ("algorithm", "seed")})
    if not first:
        pass
    elif options.as_json:
        written = [str(path) for path in pictures]
        summary = [row._asdict() for row in rows]
        infinite = [each._asdict() for each in outcome.infinite]
        found = {"directory": str(folder), "summary": summary, "diverged": diverged, "infinite": infinite}
        print_json(found | {"report": written})
    elif not options.quiet:
        console(110).print(_table(rows, len(chosen.seeds), diverged_seeds(outcome.metrics)))
        if chosen.published is not None:
            print_chosen(outcome.metrics, chosen.published)
        print(f"Results: {folder}")
        for path in pictures:
            print(f"Report:  {path}")
        if pictures and (said := report.font_note(report.texts_of(outcome.metrics))):
            print(said)
    files = ModelFiles(folder, chosen.save_models)
    absent = processes.agreed(lambda: files.absent([entry.label for entry in chosen.algorithms]))
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
    from fljax.report import overview

    found = overview(rows, seeds, diverged)
    table = Table(title=found.title, caption=found.caption)
    table.add_column("algorithm")
    for column in found.columns:
        table.add_column(column, justify="left" if column == "diverged" else "right")
    for label, cells in found.lines.items():
        table.add_row(label, *cells)
    return table
