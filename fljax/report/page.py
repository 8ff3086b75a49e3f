"""Writes one picture and one self-contained HTML page beside the results of a run."""

from __future__ import annotations

import base64
import html
import io
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from fljax.core.sameness.record import forced_in
from fljax.report.clients import gains_picture, gains_table
from fljax.report.drawing import picture
from fljax.report.kinds.registry import KINDS, Asked, draw_kinds
from fljax.report.kinds.sources import Source, read
from fljax.report.style import font_note, fonts_for, texts_of
from fljax.report.sweeps import sweep_picture
from fljax.report.tables import Row, best_rows, cell, pivot, summary, target_lines, title, to_target, when
from fljax.results.endings import Results
from fljax.results.folders import COMPARISON, CONFIG, ENVIRONMENT, load
from fljax.results.non_finite import diverged_seeds, in_which, senders_of
from fljax.results.scores import directions, is_lower
from fljax.results.sweeps import axes_of, best

DPI = 110  # of pictures: 1540 pixels across, where a page is 1180 wide
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1180px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .45rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem; }
img { width: 100%; height: auto; } .wide img { min-width: 900px; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; }
.note { color: #555; } .warning { color: #a33; font-weight: 600; }
"""


class Pictures(NamedTuple):
    """Kinds of figure as PNG files, by name, and a sentence for every one that was left out."""

    content: dict[str, bytes]
    missing: tuple[str, ...] = ()


def pictures(source: Source, asked: Asked) -> Pictures:
    """Draws kinds of figure for pages; raises a ValueError as ``fljax.report.draw_kinds``."""
    material = read(source)
    with fonts_for(texts_of(material.metrics)):
        drawn = draw_kinds(material, asked.names, clients=asked.clients, metrics=asked.metrics)
        return Pictures({name: png(figure) for name, figure in drawn.figures.items()}, drawn.missing)


def write(
    run_folder: pathlib.Path,
    results: Results | None = None,
    more: Pictures | None = None,
    targets: Mapping[str, float] | None = None,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes ``report.png`` (for a sweep ``sweep.png``) and ``report.html`` into a run's folder; returns their paths.

    The page shows the same picture, which is drawn once.

    Args:
      run_folder: the folder.
      results: of the run, if the caller has them; None: they are read.
      more: pictures that the page of a run shows, too, from ``pictures``.
      targets: values by metric: the page also says after how many rounds they were reached.

    Raises:
      ValueError: if the folder has no results, or ``to_target`` refuses a target.
    """
    folder = pathlib.Path(run_folder)
    metrics, records = load(folder) if results is None else results
    heading = str(metrics.attrs.get("name", folder.resolve().name))
    reached = [
        target_table(to_target(metrics, name, value), value, is_lower(metrics[name]))
        for name, value in (targets or {}).items()
    ]
    swept = bool(axes_of(metrics))
    path, page = folder / ("sweep.png" if swept else "report.png"), folder / "report.html"
    with fonts_for(texts_of(metrics, heading)):
        drawn = sweep_picture(metrics, heading) if swept else picture(metrics, records, heading)
        content = png(drawn)
    path.write_bytes(content)
    if swept:
        text = _sweep_page(heading, metrics, shown(content, title(str(metrics.attrs["metric"]))), attached_to(folder))
    else:
        figures = "\n".join([*reached, _panels(drawn, content) + _more(more)])
        text = _page(heading, metrics, figures, attached_to(folder))
    page.write_text(text, encoding="utf-8")
    return path, page


def write_page(
    path: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset, heading: str, attached: Mapping[str, str]
) -> None:
    """Writes a page of its own with the tables and the picture of a run.

    Args:
      path: the file.
      metrics: over algorithm, seed and evaluated_round.
      records: over algorithm, seed and round.
      heading: of the page.
      attached: texts at the end of the page, by title.
    """
    with fonts_for(texts_of(metrics)):
        drawn = picture(metrics, records)
        panels = _panels(drawn, png(drawn))
    path.write_text(_page(heading, metrics, panels, attached), encoding="utf-8")


def attached_to(folder: pathlib.Path) -> dict[str, str]:
    """The texts of a run folder that say how it was run, by the name of the file."""
    names = (CONFIG, COMPARISON, ENVIRONMENT)
    return {name: (folder / name).read_text(encoding="utf-8") for name in names if (folder / name).is_file()}


def _page(heading: str, metrics: xr.Dataset, drawn: str, attached: Mapping[str, str]) -> str:
    rows = summary(metrics)
    marks = diverged_seeds(metrics)
    tables = [metric_table(f"{kind} clients", rows, marks, unseen=kind == "Unseen") for kind in ("Seen", "Unseen")]
    said = font_note(texts_of(metrics)) if drawn else None
    told = [note(rows), *(f"{words[0].upper()}{words[1:]}." for words in [directions(metrics)] if words)]
    parts = [f'<p class="note">{html.escape(" ".join(told))}</p>', *_forced(metrics), *_diverged(metrics), *tables]
    parts += [f'<p class="note">{html.escape(said)}</p>'] if said else []
    return whole_page(heading, [*parts, drawn, _clients(metrics)], attached)


def _forced(metrics: xr.Dataset) -> list[str]:
    """What differed where the run went on by force."""
    return [f'<p class="warning">The run {html.escape(line)}.</p>' for line in forced_in(metrics).splitlines()]


def _clients(metrics: xr.Dataset) -> str:
    """The section about which clients gain; nothing without standalone models."""
    with fonts_for(texts_of(metrics)):
        figure = gains_picture(metrics)
        if figure is None:
            return ""
        content = png(figure)
    words, about = "The gain of each client over its standalone model", ""
    if axes_of(metrics):
        told = (
            "Accuracies and gains are those in each algorithm's best cell by the sweep's metric; along an axis that "
            "makes no difference to it, in the first cell. A client gains in a cell and seed if it is better "
            "off there than with its standalone model; fljax export --gains has all cells."
        )
        about = f'<p class="note">{html.escape(told)}</p>'
    return f'<h2>Clients</h2>{about}<div class="wide">{shown(content, words)}</div>{gains_table(metrics)}'


def _panels(figure: Figure, content: bytes) -> str:
    """The section of a page with the picture of all panels; nothing if there are none."""
    titles = [axes.get_title().replace("\n", ", ").replace(r"\$", "$") for axes in figure.axes]
    return f'<h2>Picture</h2><div class="wide">{shown(content, "; ".join(titles))}</div>' if titles else ""


def _more(more: Pictures | None) -> str:
    """The section of a page with kinds of figure, and what is missing for others."""
    if more is None:
        return ""
    images = [shown(content, KINDS[name].sentence) for name, content in more.content.items()]
    drawn = [f'<div class="wide">{image}</div>' for image in images]
    missing = [f'<p class="note">{html.escape(sentence)}.</p>' for sentence in more.missing]
    return f"<h2>Figures</h2>{''.join([*drawn, *missing])}"


def _sweep_page(heading: str, metrics: xr.Dataset, drawn: str, attached: Mapping[str, str]) -> str:
    metric = str(metrics.attrs["metric"])
    head, *rows = best_rows(best(metrics, metric), metric, diverged_seeds(metrics))
    lines = ["".join(f"<td>{html.escape(each)}</td>" for each in row) for row in rows]
    titles = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    note = '<p class="note">At the last evaluation. *: at the edge of the grid; any: makes no difference.</p>'
    tables = f'<h2>Best cells</h2>{note}<div class="wide">{table}</div>'
    return whole_page(heading, [*_forced(metrics), tables, f"<h2>Grid</h2>{drawn}", _clients(metrics)], attached)


def whole_page(heading: str, parts: list[str], attached: Mapping[str, str], head: str = "") -> str:
    """A page of its own: a heading, the parts, and the attached texts by title; ``head`` is added to its head."""
    files = [
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
        for name, text in attached.items()
    ]
    whole = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(heading)}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>{head}</head><body>',
        f"<h1>{html.escape(heading)}</h1>",
        *parts,
        f"<h2>How it was run</h2>{''.join(files)}" if files else "",
        "</body></html>\n",
    ]
    return "\n".join(part for part in whole if part)


def note(rows: list[Row]) -> str:
    """What the numbers of a table are."""
    if not rows:
        return "No evaluation yet."
    seeds = rows[0].of
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    last = when(rows)
    return (
        f"{last[0].upper()}{last[1:]}: {spread}. Rates and accuracies are shares of 1, numbers of clients are counts."
    )


def _diverged(metrics: xr.Dataset) -> list[str]:
    if "diverged" not in metrics:
        return []

    def who(algorithm: Any, seed: Any) -> str:
        return in_which(senders_of(metrics, {"algorithm": algorithm, "seed": seed}) or None)

    return [
        f'<p class="warning">{html.escape(str(algorithm))}, seed {seed}: diverged in round {int(round_)}'
        f"{who(algorithm, seed)}.</p>"
        for algorithm in metrics["algorithm"].values
        for seed in metrics["seed"].values
        if (round_ := metrics["diverged"].sel(algorithm=algorithm, seed=seed).item()) >= 0
    ]


def metric_table(heading: str, rows: list[Row], diverged: Mapping[str, str] | None = None, *, unseen: bool) -> str:
    """All metrics of the seen or the unseen clients, a column for each algorithm; empty without numbers.

    Where there are fewer metrics than algorithms, each algorithm has a line. ``diverged`` has words about seeds that
    diverged, by label.
    """
    chosen = [row for row in rows if row.metric.startswith("unseen_") == unseen and row.seeds]
    names = list(dict.fromkeys(row.metric for row in chosen))
    if not names:
        return ""
    lines = [["Algorithm", *(title(name).removesuffix(" (unseen)") for name in names), *["Diverged"] * bool(diverged)]]
    for algorithm, line in pivot(rows, names).items():
        marks = [diverged.get(algorithm, "")] if diverged else []
        lines.append([algorithm, *map(cell, line), *marks])
    if len(lines) - 1 <= len(names):
        lines = [list(column) for column in zip(*lines, strict=True)]
    first, *others = [[html.escape(text) for text in line] for line in lines]
    head = "".join(f"<th>{text}</th>" for text in first)
    body = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in line)}</tr>" for line in others)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{heading}</h2><div class="wide">{table}</div>'


def target_table(rows: list[Row], target: float, lower: bool) -> str:
    """The rounds to a target of each algorithm, as a section of a page."""
    head, *body = [[html.escape(text) for text in line] for line in target_lines(rows, target, lower=lower)]
    lines = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in line)}</tr>" for line in body)
    titles = "".join(f"<th>{text}</th>" for text in head)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
    note = "At the first evaluation that reaches the target; mean ± standard deviation over the seeds that do."
    return f'<h2>Rounds to a target</h2><p class="note">{note}</p><div class="wide">{table}</div>'


def shown(content: bytes, words: str) -> str:
    """A PNG picture as an element of a page; ``words`` say what it shows, for readers who cannot see it."""
    encoded = base64.b64encode(content).decode("ascii")
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{encoded}">'


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """A figure as a PNG file. ``Figure.savefig`` would draw it twice, the first time for its layout alone."""
    figure.set_dpi(dpi)
    figure.set_facecolor("white")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    buffer = io.BytesIO()
    imsave(buffer, canvas.buffer_rgba(), format="png", dpi=dpi)
    return buffer.getvalue()
