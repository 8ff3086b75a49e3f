"""Texts without effect."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from fljax.core.plain import as_csv, in_cell, plain, tell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("é木 ±\u200d", "é木 ±\u200d"),
        ("\x1b[2J\x07\x9b\r", r"\x1b[2J\x07\x9b\r"),
        ("\u202e\u2028\ud800", r"\u202e\u2028\ud800"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    out = io.StringIO()
    tell(text, 1, file=out)
    assert (plain(text), out.getvalue()) == (shown, f"{shown} 1\n")


@pytest.mark.parametrize("text", ["=1+1", "+a", "-2+3", "@x", "\tx", "-1 ", "-1\n=1"])
def test_formulas_are_texts(text: str) -> None:
    table = pd.DataFrame({text: [text, 1.5], "b": [-1, 2]})
    assert in_cell(text) == f"'{text}"
    assert pd.read_csv(io.StringIO(as_csv(table), newline="")).columns[0] == f"'{text}"
    assert "\r" not in as_csv(pd.DataFrame({"a": [f"a\r{text}"]}))  # which would begin a line
    assert as_csv(table[["b"]]) == "b\n-1\n2\n"


@pytest.mark.parametrize("value", ["-1.5", "+1e-3", "a=b", "", 3, None])
def test_numbers_and_texts_stay(value: object) -> None:
    assert in_cell(value) == value
