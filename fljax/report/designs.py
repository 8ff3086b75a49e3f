"""What a search of mechanisms found: tables, sentences, and a picture of objectives by regret."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fljax.contributions import error_bars
from fljax.core import pages
from fljax.core.files import write
from fljax.report import style
from fljax.report.page import attached_to, png
from fljax.report.style import fitted, head, panel, printable, styles

PAGE, PICTURE = "design.html", "design.png"
DESIGNED = "designed"


def design_rows(design: xr.Dataset) -> list[list[str]]:
    """The design as text: headings, and a row for each mechanism and tolerance, as judged on fresh federations.

    Args:
      design: of ``fljax.games.design_dataset``.
    """
    rows = [["mechanism", "tolerance", "objective", "worse off", "regret", "by", "certified from", "designed adds"]]
    fresh = design.sel(stage="fresh")
    for label in design["mechanism"].values.tolist():
        for tolerance in design["epsilon"].values.tolist():
            cell = fresh.sel(mechanism=label, epsilon=tolerance)
            bars = error_bars(cell["fresh_objective"].values)
            price = _between(*(cell[f"price_{end}"] for end in ("mean", "low", "high")), sign="+")
            regret = _between(cell["regret"]), str(cell["lie"].values) or "-"
            words = [label, f"{tolerance:g}", _between(bars.mean, bars.low, bars.high)]
            certified = f"{_between(cell['certified_from'])} {cell['verdict'].values}".strip()
            rows.append([*words, _between(cell["worse_off"]), *regret, certified, "-" if label == DESIGNED else price])
    return rows


def number_rows(design: xr.Dataset) -> list[list[str]]:
    """The numbers that were found as text, and what each adds to the objective; an array is a row."""
    rows = [["mechanism", "tolerance", "option", "found", "in place of", "adds"]]
    names = ("of_mechanism", "of_epsilon", "name", "entry", "argument", "argument_before")
    names += ("worth_mean", "worth_low", "worth_high")
    columns = [design[name].values.tolist() for name in names]
    for label, tolerance, name, entry, *values, mean, low, high in zip(*columns, strict=True):
        if entry <= 0:
            found = [f"{value:.4g}" if entry < 0 else "an array" for value in values]
            rows.append([label, f"{tolerance:g}", name, *found, _between(mean, low, high, sign="+")])
    return rows


def design_sentences(design: xr.Dataset) -> list[str]:
    """What the tables mean: which baselines are as good, which numbers matter, and how much luck the search had."""
    said: list[str] = []
    for tolerance in design["epsilon"].values.tolist():
        at, where = design.sel(epsilon=tolerance), f"at {tolerance:g}"
        own = at.sel(mechanism=DESIGNED, stage="fresh")
        verdict = f", {own['verdict'].values}" if own["verdict"].values else ""
        said.append(f"Designed {where}: the largest mean gain of a lie is {_between(own['regret'])}{verdict}.")
        for label in [label for label in at["mechanism"].values.tolist() if label != DESIGNED]:
            cell = at.sel(mechanism=label)
            mean, low, high = (float(cell[f"price_{end}"]) for end in ("mean", "low", "high"))
            beside = f"{label}: {_between(mean, low, high, sign='+')}"
            regret = float(cell["regret"].sel(stage="fresh"))
            more = f", whose regret is {regret:.3g}" if regret > tolerance else ""
            word = (
                "better" if low > 0 else "worse" if high < 0 else "no better" if np.isfinite(mean) else "not compared"
            )
            said.append(f"Designed {where} is {word} {'than' if np.isfinite(mean) else 'with'} {beside}{more}.")
        stages = at["objective"].sel(mechanism=DESIGNED)
        luck = float(stages.sel(stage="validated") - stages.sel(stage="fresh"))
        said.append(f"On the federations by which it was chosen, designed {where} had {luck:+.4f} more.")
        own = (at["of_mechanism"] == DESIGNED) & (at["of_epsilon"] == tolerance) & (at["entry"] <= 0)
        names, low, high = (at[name].values[own.values].tolist() for name in ("name", "worth_low", "worth_high"))
        idle = [name for name, least, most in zip(names, low, high, strict=True) if least <= 0 <= most]
        if idle:
            said.append(f"The objective {where} does not depend on these options beyond its noise: {', '.join(idle)}.")
    return [*said, f"The search took {int(design['runs']):,} runs."]


def front_picture(design: xr.Dataset, heading: str = "") -> Figure:
    """Objectives by regret on fresh federations: a point for each mechanism and tolerance, with 95 % intervals.

    Horizontal bars are of certificates; lines join the tolerances of a mechanism, and dotted ones are the tolerances.

    Args:
      design: of ``fljax.games.design_dataset``.
      heading: of the picture.
    """
    figure = Figure(figsize=(8.6, 5.2), layout="constrained")
    axes, labels = panel(figure), [str(label) for label in design["mechanism"].values]
    fresh, looks = design.sel(stage="fresh"), styles(labels)
    for place, label in enumerate(labels):
        own = fresh.sel(mechanism=label)
        bars = error_bars(own["fresh_objective"].transpose("place", "epsilon").values)
        regret, ends = own["regret"].values, [own[name].values for name in ("epsilon_low", "epsilon_high")]
        wide: Any = [np.nan_to_num(np.maximum(gap, 0)) for gap in (regret - ends[0], ends[1] - regret)]
        tall: Any = [bars.mean - bars.low, bars.high - bars.mean]
        look = looks[label]
        size, name = 8 if label == DESIGNED else 5, fitted(printable(label, 400), 2.6, 10)
        axes.errorbar(
            regret, bars.mean, tall, wide, color=look.colour, marker="osD^v"[place // 6 % 5], linestyle="-",
            linewidth=1, elinewidth=0.8, markersize=size, label=name,
        )  # fmt: skip
    for tolerance in design["epsilon"].values.tolist():
        axes.axvline(tolerance, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("largest mean gain of a lie")
    axes.set_ylabel("objective")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    head(figure, heading, "on federations that the search never saw", size=14)
    return figure


def write_design(folder: pathlib.Path, design: xr.Dataset, heading: str) -> tuple[pathlib.Path, ...]:
    """Writes ``design.png`` and ``design.html``; returns their paths."""
    with style.fonts_for([*map(str, design["mechanism"].values), *style.texts_of(xr.Dataset(), heading)]):
        content = png(front_picture(design, f"{heading}: good and truthful?"))
    write(folder / PICTURE, content)
    parts = [
        pages.section("On fresh federations", pages.note(*design_sentences(design))),
        pages.wide(pages.table(design_rows(design))),
        pages.wide(pages.image(content, "Objectives by regret")),
        pages.section("What was found", pages.wide(pages.table(number_rows(design)))),
    ]
    write(folder / PAGE, pages.page(heading, parts, attached_to(folder)).encode())
    return folder / PICTURE, folder / PAGE


def _between(mean: Any, *ends: Any, sign: str = "") -> str:
    """A number, and its interval."""
    words = [f"{float(value):{sign}.3f}" if np.isfinite(float(value)) else "-" for value in (mean, *ends)]
    return f"{words[0]} ({words[1]} to {words[2]})" if ends else words[0]
