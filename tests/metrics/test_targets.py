"""Rounds to a target, by hand."""

from __future__ import annotations

import numpy as np

from fljax.metrics import rounds_to_target

NAN = np.nan
ROUNDS = np.array([0, 5, 10, 12])


def test_the_first_evaluation_that_reaches_the_target():
    values = np.array([[0.1, 0.5, 0.4, 0.6], [0.5, 0.6, 0.7, 0.8], [0.1, NAN, 0.2, 0.49], [NAN] * 4])
    np.testing.assert_array_equal(rounds_to_target(values, ROUNDS, 0.5), [5, 0, NAN, NAN])
    np.testing.assert_array_equal(rounds_to_target(values, ROUNDS, 0.2, lower=True), [0, NAN, 0, NAN])
    np.testing.assert_array_equal(rounds_to_target(values[None], ROUNDS, 0.6), [[12, 5, NAN, NAN]])


def test_without_evaluations_nothing_is_reached():
    np.testing.assert_array_equal(rounds_to_target(np.zeros((2, 0)), np.zeros(0), 0.0), [NAN, NAN])
