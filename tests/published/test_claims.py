"""Claims of papers: their forms, and that the file says what the papers print."""

from __future__ import annotations

import math
import pathlib

import pytest

from fljax.published import claims
from fljax.published.claims import Claim, Instead, judge, parse_claims, published_numbers, read_claims
from fljax.published.tables import read, read_folder

CELLS = pathlib.Path(__file__).parent.parent.parent / "benchmarks" / "results" / "cells"


def claim(form="greater_than", **fields):
    given = {"others": ("FedAvg", "MW-Fed"), **fields}
    place = ("INCFL", "Table1", "FMNIST", "p", "unseen", "IPR")
    return Claim("a", *place, "INCFL is best.", "Table 1", "INCFL", form, **given)


def numbers(dataset="FMNIST", partition="p", **means):
    place = claim()._replace(dataset=dataset, partition=partition)
    return {place.cell(label): mean for label, mean in means.items()}


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
    turned = {cell: -mean for cell, mean in ours.items()}
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
    assert (judged.verdict.word, judged.numbers) == (word, {"INCFL": own})


def test_what_is_missing():
    assert str(judge(claim(), {}).verdict) == "not run (no numbers)"
    judged = judge(claim(), numbers(incfl=0.5, fedavg=math.nan, mw_fed=0.1))
    assert str(judged.verdict) == "not run (no number of FedAvg)"
    assert judged.numbers == {"INCFL": 0.5, "MW-Fed": 0.1}
    assert claims.judge_all([claim()], {})[0].verdict.word == "not run"


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
        (
            ("greater_than = [", "at_most = 1\ngreater_than = ["),
            "expected one of greater_than, .*, got greater_than, at_m",
        ),
        (('greater_than = ["FedAvg"]', ""), "expected one of greater_than, less_than, .* in claim a, got none"),
        (('statement = "s"', ""), "expected statement in claim a, got none"),
        (('statement = "s"', 'statement = "s"\nfoo = 1'), "expected other keys than foo in claim a"),
        (('statement = "s"', 'statement = "s"\nbound = 1'), "expected other keys than bound"),
        (('greater_than = ["FedAvg"]', "at_most = 1\nby = 1"), "expected by with greater_than or less_than"),
        (('statement = "s"', 'statement = "s"\nin_print = "maybe"'), "expected in_print to be agrees or differs"),
        (
            ('statement = "s"', 'statement = "s"\ninstead = {dataset = "d"}'),
            "expected instead with dataset and partition",
        ),
        (("[[claims]]", "[[claims]"), "expected claims in TOML"),
    ],
)
def test_a_file_with_errors(change, message):
    assert parse_claims(TEXT)[0].others == ("FedAvg",)
    with pytest.raises(ValueError, match=message):
        parse_claims(TEXT.replace(*change))


def test_names_are_unique():
    with pytest.raises(ValueError, match="expected a name of its own for every claim, got a twice"):
        parse_claims(TEXT + TEXT)


@pytest.mark.parametrize("each", read_claims(), ids=lambda each: each.name)
def test_claims_are_about_printed_numbers(each):
    """The paper's own numbers decide every claim; ``in_print`` says how."""
    judged = judge(each, published_numbers())
    assert judged.verdict.word == each.in_print, judged
    assert len(judged.numbers) == 1 + len(each.others)


def test_all_papers_have_claims():
    assert {each.paper for each in read_claims()} == {"INCFL", "MaxFL", "IAFL", "IP-FL"}
    assert [each.name for each in claims.claims_of("incfl_table4_fair")] == [
        each.name for each in read_claims() if (each.paper, each.table) == ("INCFL", "Table4")
    ]
    with pytest.raises(ValueError, match="expected one of the tables"):
        claims.claims_of("nothing")


def test_whoever_differs_has_a_cause():
    ours = {each.cell: each.mean for each in read_folder(CELLS)}
    for each in read_claims():
        words = [judge(each, ours).verdict.word]
        if each.instead is not None:
            words.append(judge(each, ours, instead=True).verdict.word)
            assert words[1] != "not run", each.name
        assert ("differs" in words) == bool(each.cause), each.name


def test_a_claim_names_a_published_setting():
    rows = [row for name in claims.tables() for row in read(name)]
    known = {(row.paper, row.table, row.dataset, row.partition, row.split, row.metric) for row in rows}
    for each in read_claims():
        assert each[1:7] in known, each.name
