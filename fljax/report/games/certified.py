"""The files of ``fljax certify``: a table of all cells, a picture of each algorithm, and a page.

The datasets are those of ``fljax.games.certificate_dataset``, by label of the algorithm.
"""

from __future__ import annotations

import csv
import html
import io
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence

import xarray as xr

from fljax.core.files import write
from fljax.report.certificates import (
    certificate_picture,
    certificate_rows,
    certificate_sentences,
    deviation_rows,
    rationality_sentence,
)
from fljax.report.page import attached_to, png, shown, whole_page
from fljax.report.style import fonts_for, texts_of
from fljax.report.worth import lines_of

PAGE, TABLE = "certificates.html", "certificates.csv"
_CHANGES = ("loss", "participation", "welfare")
_BEGIN = ("algorithm", "client", "deviation", "gain", "low", "high", "error")


def certificate_table(certificates: Mapping[str, xr.Dataset]) -> bytes:
    """All cells as CSV: a line for each algorithm and cell, with its gain with each seed.

    Columns: the gain with its bounds and standard error; by ``loss`` (of another client), ``participation`` and
    ``welfare`` means and bounds; ``above``, the share of seeds with a gain above the tolerance; the verdict; and
    ``seed_S``. What is not known is empty.
    """
    seeds = list(dict.fromkeys(int(seed) for dataset in certificates.values() for seed in dataset["seed"].values))
    changes = [f"{name}{end}" for name in _CHANGES for end in ("", "_low", "_high")]
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [*_BEGIN, *changes, "above", "verdict", *(f"seed_{seed}" for seed in seeds)], restval=""
    )
    writer.writeheader()
    for label, dataset in certificates.items():
        for cell in range(dataset.sizes["cell"]):
            writer.writerow({"algorithm": label, **_line(dataset.isel(cell=cell))})
    return text.getvalue().encode()


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
    notes: Mapping[str, Sequence[str]],
) -> tuple[pathlib.Path, ...]:
    """Writes ``certificates.html`` and ``certificate_WORDS.png`` of each label into a folder; returns their paths.

    Args:
      folder: of the run.
      certificates: by label.
      heading: of the page.
      notes: further sentences by label: which runs diverged. Those of a label without a certificate stand alone.
    """
    paths: list[pathlib.Path] = []
    parts: list[str] = []
    for label, dataset in certificates.items():
        names = [label, *map(str, dataset["deviation"].values), *map(str, dataset["name"].values)]
        with fonts_for([*names, *texts_of(xr.Dataset(), heading)]):
            content = png(certificate_picture(dataset, f"{label}: does it pay to deviate?"))
        paths.append(folder / f"certificate_{_as_words(label)}.png")
        write(paths[-1], content)
        first, said = rationality_sentence(dataset), certificate_sentences(dataset)
        rest = said if first is None else said[1:]
        parts += [
            f"<h2>{html.escape(label)}</h2>",
            "" if first is None else lines_of([first]),
            f'<div class="wide">{_as_html(deviation_rows(dataset, bounds=True))}</div>',
            lines_of([*rest, *notes.get(label, ())]),
            f'<div class="wide">{shown(content, f"Gains of each client by deviation under {label}")}</div>',
            f"<details><summary>All cells of {html.escape(label)}</summary>"
            f'<div class="wide">{_as_html(certificate_rows(dataset))}</div></details>',
        ]
    for label in [label for label in notes if label not in certificates]:
        parts += [f"<h2>{html.escape(label)}</h2>", lines_of(list(notes[label]))]
    page = folder / PAGE
    write(page, whole_page(heading, parts, attached_to(folder)).encode())
    return (*paths, page)


def _as_words(label: str) -> str:
    """A label as small letters, digits and underscores; of a label with anything else a checksum tells it apart."""
    words = re.sub("[^a-z0-9]+", "_", label.lower()).strip("_")[:80]
    return words if words == label else f"{words}-{zlib.crc32(label.encode()):08x}"


def _as_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows, of which the first one has the headings, as a table."""
    head, *body = rows
    titles = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in body)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
