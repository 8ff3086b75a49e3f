"""Verdicts on numbers and on claims of papers, against transcriptions; the claims say what the papers print."""

from __future__ import annotations

import itertools
import math
import pathlib

import numpy as np
import pytest

from fljax.published import verdicts
from fljax.published.tables import Published, Sample, cell_of, plain_label, read, read_folder
from fljax.published.verdicts import Claim, Instead, judge, parse_claims, published_numbers, read_claims
from tests.refusals import refuses


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


def test_a_number_is_judged_with_its_printed_spread():
    """INCFL prints .02 over 3 seeds, so two errors of both are .033 beside three of ours: agreement ends at .007."""
    for mean, word in ((0.557, "agrees"), (0.558, "undecided"), (0.592, "undecided"), (0.593, "differs")):
        assert str(verdicts.judge_number(row(), Sample(mean, 0.02, 3))) == word, mean
    # 0.28 - 0.27 and 0.29 - 0.28 are no exact hundredths in binary.
    for mean, word in ((0.27, "agrees"), (0.29, "agrees"), (0.2951, "differs")):
        assert verdicts.judge_number(row(mean=0.28, std=0.0), Sample(mean, 0.0, 3)).word == word, mean


def test_what_is_missing_is_named():
    ours = Sample(0.55, 0.02, 3)
    none = Sample(math.nan)
    assert str(verdicts.judge_number(row(), none, "no algorithm INCFL")) == "not run (no algorithm INCFL)"
    assert str(verdicts.judge_number(row(mean=math.nan), ours)) == "not run (the paper prints no number)"
    assert str(verdicts.judge_number(row(), ours._replace(seeds=1))) == "undecided (one seed)"
    assert str(verdicts.judge_number(row(), Sample(0.9))) == "undecided (no spread over seeds)"
    for unprinted in (row(std=math.nan), row(paper="IP-FL")):  # IP-FL's is over clients
        assert str(verdicts.judge_number(unprinted, ours)) == "undecided (no spread over seeds is printed)"


def test_errors_apart():
    assert verdicts.errors_apart(row(), Sample(0.5, 0.02, 3)) == pytest.approx(-0.05 / 0.02 / math.sqrt(2 / 3))
    assert verdicts.errors_apart(row(std=0.0), Sample(0.5, 0.0, 3)) == -math.inf
    assert verdicts.errors_apart(row(std=0.0), Sample(0.55, 0.0, 3)) == 0
    assert math.isnan(verdicts.errors_apart(row(std=math.nan), Sample(0.5, 0.0, 3)))
    assert math.isnan(verdicts.errors_apart(row(), Sample(0.5, 0.1, 1)))
    assert math.isnan(verdicts.errors_apart(row(), Sample(math.nan)))


def test_printed_spreads_are_made_deviations_over_seeds():
    assert verdicts.printed_sample(row()) == (0.55, 0.02, 3)
    assert verdicts.printed_sample(row(paper="IAFL")) == (0.55, pytest.approx(0.02 * math.sqrt(10)), 10)
    assert verdicts.printed_sample(row(paper="IAFL", table="Table9")).error == pytest.approx(0.02)
    assert math.isnan(verdicts.printed_sample(row(paper="IP-FL")).error)


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
    rows = [
        row(mean=mean, std=0.0)._replace(algorithm=label)
        for label, mean in zip("abcd", (0.5, 0.3, 0.5, 0.4), strict=True)
    ]
    ours = [Sample(0.5, 0.0, 3), Sample(0.2, 0.0, 3), Sample(math.nan), Sample(0.4, 0.1, 3)]
    (column,) = verdicts.summarise_columns(list(zip(rows, ours, strict=True)))
    assert column == ("INCFL, Table1", ("FMNIST", "p", "unseen"), "IPR", 1, 1, 1, 1, 1.0)
    other = [(each._replace(metric="rho"), ours[0]) for each in rows]
    found = verdicts.summarise_columns([*zip(rows, ours, strict=True), *other])
    assert [each.metric for each in found] == ["IPR", "rho"]


CELLS = pathlib.Path(__file__).parent.parent.parent / "benchmarks" / "results" / "cells"


def claim(form="greater_than", **fields):
    given = {"others": ("FedAvg", "MW-Fed"), **fields}
    place = ("INCFL", "Table1", "FMNIST", "p", "unseen", "IPR")
    return Claim("a", *place, "INCFL is best.", "Table 1", "INCFL", form, **given)


def numbers(dataset="FMNIST", partition="p", error=0.0, seeds=4, **means):
    """Means by label, each with this standard error."""
    place = claim()._replace(dataset=dataset, partition=partition)
    return {place.cell(label): Sample(mean, error * math.sqrt(seeds), seeds) for label, mean in means.items()}


@pytest.mark.parametrize(
    ("by", "own", "word"),
    [
        (None, 0.5, "agrees"),
        (None, 0.4, "differs"),  # equal
        (None, 0.3, "differs"),
        (0.0, 0.4, "agrees"),
        (0.1, 0.5, "agrees"),  # 0.5 - 0.4 is 0.1 up to rounding
        (0.3, 0.7, "agrees"),  # 0.7 - 0.4 is less than 0.3 in binary
        (0.3, 0.699, "differs"),
    ],
)
def test_comparisons(by, own, word):
    ours = numbers(incfl=own, fedavg=0.1, mw_fed=0.4)
    assert judge(claim(by=by), ours).verdict.word == word
    turned = {cell: each._replace(mean=-each.mean) for cell, each in ours.items()}
    assert judge(claim("less_than", by=by), turned).verdict.word == word


@pytest.mark.parametrize(
    ("form", "own", "word"),
    [
        ("at_least", 0.4, "agrees"),
        ("at_least", 0.39, "differs"),
        ("at_most", 0.4, "agrees"),
        ("at_most", 0.41, "differs"),
    ],
)
def test_bounds(form, own, word):
    judged = judge(claim(form, others=(), bound=0.4), numbers(incfl=own))
    assert (judged.verdict.word, judged.numbers) == (word, {"INCFL": (own, 0.0, 4)})


@pytest.mark.parametrize("by", [None, 0.0, 0.1])
def test_claims_need_two_errors_of_both_sides(by):
    """Each mean has an error of .01, so that two of a difference are .0283, and two of a bound .02."""
    start = 0.4 + (by or 0.0)
    for excess, word in ((0.029, "agrees"), (0.028, "undecided"), (-0.028, "undecided"), (-0.029, "differs")):
        ours = numbers(error=0.01, incfl=start + excess, fedavg=0.1, mw_fed=0.4)
        assert str(judge(claim(by=by), ours).verdict) == word, excess
        one = numbers(seeds=1, incfl=start + excess, fedavg=0.1, mw_fed=0.4)
        assert str(judge(claim(by=by), one).verdict) == "undecided (one seed)"
    # One method that is ahead refutes a claim, however doubtful the others are.
    assert judge(claim(by=by), numbers(error=0.01, incfl=0.1, fedavg=0.1, mw_fed=0.4)).verdict.word == "differs"
    for own, word in ((0.421, "agrees"), (0.419, "undecided"), (0.381, "undecided"), (0.379, "differs")):
        bound = claim("at_least", others=(), bound=0.4)
        assert judge(bound, numbers(error=0.01, incfl=own)).verdict.word == word, own


def test_what_is_missing():
    assert str(judge(claim(), {}).verdict) == "not run (no numbers)"
    judged = judge(claim(), numbers(incfl=0.5, fedavg=math.nan, mw_fed=0.1))
    assert str(judged.verdict) == "not run (no number of FedAvg)"
    assert {label: each.mean for label, each in judged.numbers.items()} == {"INCFL": 0.5, "MW-Fed": 0.1}
    assert verdicts.judge_all([claim()], {})[0].verdict.word == "not run"


def test_another_data_set_instead():
    elsewhere = claim(instead=Instead("digits", "q"))
    ours = numbers("digits", "q", incfl=0.5, fedavg=0.1, mw_fed=0.4)
    assert judge(elsewhere, ours).verdict.word == "not run"
    assert judge(elsewhere, ours, instead=True).verdict.word == "agrees"


TEXT = """
[[claims]]
name = "a"
paper = "INCFL"
table = "Table1"
dataset = "FMNIST"
partition = "p"
split = "unseen"
metric = "IPR"
statement = "s"
printed = "Table 1"
algorithm = "INCFL"
greater_than = ["FedAvg"]
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("greater_than = [", "at_most = 1\ngreater_than = ["), "expected one of greater_than, .*at_m"),
        (('greater_than = ["FedAvg"]', ""), "expected one of greater_than, less_than, .* in claim a, got none"),
        (('statement = "s"', ""), "expected statement in claim a, got none"),
        (('statement = "s"', 'statement = "s"\nfoo = 1'), "expected other keys than foo in claim a"),
        (('statement = "s"', 'statement = "s"\nbound = 1'), "expected other keys than bound"),
        (('greater_than = ["FedAvg"]', "at_most = 1\nby = 1"), "expected by with greater_than or less_than"),
        (('statement = "s"', 'statement = "s"\nin_print = "maybe"'), "in_print to be agrees, differs or not run"),
        (('statement = "s"', 'statement = "s"\ninstead = {dataset = "d"}'), "instead with dataset and partition"),
        *(
            (
                ('statement = "s"', "\n".join(('statement = "s"', *two))),
                "expected at most one of best_in, beside and instead in claim a, got (best|bes)",
            )
            for two in itertools.combinations(
                ("best_in = 2", 'beside = ["Table2", "p"]', 'instead = {dataset = "d", partition = "q"}'), 2
            )
        ),
        (("[[claims]]", "[[claims]"), "expected claims in TOML"),
    ],
)
def test_a_file_with_errors(change, message):
    assert parse_claims(TEXT)[0].others == ("FedAvg",)
    refuses(lambda: parse_claims(TEXT.replace(*change)), message)


def test_names_are_unique():
    refuses(lambda: parse_claims(TEXT + TEXT), "expected a name of its own for every claim, got a twice")


@pytest.mark.parametrize("each", read_claims(), ids=lambda each: each.name)
def test_claims_are_about_printed_numbers(each):
    """The paper's own numbers decide every claim; ``in_print`` says how. Figures have none."""
    judged = judge(each, published_numbers())
    assert judged.verdict.word == each.in_print, judged
    figure = each.in_print == "not run"
    assert figure == (each.table.startswith("Fig") and "text" not in each.table)
    assert len(judged.numbers) == (0 if figure or each.best_in else 1 + len(each.others))


def test_others_may_stand_in_another_table():
    """MaxFL with Byzantine clients beside MaxFL without."""
    here, there = claim().cell("INCFL"), claim().cell("INCFL")._replace(table="Table9", partition="q")
    compared = claim(others=("INCFL",), by=-0.05, beside=("Table9", "q"))
    for mean, word in ((0.45, "agrees"), (0.44, "differs")):
        judged = judge(compared, {here: Sample(mean, 0.0, 3), there: Sample(0.5, 0.0, 3)})
        assert (judged.verdict.word, [*judged.numbers]) == (word, ["INCFL", "INCFL in Table9"])
    assert str(judge(compared, {here: Sample(0.45, 0.0, 3)}).verdict) == "not run (no number of INCFL in Table9)"


def test_a_claim_about_how_many_settings():
    """Two of the three data sets of INCFL's Table 1, by numbers that are exact, doubtful or missing."""
    counted = claim(others=("FedAvg",), best_in=2)._replace(metric="IPR")
    settings = [
        (r.dataset, r.partition) for r in read("incfl_table1_unseen") if (r.algorithm, r.metric) == ("INCFL", "IPR")
    ]
    ahead, behind, doubtful = Sample(0.9, 0.0, 3), Sample(0.1, 0.0, 3), Sample(0.9, 9.0, 3)
    for three, word in (
        ((ahead, ahead, behind), "agrees"),
        ((ahead, ahead, None), "agrees"),
        ((ahead, behind, behind), "differs"),
        ((None, behind, behind), "differs"),
        ((ahead, behind, None), "not run"),
        ((ahead, behind, doubtful), "undecided"),
    ):
        ours = {}
        for (dataset, partition), own in zip(settings, three, strict=True):
            place = counted._replace(dataset=dataset, partition=partition).cell
            ours |= {place("FedAvg"): Sample(0.5, 0.0, 3)} | ({place("INCFL"): own} if own else {})
        assert judge(counted, ours).verdict.word == word, three


@pytest.mark.parametrize("seeds", [2, 4, 5])
def test_no_verdict_rests_on_the_seeds_that_are_assumed_of_maxfl(monkeypatch, seeds):
    ours = {each.cell: each.sample for each in read_folder(CELLS)}
    rows = [row for name in verdicts.tables() for row in read(name) if row.paper == "MaxFL"]
    pairs = [(row, ours[cell_of(row)]) for row in rows if cell_of(row) in ours]
    words = [verdicts.judge_number(*pair) for pair in pairs]
    monkeypatch.setitem(verdicts.SEEDS, "MaxFL", seeds)
    assert [verdicts.judge_number(*pair) for pair in pairs] == words


def test_all_papers_have_claims():
    assert {each.paper for each in read_claims()} == {"INCFL", "MaxFL", "IAFL", "IP-FL"}
    assert [each.name for each in verdicts.claims_of("incfl_table4_fair")] == [
        each.name for each in read_claims() if (each.paper, each.table) == ("INCFL", "Table4")
    ]
    refuses(lambda: verdicts.claims_of("nothing"), "expected one of the tables")


def test_whoever_differs_has_a_cause():
    ours = {each.cell: each.sample for each in read_folder(CELLS)}
    for each in read_claims():
        words = [judge(each, ours).verdict.word]
        if each.instead is not None:
            words.append(judge(each, ours, instead=True).verdict.word)
            assert words[1] != "not run", each.name
        assert ("differs" in words) <= bool(each.cause) <= bool({"differs", "undecided"} & {*words}), each.name


def test_a_claim_names_a_published_setting():
    rows = [row for name in verdicts.tables() for row in read(name)]
    known = {(row.paper, row.table, row.dataset, row.partition, row.split, row.metric) for row in rows}
    for each in read_claims():
        if each.in_print != "not run":
            assert each[1:7] in known or each.best_in, each.name
