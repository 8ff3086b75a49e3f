"""Verdicts on numbers: tolerances, deviations and orders, against transcriptions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fljax.published import verdicts
from fljax.published.tables import Published, plain_label, read


def row(mean=0.55, std=0.02, digit=0.01, paper="INCFL", table="Table1"):
    return Published(paper, table, "FMNIST", "p", "unseen", "INCFL", "IPR", mean, std, digit)


def tau_b(a, b):
    """Kendall's tau-b by its definition: (concordant - discordant) / sqrt of the pairs without a tie in a, and in b."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    sign_a = np.array([np.sign(a[i] - a[j]) for i, j in pairs])
    sign_b = np.array([np.sign(b[i] - b[j]) for i, j in pairs])
    return np.sum(sign_a * sign_b) / np.sqrt(np.sum(sign_a != 0) * np.sum(sign_b != 0))


@pytest.mark.parametrize("seed", range(6))
def test_the_rank_correlation_is_tau_b(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, 7).astype(float), rng.integers(0, 5, 7).astype(float)
    assert verdicts.rank_correlation(list(a), list(b)) == pytest.approx(tau_b(a, b))


def test_the_rank_correlation_of_whole_orders_and_of_none():
    assert verdicts.rank_correlation([1.0, 2.0, 3.0], [0.1, 0.2, 0.3]) == 1
    assert verdicts.rank_correlation([1.0, 2.0, 3.0], [0.3, 0.2, 0.1]) == -1
    assert math.isnan(verdicts.rank_correlation([1.0, 2.0, math.nan], [0.1, math.nan, 0.3]))
    assert math.isnan(verdicts.rank_correlation([1.0, 1.0], [0.1, 0.2]))
    assert math.isnan(verdicts.rank_correlation([], []))
    assert verdicts.rank_correlation([1.0, 2.0, 3.0, 9.0], [0.1, 0.2, 0.3, math.nan]) == 1  # those with both


def test_a_number_agrees_within_two_deviations_or_one_digit():
    assert verdicts.tolerance(row()) == pytest.approx(0.04)
    assert verdicts.tolerance(row(std=0.0)) == 0.01
    assert verdicts.tolerance(row(std=math.nan)) == 0.01
    assert verdicts.tolerance(row(std=math.nan, digit=math.nan)) == 0
    for mean, word in ((0.59, "agrees"), (0.51, "agrees"), (0.591, "differs"), (0.509, "differs")):
        assert verdicts.judge_number(row(), mean).word == word, mean
    # 0.28 - 0.27 and 0.29 - 0.28 are no exact hundredths in binary.
    for mean in (0.27, 0.29):
        assert verdicts.judge_number(row(mean=0.28, std=0.0), mean).word == "agrees", mean
    assert verdicts.judge_number(row(mean=0.28, std=0.0), 0.2951).word == "differs"


def test_what_is_missing_is_named():
    assert str(verdicts.judge_number(row(), math.nan, "no algorithm INCFL")) == "not run (no algorithm INCFL)"
    assert str(verdicts.judge_number(row(mean=math.nan), 0.5)) == "not run (the paper prints no number)"
    assert str(verdicts.judge_number(row(), 0.55)) == "agrees"


def test_deviations():
    assert verdicts.deviations(row(), 0.5) == pytest.approx(-2.5)
    assert verdicts.deviations(row(std=0.0), 0.5) == -math.inf
    assert verdicts.deviations(row(std=0.0), 0.55) == 0
    assert math.isnan(verdicts.deviations(row(std=math.nan), 0.5))
    assert math.isnan(verdicts.deviations(row(), math.nan))


def test_a_standard_error_is_made_a_standard_deviation():
    assert verdicts.standard_deviation(row(paper="IAFL")) == pytest.approx(0.02 * math.sqrt(10))
    assert verdicts.standard_deviation(row(paper="IAFL", table="Table9")) == pytest.approx(0.02 * math.sqrt(3))
    assert verdicts.standard_deviation(row(paper="IP-FL")) == 0.02
    assert verdicts.tolerance(row(paper="IAFL")) == pytest.approx(0.04 * math.sqrt(10))


@pytest.mark.parametrize(
    ("table", "metric", "digit"),
    [
        ("incfl_table1_unseen", "IPR", 0.01),
        ("incfl_table1_unseen", "pref_model_test_acc_pct", 0.01),
        ("iafl_table5_acc", "avg_client_acc_pct", 1),
        ("iafl_table6_avg_acc_increase", "avg_acc_increase_pct", 0.1),
        ("ipfl_table4_personalized", "personalized_acc_pct", 0.1),  # 72 is 72.0
        ("ipfl_table10_emnist_4classes", "optout_ratio", 0.01),  # 0 is 0.00
        ("maxfl_table1_flexible", "GM_Appeal", 0.01),  # also where 0.004 is printed
    ],
)
def test_the_last_digit_is_that_of_most_numbers(table, metric, digit):
    assert all(each.digit == pytest.approx(digit) for each in read(table) if each.metric == metric)


def test_labels_without_case_and_punctuation():
    assert plain_label("q-FFL(q=1)") == plain_label("qffl_q1") == "qfflq1"


def test_columns_are_summarised():
    rows = [row(mean=0.5, std=0.0)._replace(algorithm=label) for label in "abc"]
    rows[1] = rows[1]._replace(mean=0.3)
    (column,) = verdicts.summarise_columns(list(zip(rows, (0.5, 0.2, math.nan), strict=True)))
    assert column == ("INCFL, Table1", ("FMNIST", "p", "unseen"), "IPR", 1, 1, 1, 1.0)
    other = [(each._replace(metric="rho"), 0.0) for each in rows]
    assert [each.metric for each in verdicts.summarise_columns([*zip(rows, (0, 0, 0), strict=True), *other])] == [
        "IPR",
        "rho",
    ]
