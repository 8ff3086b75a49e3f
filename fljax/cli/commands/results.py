"""The commands that read folders of runs: ``fljax report``, ``export``, ``watch`` (while one goes on)."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table

from fljax.cli import printing
from fljax.cli.running import FigureOptions, Interrupted, Json
from fljax.core.errors import writing_to
from fljax.core.plain import as_csv, tell

if TYPE_CHECKING:
    import xarray as xr

    from fljax.results import RunState

# typer takes the name of an option from the parameter.
Targets = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="METRIC=VALUE", help="After how many rounds it is reached; may be repeated."),
]
REFRESH = 1.0  # seconds between two looks of ``fljax watch``


def report_(
    runs: Annotated[list[pathlib.Path], typer.Argument(help="Folders of runs.")],
    chosen: FigureOptions,
    as_json: Json = False,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page of one run anew while the run goes on; browsers reload it.")
    ] = False,
    targets: Targets = None,
) -> int:
    """Draw the picture and the page of runs again; with --figures, more figures as PNG files and on the page."""
    from fljax import report

    asked, wanted = printing.asked_for(chosen), _targets(targets)
    if asked is None and chosen.metric:
        raise ValueError("expected --metric with --figures, got it without")
    if live and wanted:
        raise ValueError("expected --target without --live, got both")
    if live:
        if len(runs) != 1 or as_json or asked is not None:
            raise ValueError(f"expected one run, and no --json or --figures, with --live, got {len(runs)} runs")
        tell(f"{runs[0] / 'report.html'} is written anew until the run ends", flush=True)
        report.follow(runs[0])
        return 0
    written = {str(folder): [str(path) for path in printing.report_of(folder, asked, wanted)] for folder in runs}
    if as_json:
        printing.print_json(written)
        return 0
    for paths in written.values():
        tell("\n".join(paths))
    return 0


def export(
    run: Annotated[pathlib.Path, typer.Argument(help="The folder of a run or a sweep.")],
    chosen: FigureOptions,
    latex: Annotated[bool, typer.Option("--latex", help="A table for a paper, with booktabs.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All metrics, unrounded.")] = False,
    gains: Annotated[bool, typer.Option("--gains", help="Which clients gain, by name, as CSV.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Every picture of the report as a PDF and an SVG file.")] = False,
    leaving: Annotated[
        bool, typer.Option("--leaving", help="As CSV: who would leave each method, and why, by client.")
    ] = False,
    targets: Targets = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Where to write: a file for tables (stdout if not given), a folder for --pdf (RUN/pictures)."
        ),
    ] = None,
) -> int:
    """Write the results of RUN for a paper: a table as LaTeX or CSV, or single pictures as PDF and SVG.

    --figures is --pdf of the named figures; --gains and --leaving are --csv of other tables.
    """
    asked = printing.asked_for(chosen)
    forms = {"--latex": latex, "--csv": csv and not (leaving or gains), "--pdf": pdf and asked is None}
    form = _form(forms | {"--gains": gains, "--leaving": leaving, "--figures": asked is not None})
    if chosen.metric and form in ("--leaving", "--gains", "--pdf"):
        raise ValueError(f"expected --metric with --latex or --csv, or with --figures, got it with {form}")
    if targets and (chosen.metric or form not in ("--latex", "--csv")):
        other = "--metric" if chosen.metric else form
        raise ValueError(f"expected --target with --latex or --csv, and no --metric, got it with {other}")
    from fljax.results import folders

    if asked is not None:
        printing.write_figures(run, asked, out or run / printing.PICTURES)
    elif form == "--pdf":
        printing.write_pictures(*folders.load_results(run), out or run / printing.PICTURES)
    elif out is None:
        tell(_text(run, form, chosen.metric or (), targets), end="")
    else:
        from fljax.core.files import replace

        text = _text(run, form, chosen.metric or (), targets)
        with writing_to("a file to write to", out):
            replace(out, text.encode(errors="backslashreplace"))
        tell(out)
    return 0


def _form(forms: Mapping[str, bool]) -> str:
    """The one form that is asked for."""
    named = [name for name, on in forms.items() if on]
    if len(named) != 1:
        given = " and ".join(named) or "none"
        raise ValueError(f"expected one of {', '.join(list(forms)[:-1])} and --figures, got {given}")
    return named[0]


def _text(run: pathlib.Path, form: str, chosen: Sequence[str], targets: Sequence[str] | None) -> str:
    """The text of a form that is a table."""
    from fljax.report import leaving
    from fljax.results import folders
    from fljax.results.clients import gains_frame

    if form == "--leaving":
        return as_csv(leaving(run))
    metrics = folders.load_results(run)[0]
    if form == "--gains":
        return as_csv(gains_frame(metrics))  # a line for each algorithm and client; of a sweep, for each cell, too
    wanted, latex = _targets(targets), form == "--latex"
    return _target_table(metrics, latex, wanted) if wanted else _table_of(metrics, latex, chosen)


def _targets(texts: Sequence[str] | None) -> dict[str, float]:
    """Targets by metric, of texts ``METRIC=VALUE``."""
    found: dict[str, float] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        target = _number(value)
        if name in found or target is None:
            raise ValueError(f"expected --target METRIC=VALUE with a number, once for a metric, got {text!r}")
        found[name] = target
    return found


def _number(text: str) -> float | None:
    """The number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _target_table(metrics: xr.Dataset, latex: bool, targets: Mapping[str, float]) -> str:
    from fljax.report import exporting, target_lines, to_target
    from fljax.results.records import is_lower

    rows = {name: to_target(metrics, name, target) for name, target in targets.items()}
    if not latex:
        return exporting.csv_targets([(row, targets[name]) for name, of_metric in rows.items() for row in of_metric])
    told = [target_lines(of_metric, targets[name], lower=is_lower(metrics[name])) for name, of_metric in rows.items()]
    columns = [list(zip(*lines, strict=True)) for lines in told]
    lines = [list(line) for line in zip(columns[0][0], *(column[1] for column in columns), strict=True)]
    escaped = [[exporting.escape(each) for each in line] for line in lines]
    return exporting.latex_lines(escaped, "At the first evaluation that reaches the target.")


def _table_of(metrics: xr.Dataset, latex: bool, chosen: Sequence[str]) -> str:
    from fljax.metrics.scores import score_name
    from fljax.report import exporting, summary
    from fljax.report.tables import best_cell_rows, main_table, title
    from fljax.results.events import weights_in_words
    from fljax.results.non_finite import diverged_seeds
    from fljax.results.records import directions, is_lower
    from fljax.results.sweeps import VALIDATION, axes_of, problem_axes

    def about_scores(columns: Mapping[str, str]) -> str:
        return directions(metrics) if any(score_name(name) for name in columns) else weights_in_words(metrics)

    if not latex:
        return exporting.csv_metrics(metrics, chosen)
    if axes_of(metrics):
        if chosen:
            rows, diverged = best_cell_rows(metrics, chosen)
            rows = [row for row in rows if row.seeds]
            columns = columns_of({row.metric for row in rows}, chosen)
            # Lines with other data or another model are not compared, so none is bold.
            lower = {} if problem_axes(metrics) else {name: is_lower(metrics[name]) for name in columns}
            tested = f"{title(str(metrics.attrs['metric']))}, on test rows"
            by = "validation rows" if any(name in metrics for name in VALIDATION) else tested
            words = "; ".join(filter(None, [f"best cells by {by}", about_scores(columns)]))
            return exporting.latex_table(rows, columns, diverged, words, lower)
        escaped = [[exporting.escape(each) for each in line] for line in main_table(metrics)[0]]
        return exporting.latex_lines(escaped, "Best cells at the last evaluation; (edge): edge of the grid.")
    rows = [row for row in summary(metrics) if row.seeds]
    columns = columns_of({row.metric for row in rows}, chosen)
    lower = {name: is_lower(metrics[name]) for name in columns}
    return exporting.latex_table(rows, columns, diverged_seeds(metrics), about_scores(columns), lower)


def columns_of(there: set[str], chosen: Sequence[str]) -> dict[str, str]:
    """The headings of the chosen metrics, or of the main ones."""
    from fljax.core.names import unknown
    from fljax.metrics.uncertainty import main_columns
    from fljax.report.tables import title

    for name in chosen:
        if name not in there:
            raise ValueError(unknown("metric", name, sorted(there)))
    return {name: title(name) for name in chosen} or main_columns(there)


def watch(
    run: Annotated[pathlib.Path, typer.Argument(help="The folder of a run.")],
    once: Annotated[bool, typer.Option("--once", help="Print the state once.")] = False,
    as_json: Json = False,
) -> None:
    """Show the progress of a run, its time left and its last metrics, until it ends; Ctrl-C leaves it alone."""
    from fljax.results import read_state

    state = read_state(run)
    if as_json:
        algorithms = [each._asdict() for each in state.algorithms]
        printing.print_json({**state._asdict(), "finished": state.finished, "algorithms": algorithms})
    elif once:
        printing.console(130).print(progress_table(state))
    else:
        terminal = printing.console()
        try:
            with Live(progress_table(state), console=terminal, auto_refresh=False) as live:
                while state.running:
                    time.sleep(REFRESH)
                    state = read_state(run)
                    live.update(progress_table(state), refresh=True)
        except (KeyboardInterrupt, Interrupted) as stop:
            if isinstance(stop, Interrupted) and stop.number != signal.SIGINT:
                raise


def progress_table(state: RunState) -> Table:
    """One line for each algorithm, under the state of the run."""
    from fljax.metrics.uncertainty import main_columns

    shown = main_columns({name for each in state.algorithms for name in each.metrics})
    evaluates = state.unit == "rounds"  # runs are evaluated at their end only
    marked = any(each.diverged for each in state.algorithms)
    heads = ("algorithm", "state", state.unit.removesuffix("s"), f"{state.unit}/s", "left")
    lines = [[*heads, *["evaluated"] * evaluates, *shown.values(), *["diverged"] * marked]]
    for each in state.algorithms:
        after = ["–" if each.evaluated is None else f"after {each.evaluated}"] * evaluates
        values = [each.metrics.get(name) for name in shown]
        numbers = ["–" if value is None else f"{value:.3f}" for value in values]
        lines.append([each.label, each.state, *each.in_words, *after, *numbers, *[each.diverged] * marked])
    caption = "metrics: means over seeds at the last evaluation" if shown else ""
    return printing.as_table(lines, headline(state), caption, words=["state", "diverged"])


def headline(state: RunState) -> str:
    """The state of a run in one line."""
    from fljax.core.names import duration

    if not state.running:
        return f"{state.name}: {'finished' if state.finished else 'ended before it was finished'}"
    words = [f"{state.name}: running for {duration(state.seconds)}", state.stage]
    if state.left is not None:
        words.append(f"about {duration(state.left)} left")
    if state.silent > 60:
        words.append(f"nothing new for {duration(state.silent)}")
    return ", ".join(filter(None, words))
