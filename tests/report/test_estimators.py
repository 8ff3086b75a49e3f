"""Estimators beside retraining as text."""

from __future__ import annotations

import numpy as np

from fljax import games
from fljax.report.estimators import HEADINGS, estimator_rows, estimator_sentences, estimator_table
from tests.games.known import THREE_SEEDS, comparison_of, table_of


def test_the_best_order_comes_first_and_unknown_numbers_are_dashes() -> None:
    """Of the truth tau is 1; constant values have no order, and values that add up to 0 have no shares."""
    table = table_of(THREE_SEEDS)
    compared = comparison_of(table, constant=np.zeros((3, 3)), truth=games.shapley(table), wrong=-games.shapley(table))
    head, *rows = estimator_rows(compared)
    assert head == ["estimator", *HEADINGS.values()]
    assert [row[0] for row in rows] == ["truth", "wrong", "constant"]
    assert (rows[0][1:6], rows[1][1:4]) == (["1.00", "1.00", "0.00", "1.00", "1.00"], ["-1.00", "-1.00", "-"])
    assert (rows[2][1:4], rows[0][7:]) == (["-", "-", "-"], ["3 of 3", "7", "8", "0", "0.25"])
    assert estimator_sentences(compared)[1].startswith("stability: tau-b between seeds; of the Shapley values it is ")


def test_means_are_those_of_the_seeds_that_are_known() -> None:
    table = table_of(THREE_SEEDS)
    values = games.shapley(table)
    values[1] = 0.0
    assert estimator_rows(comparison_of(table, x=values))[1][1:4] == ["1.00", "1.00", "0.00"]


def test_estimators_of_some_clients_come_last() -> None:
    table = table_of(THREE_SEEDS)
    truth = games.shapley(table)
    compared = comparison_of(table, few=np.where([True, False, True], truth, np.nan), wrong=-truth)
    compared["converged"][0, 1] = False
    rows = estimator_rows(compared)[1:]
    assert [(row[0], row[1], row[7]) for row in rows] == [("wrong", "-1.00", "3 of 3"), ("few", "1.00", "2 of 3")]
    assert estimator_sentences(compared)[2:] == [
        "Last, and of some clients alone, by which they are not comparable: few.",
        "few has not settled in 1 of 3 seeds: more sweeps may change it.",
    ]


def test_a_line_for_each_algorithm_estimator_and_seed() -> None:
    table = table_of(THREE_SEEDS)
    compared = comparison_of(table, x=games.shapley(table), y=-games.shapley(table))
    head, *lines = estimator_table({"a": compared, "b": compared}).decode().splitlines()
    assert head.split(",") == ["algorithm", "estimator", "seed", *HEADINGS, "converged"]
    assert len(lines) == 2 * 2 * 3
    assert [line.split(",")[:4] for line in lines[2:4]] == [["a", "x", "2", "1.0"], ["a", "y", "0", "-1.0"]]
