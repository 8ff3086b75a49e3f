"""BibTeX of the papers that algorithms and scenarios are from."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence


def bibtex(keys: Sequence[str]) -> str:
    """The entries of ``references.bib`` with these keys, in this order, with an empty line between them."""
    return "\n\n".join(_entries()[key] for key in keys)


@functools.cache
def _entries() -> dict[str, str]:
    """Every entry by its key. An entry begins with ``@`` at the start of a line."""
    text = importlib.resources.files("fljax").joinpath("algorithms", "references.bib").read_text(encoding="utf-8")
    entries = [entry.strip() for entry in re.split(r"^(?=@)", text, flags=re.MULTILINE) if entry.strip()]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}
