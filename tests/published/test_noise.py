"""When numbers are told apart: the rule against intervals, and how often it is wrong where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.published.tables import Sample, verdict_on_excess, verdict_on_number

MEANS = st.integers(-60, 60).map(lambda hundredths: hundredths / 100)
SAMPLES = st.builds(Sample, MEANS, st.sampled_from([0.0, 0.01, 0.1, 0.4]), st.integers(2, 12))


def interval(a: Sample, b: Sample) -> np.ndarray:
    """``a - b`` with two standard errors to both sides, from variances of the means."""
    variance = np.sum([np.square(each.deviation) / each.seeds for each in (a, b)])
    return a.mean - b.mean + 2 * np.sqrt(variance) * np.array([-1, 1])


@given(SAMPLES, SAMPLES, st.sampled_from([0.0, 0.011]))
def test_numbers_against_intervals(printed: Sample, ours: Sample, digit: float) -> None:
    low, high = interval(ours, printed)
    assert verdict_on_number(printed, ours, digit) in {
        "differs"
        if low > digit + slack or high < -digit - slack  # all of the interval is outside
        else "agrees"
        if max(-low, high) <= max(2 * printed.deviation, digit) + slack  # all of it is inside
        else "undecided"
        for slack in (-1e-8, 1e-8)  # either, where a bound is met
    }
    one, two = (each._replace(mean=100 * each.mean, deviation=100 * each.deviation) for each in (printed, ours))
    assert verdict_on_number(one, two, 100 * digit) == verdict_on_number(printed, ours, digit)


@given(SAMPLES, SAMPLES, st.booleans())
def test_differences_against_intervals(a: Sample, b: Sample, strict: bool) -> None:
    low, high = interval(a, b)
    error = (high - low) / 4
    word = verdict_on_excess(a.mean - b.mean, error, strict)
    if error == 0:
        assert word == ("agrees" if low > 0 or (low == 0 and not strict) else "differs")
    elif min(abs(low), abs(high)) > 1e-9:  # else a bound is met up to rounding
        assert word == ("agrees" if low > 0 else "differs" if high < 0 else "undecided")
    turned = {"agrees": "differs", "differs": "agrees", "undecided": "undecided"}
    assert verdict_on_excess(b.mean - a.mean, error, not strict) == turned[word]


@given(SAMPLES, SAMPLES, st.booleans())
def test_without_an_error_nothing_is_decided(a: Sample, b: Sample, printed: bool) -> None:
    unknown = [b._replace(seeds=1), b._replace(seeds=0), b._replace(deviation=math.nan)]
    for each in unknown:
        assert verdict_on_number(*((each, a) if printed else (a, each)), 0.01) == "undecided"
        assert verdict_on_excess(a.mean, each.error) == "undecided"


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_how_often_verdicts_are_wrong(seeds: int) -> None:
    """Equal means differ as often as Student's t passes 2; two deviations apart they hardly ever agree."""
    from scipy.stats import t

    rng = np.random.default_rng(seeds)
    draws = rng.normal(size=(4000, 2, seeds))
    said = {}
    for apart in (0.0, 2.0):
        values = draws + np.array([[0.0], [apart]])
        pairs = zip(values.mean(-1).tolist(), values.std(-1, ddof=1).tolist(), strict=True)
        found = [[Sample(mean[side], std[side], seeds) for side in (0, 1)] for mean, std in pairs]
        said[apart] = [verdict_on_number(one, two) for one, two in found]
    wrong = {apart: said[apart].count(word) / 4000 for apart, word in ((0.0, "differs"), (2.0, "agrees"))}
    expected = 2 * t.sf(2, 2 * seeds - 2)  # .12, .08 and .06
    assert wrong[0.0] == pytest.approx(expected, abs=4 * math.sqrt(expected / 4000))
    assert wrong[2.0] < 0.06


def test_the_two_examples() -> None:
    """IAFL's CGSV is 2.7 standard errors away; MaxFL's FedAvg is within one, of a number that is hardly known."""
    printed, ours = Sample(0.23, 0.14 * math.sqrt(10), 10), Sample(-0.43, 0.20 * math.sqrt(3), 3)
    assert verdict_on_number(printed, ours, 0.01) == "differs"
    assert verdict_on_number(Sample(43.14, 0.23, 3), Sample(49.35, 18.24, 5), 0.01) == "undecided"
