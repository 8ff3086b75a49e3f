"""Notebooks as Markdown with their stored outputs."""

from __future__ import annotations

import base64
import json
import pathlib
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parent.parent.parent / "notebooks"
COLAB = "https://colab.research.google.com/github"


class Page(NamedTuple):
    """A notebook's title, its Markdown, and its pictures by file name."""

    title: str
    text: str
    pictures: dict[str, bytes]


def pages(colab: str = "") -> dict[str, Page]:
    """All notebooks by name.

    Args:
      colab: where Colab finds the repository, ``OWNER/REPOSITORY/blob/BRANCH``; empty: no badge.
    """
    return {path.stem: page(path, colab) for path in sorted(FOLDER.glob("*.ipynb"))}


def page(path: pathlib.Path, colab: str = "") -> Page:
    """One notebook. Cells with the tag ``install`` are left out."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in cells:
        if "install" in cell["metadata"].get("tags", ()):
            continue
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```py\n{source}\n```")
        for output in cell["outputs"]:
            parts += _shown(output, path.stem, pictures)
    title, *rest = parts
    badge = [f"[Open in Colab]({COLAB}/{colab}/notebooks/{path.name}){{ .md-button }}"] if colab else []
    head, _, more = title.partition("\n")
    text = "\n\n".join(each for each in (head, *badge, more.strip(), *rest) if each)
    return Page(head.lstrip("# "), text + "\n", pictures)


def _shown(output: Any, stem: str, pictures: dict[str, bytes]) -> list[str]:
    text = "".join(output.get("text", ()))
    if text:
        return [f"```text\n{text.rstrip()}\n```"]
    found = output.get("data", {})
    if "image/png" in found:
        name = f"{stem}_{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(found["image/png"]))
        return [f"![Output of the cell above]({name})"]
    plain = "".join(found.get("text/plain", ()))
    return [f"```text\n{plain.rstrip()}\n```"] if plain else []
