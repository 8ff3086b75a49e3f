"""Tables for papers as LaTeX and CSV, and single panels as files."""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from fljax.core.files import replace
from fljax.core.names import file_name, unknown
from fljax.core.plain import as_csv, plain
from fljax.report.clients import gains_picture
from fljax.report.drawing import figures
from fljax.report.kinds.registry import Asked, draw_kinds
from fljax.report.kinds.sources import Source, read
from fljax.report.style import fonts_for, texts_of
from fljax.report.sweeps import sweep_picture
from fljax.report.tables import Row, digits_of, pivot, summary, when
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import better
from fljax.results.sweeps import axes_of, cells_of

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after \\ it would begin an argument
    "*": "{*}",
    "<": r"\textless{}",  # without other fonts the letter is another one
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def escape(text: str) -> str:
    """Text for LaTeX, with every special character as it is."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def latex_table(
    rows: Sequence[Row],
    columns: Mapping[str, str],  # headings by metric
    diverged: Mapping[str, str] | None = None,  # which seeds did, by label; these labels have a dagger
    scores: str = "",  # words about the columns, for the first line
    lower: Mapping[str, bool] | None = None,  # whether lower is better; the best printed means of such columns are bold
) -> str:
    """The last evaluation (rows of ``summary``) as a ``tabular`` with the rules of booktabs."""
    diverged = diverged or {}
    seeds = max((row.of for row in rows), default=1)
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    daggers = dict.fromkeys(diverged, r"$^\dagger$")
    table = pivot(rows, list(columns))
    sound = [line for label, line in table.items() if label not in diverged] if len(table) > 1 else []
    best = [_best([line[place] for line in sound], (lower or {}).get(name)) for place, name in enumerate(columns)]
    lines = [
        [
            escape(label) + daggers.get(label, ""),
            *(_cell(row, top if label not in diverged else None) for row, top in zip(line, best, strict=True)),
        ]
        for label, line in table.items()
    ]
    note = f"At the last evaluation, {escape(when(rows))}: {spread}." if rows else ""
    words = "; ".join(f"{escape(label)} {seeds_in_words}" for label, seeds_in_words in diverged.items())
    note += f" {scores[0].upper()}{escape(scores[1:])}." if scores else ""
    note += " Bold: the best mean." if any(top is not None for top in best) else ""
    note += f" Daggers: diverged and frozen there: {words}." if words else ""
    return latex_lines([["Algorithm", *map(escape, columns.values())], *lines], note)


def latex_lines(lines: Sequence[Sequence[str]], note: str) -> str:
    r"""A ``tabular`` of cells that are LaTeX already; the first line is the heading."""
    head, *body = [f"  {' & '.join(line)} \\\\" for line in lines]
    form = "l" + "r" * (len(lines[0]) - 1)
    first = f"% {note} Needs \\usepackage{{booktabs}}.".replace("%  ", "% ")
    rules = [
        f"\\begin{{tabular}}{{{form}}}",
        "  \\toprule",
        head,
        "  \\midrule",
        *body,
        "  \\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([first, *rules, ""])


def _best(column: Sequence[Row | None], lower: bool | None) -> str | None:
    """The best mean of a column as it is printed; None if there is none, or no direction."""
    known = [row for row in column if row is not None]
    if lower is None or not known:
        return None
    row = (min if lower else max)(known, key=lambda row: row.mean)
    return f"{row.mean:.{digits_of(row.metric)}f}"


def _cell(row: Row | None, best: str | None = None) -> str:
    """A cell of LaTeX; ``best`` is the mean that is bold."""
    if row is None:
        return "--"
    digits = digits_of(row.metric)
    spread = "" if math.isnan(row.std) else f"{row.std:.{digits}f}"
    missing = "" if row.seeds == row.of else f"\\,({row.seeds}/{row.of})"  # seeds with a value
    mean = f"{row.mean:.{digits}f}"
    return latex_cell(mean, spread, mean == best, missing)


def latex_cell(mean: str, spread: str, best: bool, more: str = "") -> str:
    """A mean, its spread unless that is "", and more, as mathematics of LaTeX; the best mean is bold."""
    first, second = rf"\mathbf{{{mean}}}" if best else mean, rf" \pm {spread}" if spread else ""
    return f"${first}{second}{more}$"


def csv_metrics(metrics: xr.Dataset, chosen: Sequence[str] = ()) -> str:
    """All or ``chosen`` metrics as CSV, unrounded: a line for each algorithm, and in a sweep for each cell."""
    axes, body, known = axes_of(metrics), list[list[object]](), set[str]()
    for values, cell in cells_of(metrics, axes):
        marks = diverged_seeds(cell)
        for row in summary(cell):
            if row.seeds:
                known.add(row.metric)
                if not chosen or row.metric in chosen:
                    numbers = [row.mean, row.std, row.seeds, row.round]
                    words = [marks.get(row.algorithm, ""), better(metrics, row.metric)]
                    body.append([row.algorithm, *values.values(), row.metric, *numbers, *words])
    for name in chosen:
        if name not in known:
            raise ValueError(unknown("metric", name, sorted(known)))
    return _csv(["algorithm", *axes, "metric", "mean", "std", "seeds", "round", "diverged", "better"], body)


def csv_targets(rows: Sequence[tuple[Row, float]]) -> str:
    """The rows of ``to_target``, each with its target, as CSV: ``rounds`` is empty where no seed reaches the target."""
    head = ["algorithm", "metric", "target", "rounds", "std", "seeds_reached", "seeds", "last_round"]
    lines = [
        [row.algorithm, row.metric, target, row.mean, row.std, row.seeds, row.of, row.round] for row, target in rows
    ]
    return _csv(head, lines)


def _csv(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Lines as CSV; NaN is empty, and values of a column may be of different types."""
    return as_csv(pd.DataFrame(lines, columns=pd.Index(head), dtype=object))


def write_panels(metrics: xr.Dataset, records: xr.Dataset, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes every panel of a run's report (of a sweep: its picture) as a PDF and an SVG file; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    # The same results give the same bytes. Letters in PDF files are TrueType, as publishers ask for.
    with fonts_for(texts_of(metrics)):
        drawn = {"sweep": sweep_picture(metrics)} if axes_of(metrics) else figures(metrics, records)
        by_client = gains_picture(metrics)
        drawn |= {} if by_client is None else {"clients": by_client}
        return [path for name, figure in drawn.items() for path in _written(folder / file_name(name), figure)]


def write_kinds(source: Source, asked: Asked, folder: pathlib.Path) -> tuple[list[pathlib.Path], tuple[str, ...]]:
    """Writes kinds of figure as PDF and SVG files; returns the paths, and sentences about those that lack data."""
    material = read(source)
    with fonts_for(texts_of(material.metrics)):
        drawn = draw_kinds(material, asked.names, clients=asked.clients, metrics=asked.metrics)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [path for name, figure in drawn.figures.items() for path in _written(folder / name, figure)]
    return paths, drawn.missing


def _written(stem: pathlib.Path, figure: Figure) -> list[pathlib.Path]:
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("pdf", "svg")]
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "fljax"}):
        for path, metadata in zip(paths, ({"CreationDate": None}, {"Date": None}), strict=True):
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], metadata=metadata)
            whole = content.getvalue()
            replace(path, plain(whole.decode()).encode() if path.suffix == ".svg" else whole)
    return paths
