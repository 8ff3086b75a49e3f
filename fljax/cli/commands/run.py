"""``fljax run`` and ``fljax sweep``: one experiment, and one for each combination of the values of a grid."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fljax.cli.commands.reproduce import check_chosen, print_chosen
from fljax.cli.printing import as_table, console, fail, print_json, print_places
from fljax.cli.running import (
    ConfigFile,
    Context,
    ProcessOptions,
    RunOptions,
    TensorBoard,
    changes_of,
    computing,
    extra_callbacks,
    folder_of,
    join,
    saving_of,
    start_jax,
)
from fljax.core.plain import tell

if TYPE_CHECKING:
    from fljax.config.keys import Published
    from fljax.config.reading import Grid
    from fljax.experiments.conductor import Outcome


def run(
    context: Context,
    config: ConfigFile,
    options: RunOptions,
    *,
    save_models: Annotated[
        str | None,
        typer.Option(
            "--save-models",
            metavar="last|best|all",
            help="Save trained models: of the last round, the best evaluation by validation rows, or all evaluations.",
        ),
    ] = None,
    tensorboard: TensorBoard = False,
    together: ProcessOptions,
) -> int:
    """Run an experiment: every algorithm of CONFIG on the same data and seeds."""
    from fljax.config import load

    changes = [*changes_of(options), *([] if save_models is None else [f"save_models={save_models}"])]
    chosen = load(config, changes, imports=not options.no_import)
    if chosen.published is not None:
        check_chosen(chosen.published)
    join(*together)
    start_jax(options.cache)
    from fljax.core import processes
    from fljax.experiments import run as experiment
    from fljax.experiments.saved_models import ModelFiles

    first = processes.is_first()  # which writes and prints
    with computing(context, options, lambda: folder_of(chosen, options)) as (folder, compute):
        callbacks = extra_callbacks(tensorboard)
        outcome = compute(experiment.run, chosen, resume=options.resume, callbacks=callbacks)
        from fljax import report
        from fljax.results import Results

        results = Results(outcome.metrics, outcome.records)
        pictures = () if options.no_report or not first else report.write(folder, results)
    diverged = _diverged(outcome, ("algorithm", "seed", "round"))
    if first:
        _tell(outcome, diverged, folder, pictures, options, chosen.published)
    files = ModelFiles(folder, chosen.save_models)
    absent = processes.agreed(lambda: files.absent([entry.label for entry in chosen.algorithms]))
    if absent:
        return fail(
            f"expected models of all algorithms, got none of {', '.join(absent)}, which were finished before models "
            "were asked for or could be saved; run them again in a new folder",
            1,
        )
    return _code(outcome, diverged, folder)


def _diverged(outcome: Outcome, names: Sequence[str]) -> list[dict[str, Any]]:
    """Where algorithms diverged, and who sent what was not finite; ``names`` are those of the parts of a place."""
    from fljax.results.non_finite import senders_of

    places: list[dict[str, Any]] = [dict(zip(names, place, strict=True)) for place in outcome.diverged]
    for place in places:
        run = {"algorithm": place["algorithm"], "seed": place["seed"], **place.get("cell", {})}
        place["clients"] = senders_of(outcome.metrics, run)
    return places


def _code(outcome: Outcome, diverged: Sequence[Mapping[str, Any]], folder: pathlib.Path) -> int:
    """The exit code; says what diverged, or where a loss is infinite."""
    from fljax.results.non_finite import in_which

    if diverged:
        first = diverged[0]
        cell = ", ".join(f"{name} = {value}" for name, value in first.get("cell", {}).items())
        where = f" at {cell}" if "cell" in first else ""
        others = len(diverged) - 1
        more = f", and {others} more" if others else ""
        run = f"with seed {first['seed']} in round {first['round']}{in_which(first['clients'] or None)}"
        return fail(f"{first['algorithm']} diverged{where} {run}{more}; all is saved in {folder}", 1)
    if outcome.infinite:
        others = len(outcome.infinite) - 1
        more = f", and so in {others} more" if others else ""
        return fail(f"{outcome.infinite[0]}{more}; all is saved in {folder}", 1)
    return 0


# The parts of a place at which an algorithm of a sweep diverged.
_PLACE = ("algorithm", "cell", "seed", "round")


def sweep(
    context: Context,
    config: Annotated[
        pathlib.Path | None, typer.Argument(help="A TOML file, or a name of fljax list configs; not with --join.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="A.B=C,D", help="Values of a key to try; may be repeated. Before the config's."),
    ] = None,
    *,
    options: RunOptions,
    tensorboard: TensorBoard = False,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Run the I-th of N parts in --out, which all parts share; again: it goes on."),
    ] = None,
    parts_in: Annotated[
        pathlib.Path | None,
        typer.Option("--join", metavar="DIR", help="Join the parts in DIR, or print the numbers of unfinished ones."),
    ] = None,
    together: ProcessOptions,
) -> int:
    """Run every algorithm of CONFIG for every combination of the values of a grid; numbers share one program."""
    from fljax.config import load_grid

    if parts_in is not None:
        given = {"CONFIG": config, "--grid": grid, "--part": part, "--tensorboard": tensorboard}
        _check_alone(given, options, together)
        return _join(parts_in, options)
    if config is None:
        raise ValueError("expected CONFIG, or --join DIR, got neither")
    number, count = (0, 0) if part is None else _numbers(part)
    if part is not None and together.distributed:
        raise ValueError("expected --part or --distributed, got both")
    chosen = load_grid(config, changes_of(options), grid or (), imports=not options.no_import)
    join(*together)
    if part is not None:
        return _run_part(chosen, number, count, context, options, tensorboard)
    start_jax(options.cache)
    from fljax.core import processes
    from fljax.experiments import sweep as sweeping

    sweeping.check_grid(chosen)
    first = processes.is_first()  # which writes and prints
    with computing(context, options, lambda: _folder_of(chosen, options)) as (folder, compute):
        callbacks = extra_callbacks(tensorboard)
        outcome = compute(sweeping.run, chosen, resume=options.resume, callbacks=callbacks)
        pictures = _pictures(folder, options) if first else ()
    diverged = _diverged(outcome, _PLACE)
    if first:
        _tell(outcome, diverged, folder, pictures, options)
    return _code(outcome, diverged, folder)


def _folder_of(chosen: Grid, options: RunOptions) -> pathlib.Path:
    """The folder of a sweep in one piece."""
    from fljax.experiments import sweep as sweeping

    folder = folder_of(chosen.config, options)
    if (count := sweeping.count_of(folder)) is not None:
        raise ValueError(f"expected --part I/{count} or --join for the parts in {str(folder)!r}, got neither")
    return folder


def _numbers(text: str) -> tuple[int, int]:
    """The numbers of ``--part I/N``."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise ValueError(f"expected --part I/N with I from 1 to N, such as 1/4, got {text!r}")
    return number, count


def _run_part(chosen: Grid, number: int, count: int, context: Context, options: RunOptions, tensorboard: bool) -> int:
    from fljax.experiments import sweep as sweeping

    if options.out is None:
        raise ValueError("expected --out DIR with --part, the folder that all parts share, got none")
    saving_of(context, options)  # refuses numbers before the folder is made
    part = sweeping.begin_part(chosen, options.out, number, count)
    if part is None:
        parts = len(sweeping.split(chosen, count))
        _say_part(options, None, f"Part {number} of {count} has no cells: the sweep divides into {parts} parts")
        return 0
    folder = sweeping.folder_of(options.out, number, count)
    if sweeping.is_finished(part, folder):
        _say_part(options, folder, f"Part {number} of {count} is finished: its results are in {folder}")
        return 0
    start_jax(options.cache)
    with computing(context, options, lambda: folder, context.obj.again()) as (_, compute):
        outcome = compute(sweeping.run_part, part, callbacks=extra_callbacks(tensorboard))
    diverged = _diverged(outcome, _PLACE)
    command = shlex.join(["fljax", "sweep", "--join", str(options.out)])
    _say_part(options, folder, f"Part {number} of {count} is finished; to join all of them: {command}")
    return _code(outcome, diverged, folder)


def _say_part(options: RunOptions, folder: pathlib.Path | None, words: str) -> None:
    """Prints a sentence about a part; ``folder`` is None if the part has no cells."""
    if options.as_json:
        print_json({"directory": folder and str(folder), "message": words})
    elif not options.quiet:
        tell(words)


def _check_alone(given: Mapping[str, Any], options: RunOptions, together: ProcessOptions) -> None:
    """Raises a ValueError if ``--join`` stands beside options that say what to run, and how."""
    given = {**given, "--set": options.overrides, "--seeds": options.seeds, "--out": options.out}
    given |= {"--resume": options.resume, "--distributed": together != ProcessOptions()}
    if taken := [name for name, value in given.items() if value is not None and value is not False]:
        raise ValueError(f"expected --join DIR without {taken[0]}, since DIR says what was run, got both")


def _join(directory: pathlib.Path, options: RunOptions) -> int:
    """Joins the parts of a sweep; JAX does not start."""
    from fljax.config import load_grid
    from fljax.experiments import sweep as sweeping
    from fljax.results.folders import CONFIG
    from fljax.results.progress import is_running

    count = sweeping.count_of(directory)
    if count is None:
        raise ValueError(
            f"expected the folder of a sweep in parts (fljax sweep CONFIG --out DIR --part I/N), got {str(directory)!r}"
        )
    grid = load_grid(directory / CONFIG, imports=not options.no_import)
    outcome, unfinished, parts = sweeping.join_parts(grid, directory, count, options.force)
    if unfinished:
        if options.as_json:
            print_json({"directory": str(directory), "unfinished": unfinished})
        else:
            tell(sweeping.ranges(unfinished))
        busy = [each for each in unfinished if is_running(sweeping.folder_of(directory, each, count))]
        now = f"; running now: {sweeping.ranges(busy)}" if busy else ""
        whole = [] if outcome is None else outcome.metrics["algorithm"].values.tolist()
        done = f"; joined are the results of {', '.join(whole)}" if whole else ""
        return fail(
            f"expected all {parts} parts in {str(directory)!r} to be finished, got {len(unfinished)} that "
            f"{'is' if len(unfinished) == 1 else 'are'} not{now}{done}",
            1,
        )
    assert outcome is not None
    diverged = _diverged(outcome, _PLACE)
    _tell(outcome, diverged, directory, _pictures(directory, options), options)
    return _code(outcome, diverged, directory)


def _pictures(folder: pathlib.Path, options: RunOptions) -> Sequence[pathlib.Path]:
    from fljax import report

    return () if options.no_report else report.write(folder)


def _tell(
    outcome: Outcome,
    diverged: Sequence[dict[str, Any]],
    folder: pathlib.Path,
    pictures: Sequence[pathlib.Path],
    options: RunOptions,
    published: Published | None = None,
) -> None:
    """Prints what a run or a whole sweep has found, beside published numbers, and where it is."""
    from fljax import report
    from fljax.report.tables import main_table
    from fljax.results.sweeps import axes_of

    metrics, swept = outcome.metrics, bool(axes_of(outcome.metrics))
    if options.as_json:
        rows = [row._asdict() for row in (outcome.best if swept else report.summary(metrics))]
        told = {"diverged": diverged, "infinite": [each._asdict() for each in outcome.infinite]}
        paths = [str(path) for path in pictures]
        print_json({"directory": str(folder), "best" if swept else "summary": rows, **told, "report": paths})
    elif not options.quiet:
        lines, title, caption = main_table(metrics)
        if swept:
            seeds = metrics.sizes["seed"]
            title += f", {f'mean ± std over {seeds} seeds' if seeds > 1 else 'one seed'}"
        console(110).print(as_table(lines, title, caption, words=["chosen by" if swept else "diverged"]))
        if published is not None:
            print_chosen(metrics, published)
        print_places(folder, pictures)
        if pictures and (note := report.font_note(report.texts_of(metrics))):
            tell(note)
