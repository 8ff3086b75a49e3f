"""Estimators beside the truth of a table."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms, contributions, games
from fljax.contributions import ESTIMATORS
from fljax.contributions.solutions import members_of
from fljax.engine import Plan
from fljax.engine.rounds.states import by_id
from fljax.games.comparing import EstimatorInputs, _by_values, _dataset, _Judge
from fljax.games.values import algorithm_of
from fljax.training import Local
from tests.contributions.games import THREE
from tests.games.known import THREE_SEEDS, table_of
from tests.games.test_retraining import LOCAL, few, plan
from tests.toys.task import Linear, logistic_regression


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


def test_deviations_have_the_total_of_the_truth() -> None:
    table = table_of(THREE_SEEDS)
    truth = games.shapley(table)
    found = _dataset({"x": [contributions.Estimate(3 * row) for row in truth + 0.1]}, {"x": 0.0}, truth, table)
    deviation = found["deviation"].sel(estimator="x")
    np.testing.assert_allclose(deviation.sum("client"), 0, atol=1e-12)
    expected = (truth + 0.1) * (truth.sum(axis=1) / (truth + 0.1).sum(axis=1))[:, None] - truth
    np.testing.assert_allclose(deviation, expected, atol=1e-12)


def of_worths(*rows: Any) -> games.CoalitionTable:
    """A table of additive games: what a client is worth is its number."""
    return table_of(np.array(rows, float) @ members_of(len(rows[0])).T)


def test_algorithms_agree_seed_by_seed() -> None:
    """Two seeds. The second algorithm has the order of the first one once, and once one pair of three reversed."""
    tables = {"a": of_worths([1, 2, 3], [3, 2, 1]), "b": of_worths([2, 4, 9], [6, 1, 2])}
    tables["c"] = table_of(THREE_SEEDS[:2])
    found = games.compare_algorithms(tables)
    pair = found.sel(algorithm="a", other="b")
    np.testing.assert_allclose(pair["kendall"], [1, 1 / 3])
    np.testing.assert_allclose(pair["spearman"], [1, 0.5])
    np.testing.assert_array_equal(pair["best_agrees"], [1, 1])
    # Shares: 1/6 1/3 1/2 and 2/15 4/15 3/5; 1/2 1/3 1/6 and 2/3 1/9 2/9.
    np.testing.assert_allclose(pair["moved"], [1 / 10, 2 / 9])
    np.testing.assert_allclose(found["moved_between_seeds"].sel(algorithm=["a", "b"]), [1 / 3, 8 / 15])
    np.testing.assert_array_equal(found["kendall"], found["kendall"].transpose("other", "algorithm", "seed"))
    np.testing.assert_allclose(found["stability"].sel(algorithm=["a", "b"]), [-1, -1 / 3])
    taus = [found["kendall"].sel(algorithm=x, other=y) for x, y in (("a", "b"), ("a", "c"), ("b", "c"))]
    np.testing.assert_allclose(found["between"], np.mean(taus, axis=0))
    np.testing.assert_array_equal(found["worth"].sel(algorithm="c"), games.shapley(tables["c"]))


def asked(plan: Any, federation: Any, metric: str = "average_accuracy", **how: Any) -> EstimatorInputs:
    return EstimatorInputs(plan, federation, metric, budget=how.pop("budget", 7), **how)


def test_which_estimators() -> None:
    assert asked(plan(), few(3)).split(None) == (list(ESTIMATORS), "")
    valid = few(3).clients.valid
    empty = few(3)._replace(clients=few(3).clients._replace(valid=valid._replace(size=0 * valid.size)))
    names, words = asked(plan(), empty, "average_loss").split(None)
    assert set(ESTIMATORS) - set(names) == {"fedce", "cffl_reputation"}
    assert words.count("expected") == 2
    assert "fedce" in asked(plan(), empty, options={"fedce": {"client_metric": abs}}).split(None)[0]
    with pytest.raises(ValueError, match=r"or the option client_metric, got none \(for the estimator 'fedce'\)"):
        asked(plan(), empty).split(["fedce"])
    with pytest.raises(ValueError, match="expected one of the estimators"):
        asked(plan(), empty).split(["shaply"])


def test_what_will_be_refused_is_refused_before_retraining() -> None:
    clustered = Plan(
        algorithms.ifca, {"task": logistic_regression(), "local": Local(*LOCAL), "clients_per_round": 2, "clusters": 2}
    )
    asked(clustered, few(3)).split(["ipss"])  # asks for values alone
    with pytest.raises(ValueError, match="expected an algorithm whose server has one model, got a server without one"):
        asked(clustered, few(3)).split(["cosine"])
    with pytest.raises(ValueError, match="expected a table of accuracies, got none"):
        asked(plan(), few(3), "average_loss").split(["cffl_reputation"])
    names, words = asked(clustered, few(3)).split(None)
    assert words.endswith("(expected an algorithm whose server has one model, got a server without one)")
    assert words.count("(") == 1
    assert names == [name for name, entry in ESTIMATORS.items() if entry.on_host]


OPTIONS = {"owen_shapley": [{}, {"samples": None}, {"nodes": 1}], "msr_banzhaf": [{}, {"samples": None}]}
ON_HOST = [name for name, entry in ESTIMATORS.items() if entry.on_host]


@pytest.mark.parametrize("name", ON_HOST)
def test_the_least_budget_is_enough_for_every_key(name: str) -> None:
    for clients, options in itertools.product(range(1, 9), OPTIONS.get(name, [{}])):
        values = np.random.default_rng(clients).normal(size=2**clients)
        least = ESTIMATORS[name].least(clients, **options)  # pyright: ignore[reportOptionalCall]
        worths = [_by_values(name, values, least, seed, options).worth for seed in range(5)]
        assert np.isfinite(worths).any(axis=1).all() or name == "msr_banzhaf"  # one sample says nothing


@pytest.mark.parametrize("budget", [0, 3, 7, None])
def test_who_has_no_budget_is_left_out_by_name(budget: int | None) -> None:
    question = asked(plan(), few(4), budget=budget)
    names, words = question.split(None)
    for name in ON_HOST:
        least = ESTIMATORS[name].least(4)  # pyright: ignore[reportOptionalCall]
        assert (name in names) == (least <= question.trainings)
        if name not in names:
            assert f"expected a budget of at least {least} trainings, got {question.trainings}" in words
            with pytest.raises(ValueError, match=rf"got {question.trainings} \(for the estimator '{name}'\)"):
                question.split([name])


def test_the_servers_rows_must_exist() -> None:
    with pytest.raises(ValueError, match=r"rows of the server, got 'valid'; valid names are validation, test"):
        games.compare_estimators(plan(), few(3), table_of(THREE), rounds=1, rows="valid")


def test_models_are_judged_by_the_validation_rows_of_clients() -> None:
    federation = by_id(few(3))
    random, ids = np.random.default_rng(0), np.array([2, 0, 1, 2])
    model = Linear(*(jnp.asarray(random.normal(size=(4, *shape)), jnp.float32) for shape in ((4, 3), (3,))))
    judge = _Judge(algorithm_of(plan()), federation, "validation", True)
    found = jax.jit(judge.of_clients)(model, jnp.asarray(ids), federation)
    for row, id in enumerate(ids):
        count = int(federation.clients.valid.size[id])
        rows = np.asarray(federation.clients.valid.index)[id, :count]
        x, y = (np.asarray(leaf)[rows] for leaf in (federation.examples.x, federation.examples.y))
        logits = x @ np.asarray(model.weight)[row] + np.asarray(model.bias)[row]
        np.testing.assert_allclose(found[row], np.mean(logits.argmax(axis=1) == y), rtol=1e-6)


@pytest.mark.thorough
def test_every_estimator_beside_the_retrained_truth() -> None:
    federation = few(3)
    table = games.coalitions(plan(), federation, rounds=3, seeds=2)
    found = games.compare_estimators(plan(), federation, table, rounds=3, budget=7)
    assert found["estimator"].values.tolist() == list(ESTIMATORS)
    known = np.isfinite(found["worth"].values)
    np.testing.assert_array_equal(found["compared"], known.sum(axis=-1))
    on_host = np.array([ESTIMATORS[name].on_host for name in found["estimator"].values])
    assert known[~on_host].all()
    assert known.any(axis=-1).all()
    # MR and FedSV are the same for full cohorts, and add up to what the run has gained.
    rounds = found["worth"].sel(estimator=["multi_round", "fed_shapley"]).values
    np.testing.assert_allclose(rounds[0], rounds[1], atol=1e-6)
    np.testing.assert_allclose(rounds[0].sum(axis=1), found["gain"], atol=1e-6)
    assert (found["gradients"].sel(estimator="digfl") == 3).all()
    assert (found["trainings"].sel(estimator="one_round") == 0).all()
