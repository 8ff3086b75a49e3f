"""Whether it pays to deviate: a table, sentences, a heatmap of deviations by client, and where best responses lead."""

from __future__ import annotations

import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from fljax.core import pages
from fljax.core.files import write
from fljax.core.plain import as_csv
from fljax.report import style
from fljax.report.page import attached_to, png

PAGE, TABLE = "certificates.html", "certificates.csv"
_GAIN, _LOSS, _PLAIN = "#D55E00", "#0072B2", "#f3f3f3"
_SINK, _CYCLE, _NODE = style.INK, "#ffcf87", "#dddddd"
_WRITTEN = 24  # clients up to which numbers are written into cells
_MOST_NODES = 64
_MARKS = {
    "VIOLATED": "framed: violated",
    "INCONCLUSIVE": "?: inconclusive",
    "NO EFFECT SEEN": "=: no effect seen",
    "CERTIFIED": "plain: certified",
}
_WRITTEN_MARKS = {"INCONCLUSIVE": "?", "NO EFFECT SEEN": "="}
_CHANGES = ("loss", "participation", "welfare")
_BEGIN = ("algorithm", "client", "deviation", "gain", "low", "high", "error")
_COUNTED = (("deviation", "deviation"), ("deviator", "client"))
_OUTSIDE = {
    "standalone": "without joining, by standalone models",
    "mechanism": "without joining, by the mechanism with one member",
}


def certificate_rows(certificate: xr.Dataset) -> list[list[str]]:
    """The certificate as text: a row of headings, and a row for each cell, those with the largest mean gains first.

    Args:
      certificate: of ``fljax.games.certificate_dataset``.
    """
    rows = [["client", "deviation", "gain", "from", "to", "loss of others", "change of welfare", "verdict"]]
    means = certificate[["mean", "low", "high", "loss", "welfare"]].mean("seed")
    words = [certificate[name].values.astype(str).tolist() for name in ("deviation", "verdict_of_cell")]
    for cell in np.argsort(-certificate["mean"].values, kind="stable"):
        numbers = [f"{float(values[cell]):+.4f}" for values in means.values()]
        rows.append([_name_of(certificate, int(cell)), words[0][cell], *numbers, words[1][cell]])
    return rows


def deviation_rows(certificate: xr.Dataset, *, bounds: bool = False) -> list[list[str]]:
    """The certificate as text: headings, and a row for each deviation: who gains most by it, largest gain first."""
    beside = {"loss": "others lose", "participation": "participation", "welfare": "welfare"}
    rows = [["deviation", "client", "gain", "from", "to", *beside.values(), "verdict"]]
    names, means = certificate["deviation"].values.astype(str), certificate["mean"].values
    worst = {name: max(np.flatnonzero(names == name), key=lambda cell: means[cell]) for name in dict.fromkeys(names)}
    for name, cell in sorted(worst.items(), key=lambda pair: -means[pair[1]]):
        entry = certificate.isel(cell=int(cell))
        gain = [f"{float(entry[part]):+.4f}" for part in ("mean", "low", "high")]
        others = [_with_bounds(entry, part, bounds) for part in beside]
        # "VIOLATED" if it is for some clients, and another verdict if it is so for all.
        verdicts = certificate["verdict_of_cell"].values[names == name].tolist()
        rows.append([str(name), _name_of(certificate, int(cell)), *gain, *others, _of_all(verdicts)])
    return rows


def _with_bounds(entry: xr.Dataset, name: str, bounds: bool) -> str:
    if name not in entry:
        return "-"
    mean = f"{float(entry[name].mean('seed')):+.4f}"
    return f"{mean} ({float(entry[f'{name}_low']):+.4f} to {float(entry[f'{name}_high']):+.4f})" if bounds else mean


def _of_all(verdicts: Sequence[str]) -> str:
    """The verdict on a deviation of several clients."""
    violated = verdicts.count("VIOLATED")
    if violated:
        return f"VIOLATED ({violated} of {len(verdicts)})" if len(verdicts) > 1 else "VIOLATED"
    return verdicts[0] if len(set(verdicts)) == 1 else "INCONCLUSIVE"


def _name_of(certificate: xr.Dataset, cell: int) -> str:
    """The name of the client that deviates in a cell."""
    return style.printable(str(certificate["name"].values[int(certificate["deviator"][cell])]), 30)


def _cell_in_words(certificate: xr.Dataset, cell: int) -> str:
    """``client 2, update times 4``."""
    return f"client {_name_of(certificate, cell)}, {certificate['deviation'].values[cell]}"


def rationality_sentence(certificate: xr.Dataset) -> str | None:
    """How many clients should not have joined; None if outside options are not known."""
    if "irrational" not in certificate:
        return None
    share, low, high = (100 * float(certificate[f"irrational{end}"]) for end in ("", "_low", "_high"))
    outside = _OUTSIDE.get(str(certificate["outside_is"].values), "without joining")
    words = f"{share:.1f} % of the clients have less than {outside} (from {low:.1f} to {high:.1f} %)."
    return words + (" Where most do, it pays to contribute nothing." if share > 50 else "")


def certificate_sentences(certificate: xr.Dataset) -> list[str]:
    """What a certificate says beside its cells: who should join, the verdict, the worst cell, and what it is about.

    Args:
      certificate: of ``fljax.games.certificate_dataset``.
    """
    first = rationality_sentence(certificate)
    sentences: list[str] = [] if first is None else [first]
    sure = f"{100 * float(certificate['confidence']):g} %"
    sentences.append(f"{_verdict_in_words(certificate)}.")
    if np.isfinite(certificate["seeds_needed"]):
        sentences.append(f"About {int(certificate['seeds_needed']):,} seeds would decide.")
    unseen, seeds = int((certificate["verdict_of_cell"] == "NO EFFECT SEEN").sum()), certificate.sizes["seed"]
    if unseen:
        rare = 100 * (1 - (1 - float(certificate["confidence"])) ** (1 / seeds))
        sentences.append(
            f"No effect seen in {unseen} of {certificate.sizes['cell']} cells, whose gain is the same with all seeds. "
            f"This bounds no gain: in up to {rare:.0f} % of all draws a cell may gain something else ({sure})."
        )
    if "harmful_cell" in certificate:
        worst, *ends = (certificate[f"harmful_{name}"].item() for name in ("cell", "low", "high"))
        sentences.append(
            f"The others lose in {int(certificate['harmful_count'])} of {certificate.sizes['cell']} cells, in which "
            f"the largest gain is from {ends[0]:.4g} to {ends[1]:.4g} ({_cell_in_words(certificate, worst)})."
        )
    cells, half = [int(certificate[name]) for name in ("worst", "confirmed_cell")], seeds // 2
    names = [_cell_in_words(certificate, int(cell)) for cell in cells]
    ends = [float(certificate[f"confirmed_{name}"]) for name in ("mean", "low", "high")]
    sentences.append(
        f"Largest mean gain: {names[0]}, {float(certificate['mean'][cells[0]]):+.4f}. Chosen with {half} seeds and "
        f"reported with the others: {names[1]}, {ends[0]:+.4f} (from {ends[1]:+.4f} to {ends[2]:+.4f}, {sure})."
    )
    sentences += [*_attack_in_words(certificate, half, sure), *_controls_in_words(certificate)]
    sentences += _of_single_seeds(certificate, sure)
    lost = int(certificate["diverged"].sum() + certificate["honest_diverged"].sum())
    if lost:
        runs = "1 run diverged and counts" if lost == 1 else f"{lost} runs diverged and count"
        sentences.append(f"{runs} as the worst utility.")
    tried = {name: len(set(certificate[name].values)) for name, _ in _COUNTED}
    words = [f"{tried[name]} {word}{'s' * (tried[name] > 1)}" for name, word in _COUNTED]
    sentences.append(
        f"Tried: {words[0]} of {words[1]}, each one alone while all others are honest. "
        "A client may gain more by a deviation that was not tried. Gains are means over seeds. They are often skewed: "
        "the bounds of a single cell then hold less often than they say."
    )
    return sentences


def _attack_in_words(certificate: xr.Dataset, half: int, sure: str) -> list[str]:
    if "attack_client" not in certificate:
        return []
    mean, low, high = (float(certificate[f"attack_{name}"]) for name in ("mean", "low", "high"))
    numbers = zip(certificate["attack_field"].values, certificate["attack_number"].values, strict=True)
    strategy = ", ".join(f"{field} {float(number):.3g}" for field, number in numbers)
    beyond = " It violates the tolerance." if low > float(certificate["tolerance"]) else ""
    attacker = certificate["name"].values[int(certificate["attack_client"])]
    return [
        f"Attack: the best of {int(certificate['attack_candidates'])} strategies of client "
        f"{attacker}, chosen with {half} seeds ({strategy}), gains {mean:+.4f} with the others (from {low:+.4f} to "
        f"{high:+.4f}, {sure}).{beyond}"
    ]


def _controls_in_words(certificate: xr.Dataset) -> list[str]:
    if "control_name" not in certificate:
        return []
    columns = (certificate[f"control_{part}"].values.tolist() for part in ("name", "expected", "verdict"))
    controls = list(zip(*columns, strict=True))
    failed = [
        f"Control failed: {name} should be {expected} and is {verdict}, so the verdict says little."
        for name, expected, verdict in controls
        if expected != verdict
    ]
    named = "; ".join(f"{name}: {verdict}" for name, _, verdict in controls)
    return failed or [f"Controls, all as they should be: {named}."]


def _of_single_seeds(certificate: xr.Dataset, sure: str) -> list[str]:
    """Gains ex post, and what could be seen: the smallest gain that is flagged, beside the noise of payoffs."""
    if "violated_seeds" not in certificate:
        return []
    share, most = (100 * float(certificate[f"violated_seeds{end}"]) for end in ("", "_high"))
    quantiles = zip(certificate["level"].values, certificate["largest_quantile"].values, strict=True)
    shown = ", ".join(f"{float(gain):+.4f} (quantile {float(level):g})" for level, gain in quantiles)
    seen = float(certificate["tolerance"]) + float((certificate["mean"] - certificate["low"]).max())
    noise = float(certificate["honest"].std("seed", ddof=1).mean())
    return [
        f"With single seeds: in {share:.1f} % of them somebody gains more than the tolerance (at most {most:.1f} % of "
        f"all draws, {sure}). Largest gain of a seed: {shown}.",
        f"A mean gain above {seen:.4g} is flagged in every cell. Payoffs of an honest client have the standard "
        f"deviation {noise:.4g} over seeds.",
    ]


def _verdict_in_words(certificate: xr.Dataset) -> str:
    """The verdict, and from where to where the largest gain is."""
    low, high = float(certificate["epsilon_low"]), float(certificate["epsilon_high"])
    cells, seeds = certificate.sizes["cell"], certificate.sizes["seed"]
    sure = f"{100 * float(certificate['confidence']):g} % for each side, {cells} cells at once, {seeds} seeds"
    verdict = f"{certificate['verdict'].item()} at {float(certificate['tolerance']):g}"
    attacked = certificate["verdict"] == "VIOLATED" and not (certificate["verdict_of_cell"] == "VIOLATED").any()
    gain = " by the attack: the largest gain of the cells" if attacked else ": the largest gain"
    return f"{verdict}{gain} is from {low:.4g} to {high:.4g} ({sure})"


def certificate_picture(certificate: xr.Dataset, heading: str = "") -> Figure:
    """A heatmap: the mean gain of each client that deviates alone, by deviation, with the verdict on each cell.

    Cells that violate the tolerance have a frame, inconclusive ones a question mark, and those whose gain is the same
    with all seeds an equals sign.

    Args:
      certificate: of ``fljax.games.certificate_dataset``.
      heading: of the picture.
    """
    rows = list(dict.fromkeys(map(str, certificate["deviation"].values)))
    clients = certificate.sizes["client"]
    gains, verdicts = np.full((len(rows), clients), np.nan), np.full((len(rows), clients), "", dtype=object)
    places = [rows.index(str(name)) for name in certificate["deviation"].values], certificate["deviator"].values
    gains[places], verdicts[places] = certificate["mean"].values, certificate["verdict_of_cell"].values.astype(str)
    labels = [style.printable(row, 30) for row in rows]
    beside = max(style.width_of(label, 9) for label in labels)
    lines = sum(1 + label.count("\n") for label in labels)
    size = max(6.4, beside + 2.2 + 0.62 * min(clients, _WRITTEN)), 2.6 + 0.34 * lines
    figure = Figure(figsize=size, layout="constrained")
    axes = style.panel(figure)
    style.bare(axes)
    largest = float(np.nanmax(np.abs(gains))) or 1.0
    colours = LinearSegmentedColormap.from_list("gains", [_LOSS, "#ffffff", _GAIN]).with_extremes(bad="#bbbbbb")
    image = axes.imshow(np.ma.masked_invalid(gains), cmap=colours, norm=Normalize(-largest, largest), aspect="auto")
    _write_cells(axes, gains, verdicts, largest)
    axes.set_yticks(range(len(rows)), labels)
    step = max(1, -(-clients // _WRITTEN))
    shown = range(0, clients, step)
    axes.set_xticks(shown, [style.printable(str(certificate["name"].values[client]), 12) for client in shown])
    axes.set_xlabel("client that deviates")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("mean gain", fontsize=9.5, color=style.INK)
    bar.ax.tick_params(colors=style.INK, labelsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    _title(axes, [_verdict_in_words(certificate)], size[0] - 2)
    style.head(figure, heading or "Does it pay to deviate?", size=13)
    present = [name for name in _MARKS if (verdicts == name).any()]
    untried = {"not tried": Patch(facecolor="#bbbbbb")} if (verdicts == "").any() else {}
    style.legend_below(figure, {_MARKS[name]: _mark(name) for name in present} | untried)
    return figure


def _write_cells(axes: Axes, gains: np.ndarray, verdicts: np.ndarray, largest: float) -> None:
    """Numbers and marks; many clients have marks alone."""
    decimals = int(np.clip(2 - np.floor(np.log10(largest)), 0, 5))
    for row, column in np.argwhere(verdicts != ""):
        value, verdict = float(gains[row, column]), str(verdicts[row, column])
        words = f"{round(value, decimals) + 0.0:+.{decimals}f}" if gains.shape[1] <= _WRITTEN else ""
        words += _WRITTEN_MARKS.get(verdict, "")
        light = abs(value) > 0.6 * largest
        axes.text(column, row, words, ha="center", va="center", fontsize=8, color="white" if light else style.INK)
        if verdict == "VIOLATED":
            axes.add_patch(
                Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, edgecolor=style.INK, linewidth=1.8)
            )


def _mark(verdict: str) -> Patch | Line2D:
    if verdict in _WRITTEN_MARKS:
        return Line2D([], [], linestyle="none", marker=f"${_WRITTEN_MARKS[verdict]}$", markersize=8, color=style.INK)
    width = 1.8 if verdict == "VIOLATED" else 0.0
    return Patch(facecolor=_PLAIN, edgecolor=style.INK, linewidth=width)


def certificate_table(certificates: Mapping[str, xr.Dataset]) -> bytes:
    """All cells as CSV: a line for each algorithm and cell, with its gain with each seed; empty if not known."""
    seeds = list(dict.fromkeys(int(seed) for dataset in certificates.values() for seed in dataset["seed"].values))
    changes = [f"{name}{end}" for name in _CHANGES for end in ("", "_low", "_high")]
    lines = [
        {"algorithm": label, **_line(dataset.isel(cell=cell))}
        for label, dataset in certificates.items()
        for cell in range(dataset.sizes["cell"])
    ]
    columns = [*_BEGIN, *changes, "above", "verdict", *(f"seed_{seed}" for seed in seeds)]
    return as_csv(pd.DataFrame(lines, columns=pd.Index(columns), dtype=object)).encode()


def _line(entry: xr.Dataset) -> dict[str, object]:
    """One cell."""
    numbers = {"gain": "mean", **{name: name for name in ("low", "high", "error", "above")}}
    name = str(entry["name"].values[int(entry["deviator"])])
    line: dict[str, object] = {"client": name, "deviation": str(entry["deviation"].values)}
    line |= {column: float(entry[name]) for column, name in numbers.items() if name in entry}
    line["verdict"] = str(entry["verdict_of_cell"].values)
    for name in _CHANGES:
        if name in entry:
            line |= {name: float(entry[name].mean("seed"))}
            line |= {f"{name}{end}": float(entry[f"{name}{end}"]) for end in ("_low", "_high")}
    gains = zip(entry["seed"].values, entry["gain"].values, strict=True)
    return line | {f"seed_{int(seed)}": float(gain) for seed, gain in gains}


def write_certificates(
    folder: pathlib.Path,
    certificates: Mapping[str, xr.Dataset],
    heading: str,
    notes: Mapping[str, Sequence[str]],  # further sentences by label: which runs diverged
) -> tuple[pathlib.Path, ...]:
    """Writes ``certificates.html`` and ``certificate_WORDS.png`` of each label; returns their paths."""
    paths: list[pathlib.Path] = []
    parts: list[str] = []
    for label, dataset in certificates.items():
        names = [label, *map(str, dataset["deviation"].values), *map(str, dataset["name"].values)]
        with style.fonts_for([*names, *style.texts_of(xr.Dataset(), heading)]):
            content = png(certificate_picture(dataset, f"{label}: does it pay to deviate?"))
        paths.append(folder / f"certificate_{_as_words(label)}.png")
        write(paths[-1], content)
        first, said = rationality_sentence(dataset), certificate_sentences(dataset)
        rest = said if first is None else said[1:]
        parts += [
            pages.section(label, "" if first is None else pages.note(first)),
            pages.wide(pages.table(deviation_rows(dataset, bounds=True))),
            pages.note(*rest, *notes.get(label, ())),
            pages.wide(pages.image(content, f"Gains of each client by deviation under {label}")),
            pages.folded(f"All cells of {label}", pages.wide(pages.table(certificate_rows(dataset)))),
        ]
    for label in [label for label in notes if label not in certificates]:
        parts.append(pages.section(label, pages.note(*notes[label])))
    page = folder / PAGE
    write(page, pages.page(heading, parts, attached_to(folder)).encode())
    return (*paths, page)


def _as_words(label: str) -> str:
    """A label as small letters, digits and underscores; of a label with anything else a checksum tells it apart."""
    words = re.sub("[^a-z0-9]+", "_", label.lower()).strip("_")[:80]
    return words if words == label else f"{words}-{zlib.crc32(label.encode()):08x}"


def best_response_picture(graph: xr.Dataset, heading: str = "") -> Figure:
    """Profiles as nodes, and an arrow where a client changes to a best response; equilibria have no arrow that leaves.

    The honest profile is on the left. In a column are profiles whose places of strategies have the same sum: of two
    strategies, the same number of clients that deviate. Of a graph with more than 64 profiles, those are drawn to which
    best responses lead from the honest profile, and the equilibria.

    Args:
      graph: of ``fljax.games.response_dataset``.
      heading: of the picture.

    Raises:
      ValueError: if more than 64 profiles would be drawn.
    """
    choices = graph["choice"].transpose("profile", "client").values
    source, target = graph["source"].values, graph["target"].values
    drawn = _drawn(choices, source, target, graph["sink"].values)
    x, y, tallest = _places(choices, drawn)
    columns = len(np.unique(x))
    names = [str(name) for name in graph["strategy"].values]
    labels = {place: _label(choices[place], names) for place in drawn}
    widest = max(style.width_of(label, 9) for label in labels.values())
    lines = max(1 + label.count("\n") for label in labels.values())
    size = max(6.4, columns * (widest + 1.1)), max(3.6, 1.6 + (0.46 + 0.16 * lines) * tallest)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.axis("off")
    movers, gains = graph["mover"].values, graph["gain"].values
    sinks, cycles = graph["sink"].values, graph["in_cycle"].values
    box = {"boxstyle": "round,pad=0.35", "edgecolor": "white"}
    in_box: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "zorder": 3}
    boxes = {
        place: axes.text(
            float(x[place]),
            float(y[place]),
            label,
            color="white" if sinks[place] else style.INK,
            bbox=box | {"facecolor": _SINK if sinks[place] else _CYCLE if cycles[place] else _NODE},
            **in_box,
        ).get_bbox_patch()
        for place, label in labels.items()
    }
    inside = np.isin(source, drawn) & np.isin(target, drawn)
    for edge in np.flatnonzero(inside):
        begin, end = int(source[edge]), int(target[edge])
        arrow = FancyArrowPatch(
            (float(x[begin]), float(y[begin])),
            (float(x[end]), float(y[end])),
            arrowstyle="-|>",
            mutation_scale=12,
            connectionstyle="arc3,rad=0.1",
            patchA=boxes[begin],
            patchB=boxes[end],
            shrinkA=1,
            shrinkB=1,
            linewidth=float(0.8 + 1.4 * gains[edge] / gains[inside].max()),
            color=style.COLOURS[int(movers[edge]) % len(style.COLOURS)],
            zorder=4,  # above the boxes, which have their size when they are drawn
        )
        axes.add_patch(arrow)
    axes.set_xlim(-0.5, x[drawn].max() + 0.5)
    axes.set_ylim(y[drawn].min() - 0.7, y[drawn].max() + 0.7)
    _title(axes, _graph_in_words(names, len(drawn), len(choices)), figure.get_figwidth() - 0.4)
    style.head(figure, heading or "Best responses", size=13)
    style.legend_below(figure, _of_nodes(sinks[drawn], cycles[drawn]) | _of_movers(movers[inside]))
    return figure


def _drawn(choices: np.ndarray, source: np.ndarray, target: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """The places of profiles that a picture shows."""
    chosen = np.ones(len(choices), bool)
    if len(choices) > _MOST_NODES:
        chosen = (choices == 0).all(axis=1) | (sinks > 0)
        while True:
            further = np.zeros_like(chosen)
            further[target[chosen[source]]] = True
            if not (further & ~chosen).any():
                break
            chosen |= further
    if chosen.sum() > _MOST_NODES:
        raise ValueError(f"expected at most {_MOST_NODES} profiles in a picture of best responses, got {chosen.sum()}")
    return np.flatnonzero(chosen)


def _places(choices: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each profile stands, a column for each sum of places of strategies, and the most in a column."""
    x, y = np.zeros(len(choices)), np.zeros(len(choices))
    levels = choices[drawn].sum(axis=1)
    tallest = 1
    for column, level in enumerate(np.unique(levels)):
        rows = drawn[levels == level]
        x[rows], y[rows] = column, (len(rows) - 1) / 2 - np.arange(len(rows))
        tallest = max(tallest, len(rows))
    return x, y, tallest


def _label(row: np.ndarray, names: list[str]) -> str:
    """Of two strategies the clients with the first one, in braces; of more the strategies of clients in order."""
    if len(names) == 2:
        return "{" + ", ".join(map(str, np.flatnonzero(row == 0))) + "}"
    chosen = [style.printable(names[int(choice)], 24) for choice in row]
    longest = len(row) * (max(map(len, names)) + 3) - 3
    return (" | " if longest <= 24 else "\n").join(chosen)


def _graph_in_words(names: Sequence[str], drawn: int, count: int) -> list[str]:
    first = (
        f"in braces: clients that play {names[0]!r}, not {names[1]!r}"
        if len(names) == 2
        else "strategies of clients in their order"
    )
    more = f"; {drawn} of {count} profiles, to which play leads from the honest one" if drawn < count else ""
    return [style.printable(f"{first}; arrows: best responses{more}", 200)]


def _of_nodes(sinks: np.ndarray, cycles: np.ndarray) -> dict[str, Patch]:
    words = {"equilibrium": (_SINK, sinks > 0), "in a cycle": (_CYCLE, (cycles > 0) & (sinks == 0))}
    return {name: Patch(facecolor=colour) for name, (colour, where) in words.items() if where.any()}


def _of_movers(movers: np.ndarray) -> dict[str, Line2D]:
    """A line for each client that moves; colours come again after six clients, which share a line then."""
    lines: dict[str, Line2D] = {}
    for place, colour in enumerate(style.COLOURS):
        clients = sorted({int(client) for client in movers if client % len(style.COLOURS) == place})
        if clients:
            lines[f"client {' or '.join(map(str, clients))}"] = Line2D([], [], color=colour, linewidth=2)
    return lines


def _title(axes: Axes, lines: Sequence[str], width: float) -> None:
    axes.set_title(style.fitted("\n".join(lines), width, 10), fontsize=10, color=style.INK)
