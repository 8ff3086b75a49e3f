"""The version is one number: in the package, in the installed metadata, in the citation and in the changelog."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import fljax

ROOT = Path(__file__).parent.parent


def test_the_citation_and_the_changelog_name_the_version() -> None:
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    released = re.findall(r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == (fljax.__version__, cited["date-released"])
    assert cited["version"] == fljax.__version__


def test_the_installed_metadata_has_the_version() -> None:
    assert importlib.metadata.version("fljax") == fljax.__version__
