"""What is printed and drawn of a design."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from fljax.games import design_dataset
from fljax.report.designs import design_rows, design_sentences, front_picture, number_rows, write_design
from tests.games.mechanisms.designs import DESIGN

DATASET = design_dataset(DESIGN)


def test_the_tables_have_intervals() -> None:
    heads, *rows = design_rows(DATASET)
    assert [row[0] for row in rows] == ["designed", "$plain", "fixed"]
    first = dict(zip(heads, rows[0], strict=True))
    assert first["objective"] == "0.800 (0.780 to 0.820)"  # t = 2.776, error = .0158 / sqrt(5)
    assert (first["regret"], first["by"], first["worse off"]) == ("0.020", "double of client 1", "0.200")
    assert dict(zip(heads, rows[2], strict=True))["designed adds"] == "+0.100 (+0.100 to +0.100)"
    assert [row[2:5] for row in number_rows(DATASET)[1:]] == [
        ["rate", "1.5", "1"],
        ["clip", "0.7", "1"],
        ["rate", "1.2", "1"],
    ]


def test_sentences_say_what_is_no_better_and_what_is_not_worth_a_search() -> None:
    assert design_sentences(DATASET) == [
        "Designed at 0.03: the largest mean gain of a lie is 0.020.",
        "Designed at 0.03 is no better than $plain: +0.000 (+0.000 to +0.000).",
        "Designed at 0.03 is better than fixed: +0.100 (+0.100 to +0.100), whose regret is 0.25.",
        "On the federations by which it was chosen, designed at 0.03 had +0.0300 more.",
        "The objective at 0.03 does not depend on these options beyond its noise: clip.",
        "The search took 1,234 runs.",
    ]


def test_a_rule_may_be_worse_or_not_compared() -> None:
    names = ("price_mean", "price_low", "price_high", "worth_mean", "worth_low", "worth_high")
    lost = DATASET.assign({name: DATASET[name] * np.nan for name in names})
    assert "Designed at 0.03 is not compared with fixed: - (- to -), whose regret is 0.25." in design_sentences(lost)
    assert not any("does not depend" in words for words in design_sentences(lost))
    less = DATASET.assign({name: DATASET[name] - 1 for name in names[:3]})
    assert "Designed at 0.03 is worse than $plain: -1.000 (-1.000 to -1.000)." in design_sentences(less)


def test_the_picture_and_the_page(tmp_path: pathlib.Path) -> None:
    figure = front_picture(DATASET, "a $heading")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    legend: Any = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["designed", r"\$plain", "fixed"]
    picture, page = write_design(tmp_path, DATASET, "a heading")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "no better than $plain" in page.read_text()
