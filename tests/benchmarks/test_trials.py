"""The settings of ``benchmarks/papers/trials.toml``, and their committed numbers."""

from __future__ import annotations

import math
import pathlib

import pytest

from benchmarks.papers import trials
from fljax.metrics import registry
from fljax.published import tables
from fljax.published.tables import plain_label

TRIALS = {trial.name: trial for trial in trials.read_trials()}


def test_names_are_those_of_one_trial() -> None:
    assert len(TRIALS) == len(trials.read_trials())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRIALS)
def test_trials_load(name: str) -> None:
    trial = TRIALS[name]
    config = trials.config_of(trial)
    assert trial.metrics
    assert set(trial.metrics) <= set(registry.METRICS)
    if trial.tables:
        assert config.published is not None
        rows = tables.select(trial.tables, config.published.dataset, config.published.partition)
        labels = {plain_label(entry.label) for entry in config.algorithms}
        assert {plain_label(row.algorithm) for row in rows} <= labels


@pytest.mark.in_turn
def test_committed_numbers_are_of_trials() -> None:
    numbers = trials.read_numbers()
    configs = {name: trials.config_of(TRIALS[name]) for name in {each.trial for each in numbers}}
    assert numbers
    assert len({(each.trial, each.algorithm, each.metric) for each in numbers}) == len(numbers)
    for each in numbers:
        trial = TRIALS[each.trial]
        config = configs[each.trial]
        assert each.algorithm in [entry.label for entry in config.algorithms]
        assert each.metric.removeprefix("unseen_") in trial.metrics
        assert each.rounds == config.rounds
        assert 1 <= each.seeds <= len(config.seeds)
        assert math.isfinite(each.mean)


def test_numbers_are_replaced_by_trial_and_shown_beside_printed_ones(tmp_path: pathlib.Path) -> None:
    trial = next(trial for trial in TRIALS.values() if trial.tables == ("incfl_table1_unseen",))
    ipr, accuracy = "unseen_incentivised_participation_rate", "unseen_preferred_model_accuracy"

    def made(name: str, mean: float, metric: str = ipr) -> trials.Number:
        return trials.Number(name, "incfl", metric, mean, 0.25, 5, 200, "2026-11-25")

    path = tmp_path / "trials.csv"
    trials.write_numbers([made(trial.name, 0.25), made("of an older file", 0.75)], path)
    trials.write_numbers([made(trial.name, 0.5), made(trial.name, 0.9875, accuracy)], path)
    found = trials.read_numbers(path)
    assert [(each.trial, each.mean) for each in found] == [
        (trial.name, 0.5),
        (trial.name, 0.9875),
        ("of an older file", 0.75),
    ]
    compared = trials.beside(trial, found[:2])
    assert [(row.algorithm, row.mean, each.mean, each.std) for row, each in compared] == [
        ("INCFL", 0.55, 0.5, 0.25),
        ("INCFL", 98.83, 98.75, 25),
    ]
    rows = list(trials.rows_of(trial, found[:2]))
    assert [(row[3], row[-1]) for row in rows] == [("INCFL", "undecided")] * 2
