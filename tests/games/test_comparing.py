"""Estimators beside the truth of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax import contributions, games
from fljax.contributions import ESTIMATORS
from fljax.games.comparing import _dataset, _names
from tests.contributions.games import THREE
from tests.games.known import THREE_SEEDS, table_of
from tests.games.test_retraining import few, plan


def test_estimators_that_ask_for_values_get_those_of_the_table() -> None:
    """With all trainings they are the truth, or their own limit."""
    table, ask = table_of(THREE_SEEDS), ["owen_shapley", "msr_banzhaf", "ipss"]
    options = {"owen_shapley": {"samples": None}, "msr_banzhaf": {"samples": None}}
    found = games.compare_estimators(plan(), few(3), table, rounds=2, estimators=ask, options=options, budget=8)
    np.testing.assert_allclose(found["worth"].sel(estimator="owen_shapley"), games.shapley(table), atol=1e-12)
    np.testing.assert_allclose(found["worth"].sel(estimator="msr_banzhaf"), games.banzhaf(table), atol=1e-12)
    assert (found["kendall"].sel(estimator="owen_shapley") == 1).all()
    assert found["trainings"].sel(estimator="owen_shapley") == 7
    np.testing.assert_array_equal(found["truth"], games.shapley(table))
    assert float(found["ceiling"]) == contributions.stability(games.shapley(table))


def test_the_federation_and_the_rounds_must_fit() -> None:
    with pytest.raises(ValueError, match="the federation of the table, of 3 clients, got one of 4"):
        games.compare_estimators(plan(), few(4), table_of(THREE), rounds=1)
    with pytest.raises(ValueError, match="at least one round for a record of rounds, got 0"):
        games.compare_estimators(plan(), few(3), table_of(THREE), rounds=0, estimators=["cosine"])


def test_agreement_with_the_truth_of_the_same_seed() -> None:
    table = table_of(THREE_SEEDS)
    truth = games.shapley(table)
    rows = [contributions.Estimate(row, cost=contributions.CachedGame.of_table(THREE).cost) for row in truth[:, ::-1]]
    found = _dataset({"x": rows}, {"x": 0.5}, truth, table)
    expected = contributions.agreement(truth[:, ::-1], truth)
    for name in ("kendall", "spearman", "share_error", "best_found", "worst_found", "compared"):
        np.testing.assert_array_equal(found[name].sel(estimator="x"), getattr(expected, name))
    assert float(found["seconds"].sel(estimator="x")) == 0.5


def test_which_estimators() -> None:
    usual = _names(None, {}, True)
    assert set(ESTIMATORS) - set(usual) == {"shapfed", "fedce"}
    assert "cffl_reputation" not in _names(None, {}, False)
    assert "shapfed" in _names(None, {"shapfed": {"head": abs}}, True)
    with pytest.raises(ValueError, match="expected the option head for the estimator 'shapfed', got none"):
        _names(["shapfed"], {}, True)
    with pytest.raises(ValueError, match="expected one of the estimators"):
        _names(["shaply"], {}, True)


def test_the_servers_rows_must_exist() -> None:
    with pytest.raises(ValueError, match=r"rows of the server, got 'valid'; valid names are validation, test"):
        games.compare_estimators(plan(), few(3), table_of(THREE), rounds=1, rows="valid")


def head(model: Any) -> Any:
    """The last layer by class."""
    return model.weight.T


@pytest.mark.thorough
def test_every_estimator_beside_the_retrained_truth() -> None:
    federation = few(3)
    table = games.coalitions(plan(), federation, rounds=3, seeds=2)
    found = games.compare_estimators(plan(), federation, table, rounds=3, options={"shapfed": {"head": head}})
    print(found.to_dataframe().to_string())
    assert set(ESTIMATORS) - set(found["estimator"].values.tolist()) == {"fedce"}
    known = np.isfinite(found["worth"].values)
    np.testing.assert_array_equal(found["compared"], known.sum(axis=-1))
    on_host = np.array([ESTIMATORS[name].on_host for name in found["estimator"].values])
    assert known[~on_host].all()
    assert known.any(axis=-1).all()
    # MR and FedSV are the same for full cohorts, and add up to what the run has gained.
    rounds = found["worth"].sel(estimator=["multi_round", "fed_shapley"]).values
    np.testing.assert_allclose(rounds[0], rounds[1], atol=1e-6)
    assert (found["gradients"].sel(estimator="digfl") == 3).all()
    assert (found["trainings"].sel(estimator="one_round") == 0).all()
