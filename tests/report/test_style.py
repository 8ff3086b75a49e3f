"""Letters that matplotlib's own font lacks: installed fonts have them, or one sentence says that none has."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import matplotlib
import pytest
from matplotlib.font_manager import FontEntry, fontManager

from fljax.report import page, style
from tests.report.test_fit import results

CHINESE = "联邦平均"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets which letters the installed fonts have, by the name of the family."""

    def install(**families: str) -> None:
        own = [each for each in fontManager.ttflist if each.name.startswith("DejaVu")]
        entries = own + [FontEntry(fname=f"/nowhere/{name}", name=name) for name in families]
        known = style._charmap
        monkeypatch.setattr(fontManager, "ttflist", entries)
        monkeypatch.setattr(
            style, "_charmap", lambda path: frozenset(families.get(pathlib.Path(path).name, "")) or known(path)
        )
        style._families_with.cache_clear()

    yield install
    style._families_with.cache_clear()


def test_usual_letters_need_no_other_font(installed: Any) -> None:
    installed(Other="联")
    usual = list(matplotlib.rcParams["font.family"])
    with style.fonts_for(["fedavg", "größe μ → \n"]):
        assert matplotlib.rcParams["font.family"] == usual
    assert style.font_note(["fedavg"]) is None


def test_fonts_with_most_of_the_letters_come_first(installed: Any) -> None:
    installed(Few="联", Most="联邦平", Rest="均한")
    usual = list(matplotlib.rcParams["font.family"])
    with style.fonts_for([CHINESE]):
        assert matplotlib.rcParams["font.family"] == [*usual, "Most", "Rest"]
    assert matplotlib.rcParams["font.family"] == usual
    assert style.font_note([CHINESE]) is None


@pytest.mark.in_turn
def test_letters_that_no_font_has_are_one_sentence_without_warnings(installed: Any, tmp_path: pathlib.Path) -> None:
    installed(Few="联", **{"Last Resort High-Efficiency": CHINESE})
    assert style.font_note([CHINESE]) == (
        "No installed font has the letters 均平邦, which are boxes in pictures; another font may have them."
    )
    installed()
    metrics, records = results(("fedavg", CHINESE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page.write_page(tmp_path / "report.html", metrics, records, "run", {})
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("No installed font has the letters") == 1


def test_a_file_that_is_no_font_has_no_letters(tmp_path: pathlib.Path) -> None:
    (tmp_path / "none.ttf").write_bytes(b"no font")
    assert style._charmap(str(tmp_path / "none.ttf")) == frozenset()
