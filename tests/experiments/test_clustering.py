"""Where clusters start: F1 scores, K-means on real rounds, and the way through a config."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score

from fljax import Local, Plan, config, data, simulate
from fljax.algorithms import ipfl
from fljax.experiments import run
from fljax.experiments.inputs import clustering
from fljax.models import MODELS, standardise

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]


@pytest.fixture(scope="module")
def world():
    digits = data.load(data.SOURCES["digits"])
    options = {"pattern": "10:90", "clients": 12, "held_fraction": 0.1, "valid_fraction": 0.2}
    federation = data.stack([data.federate(digits, "mixture", seed=seed, **options) for seed in (0, 1)])
    task = MODELS["logistic_regression"](digits.x.shape[1:], 10, prepare=standardise(digits.mean, digits.std))
    return federation, task


def test_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    y, predicted = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    real = np.arange(50) < 37
    found = clustering.f1_scores(jnp.asarray(predicted), jnp.asarray(y), jnp.asarray(real), 6)
    score: Any = f1_score
    expected = score(y[:37], predicted[:37], labels=range(6), average=None, zero_division=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not found[4:].any()


def test_kmeans_finds_the_two_halves(world):
    federation, task = world
    found = clustering.by_f1(task, Local(0.1, 16, epochs=2), federation, clusters=2, seeds=2, rounds=3)
    halves = np.arange(12) < 6
    assert found.member.shape == (2, 12)
    for member in np.asarray(found.member):
        assert (member == halves).all() or (member != halves).all()
    assert all(leaf.shape[:2] == (2, 2) for leaf in jax.tree.leaves(found.models))
    plan = Plan(
        lambda task, local, clustering: ipfl(task, local, clients_per_cluster=3, clustering=clustering),
        {"task": task, "local": Local(0.1, 16, epochs=1)},
        {"clustering": found},
    )
    result = simulate(plan, federation, rounds=3, seeds=(0, 1))
    # In round 0 every cluster trains with members of its own.
    trained = result.records["membership"].sel(round=0).transpose("seed", "client", "cluster").values
    own = np.asarray(found.member)[:, :, None] == np.arange(2)
    assert trained.sum() == 2 * 2 * 3
    assert not (trained & ~own).any()


def test_models_are_means_of_the_members_last_models(world):
    federation, task = world
    local = Local(0.1, 16, epochs=1)
    found = clustering.by_f1(task, local, federation, clusters=3, seeds=(0, 1), rounds=1, features=99)
    kept = simulate(
        clustering._remembering(task, local, jnp.ones((1, 12), bool)), federation, rounds=1, seeds=(0, 1)
    ).state.server
    for seed in range(2):
        for c in range(3):
            members = np.asarray(found.member)[seed] == c
            assert members.any()
            for leaf, each in zip(jax.tree.leaves(found.models), jax.tree.leaves(kept.models), strict=True):
                np.testing.assert_allclose(leaf[seed, c], np.asarray(each)[seed, members].mean(axis=0), atol=1e-6)


def test_late_clients_join_random_clusters(world):
    """They are neither in K-means nor in a cluster's model; their rows could be anything."""
    federation, task = world
    late, in_time = [0, 4, 7], np.setdiff1d(np.arange(12), [0, 4, 7])
    local = Local(0.1, 16, epochs=2)
    found = clustering.by_f1(task, local, federation, clusters=2, seeds=2, rounds=3, late=late)
    train, rng = federation.clients.train, np.random.default_rng(0)
    start = np.asarray(train.index.start).copy()
    start[:, late] = rng.permutation(start[:, late].ravel()).reshape(2, 3)
    moved = train._replace(index=dataclasses.replace(train.index, start=jnp.asarray(start)))
    other = federation._replace(clients=federation.clients._replace(train=moved))
    again = clustering.by_f1(task, local, other, clusters=2, seeds=2, rounds=3, late=late)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    halves = np.arange(12) < 6
    for member in np.asarray(found.member):
        assert len({tuple(member[in_time] == half[in_time]) for half in (halves, ~halves)}) == 2
        assert (member[in_time] == halves[in_time]).all() or (member[in_time] != halves[in_time]).all()
    everybody = np.concatenate([_late_members(federation, task, seed) for seed in range(6)])
    assert 0 < everybody.mean() < 1


def _late_members(federation, task, seed):
    """The random clusters of clients 0, 4 and 7."""
    answered = ~np.isin(np.arange(12), [0, 4, 7])
    scores = np.random.default_rng(seed).random((12, 10))
    return clustering._members(scores, answered, 2, 10, seed)[~answered]


def test_a_share_of_late_clients_is_drawn_for_each_seed(world):
    federation, _ = world
    found = clustering.late_clients(federation, 0.25, (0, 1))
    np.testing.assert_array_equal(found.sum(axis=1), [3, 3])
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(clustering.late_clients(federation, 0.25, (0, 1)), found)
    np.testing.assert_array_equal(np.flatnonzero(clustering.late_clients(federation, [5, 2], 2)[1]), [2, 5])
    assert not clustering.late_clients(federation, 0.0, 2).any()
    assert not clustering.late_clients(federation, [], 2).any()


@pytest.mark.unchecked
@pytest.mark.parametrize("late", [1.0, -0.1, [12], [-1], [3, 3], [0.5], [True], "all", None, [[1]]])
def test_who_is_late_is_checked(world, late):
    federation, _ = world
    with pytest.raises(ValueError, match=r"^expected late to be a share .*, got "):
        clustering.late_clients(federation, late, 2)


def test_a_cluster_that_kmeans_leaves_empty_starts_from_everybodys_mean(world):
    """Models that never moved have the same scores."""
    federation, task = world
    with pytest.warns(UserWarning, match="Number of distinct clusters"):
        found = clustering.by_f1(
            task, Local(1e-12, 16, steps=1), federation, clusters=3, seeds=(0, 1), rounds=1, features=2
        )
    for seed in range(2):
        start = task.init(jax.random.key(0))
        members = np.asarray(found.member)[seed]
        assert len(set(members.tolist())) < 3
        for leaf, like in zip(jax.tree.leaves(found.models), jax.tree.leaves(start), strict=True):
            assert leaf.shape[2:] == like.shape
            np.testing.assert_allclose(leaf[seed, 1], leaf[seed, 0], atol=1e-6)
            np.testing.assert_allclose(leaf[seed, 2], leaf[seed, 0], atol=1e-6)
        assert np.abs(found.models["head"]["kernel"][seed]).max() > 0.01


def test_bad_arguments_are_named(world):
    federation, task = world
    local = Local(0.1, 16, epochs=1)
    with pytest.raises(
        ValueError, match="expected clustering on rows that the server has, got 'mine'; valid names are"
    ):
        clustering.by_f1(task, local, federation, clusters=2, seeds=(0, 1), rows="mine")
    with pytest.raises(ValueError, match="expected a client with data for each of 13 clusters, got 12 of them"):
        clustering.by_f1(task, local, federation, clusters=13, seeds=(0, 1), rounds=1)
    with pytest.raises(ValueError, match="for each of 2 clusters, got 1 of them in time and 11 late ones"):
        clustering.by_f1(task, local, federation, clusters=2, seeds=(0, 1), late=list(range(11)))
    with pytest.raises(ValueError, match="expected one federation, or one for each of 3 seeds, got 2"):
        clustering.by_f1(task, local, federation, clusters=2, seeds=3)
    with pytest.raises(ValueError, match="expected a task of classes for clustering by F1"):
        clustering.by_f1(task._replace(classes=None), local, federation, clusters=2, seeds=(0, 1))


def raw_config() -> Any:
    return {
        "name": "clusters",
        "seeds": 2,
        "rounds": 4,
        "evaluate_every": 2,
        "data": {
            "dataset": "digits",
            "partition": "mixture",
            "clients": 8,
            "held_fraction": 0.1,
            "valid_fraction": 0.2,
            "partition_options": {"holdout": 0.1},
        },
        "model": {"name": "logistic_regression"},
        "local": {"learning_rate": 0.1, "batch_size": 16, "epochs": 1},
        "standalone": {"steps": 5},
        "algorithms": [
            {"name": "fedavg"},
            {"name": "ipfl", "clients_per_cluster": 2, "clustering": {"name": "f1", "rounds": 2, "late": 0.25}},
            {
                "name": "ipfl",
                "label": "leaving",
                "clients_per_cluster": 2,
                "scenarios": [{"name": "opting_out", "every": 2}],
            },
        ],
    }


def test_through_a_config():
    raw = raw_config()
    outcome = run.run(config.parse(raw))
    accuracy = outcome.metrics["cluster_accuracy"]
    assert accuracy.sel(algorithm="ipfl").dims == ("seed", "evaluated_round", "cluster", "distribution")
    assert np.isfinite(accuracy.sel(algorithm="ipfl")).all()
    assert np.isnan(accuracy.sel(algorithm="fedavg")).all()
    gain = outcome.records["gain"].sel(algorithm="leaving", round=2).transpose("seed", "client").values
    # What a client compares with is FedAvg's accuracy on its validation rows after as many rounds.
    other = outcome.metrics["valid_accuracy"].sel(algorithm="fedavg", evaluated_round=2)
    baseline = other.transpose("seed", "client").values
    own = outcome.metrics["valid_accuracy"].sel(algorithm="leaving", evaluated_round=2).transpose("seed", "client")
    np.testing.assert_allclose(gain, own.values - baseline, atol=1e-6)
    tokens = outcome.records["tokens"].sel(algorithm="ipfl").sum("client") + outcome.records["pool"].sel(
        algorithm="ipfl"
    ).sum("cluster")
    assert (tokens == 500 * 8).all()
    first = {**raw, "algorithms": [raw["algorithms"][2], raw["algorithms"][0]]}
    with pytest.raises(
        ValueError, match="after the first one, which is the baseline, and not in a sweep, got one on leav"
    ):
        run.run(config.parse(first))


def refused(change: Any) -> str:
    raw = raw_config()
    change(raw)
    with pytest.raises(ValueError, match="expected") as caught:
        run.run(config.parse(raw))
    return str(caught.value)


def test_the_baseline_is_of_the_rows_on_which_clients_judge():
    """Without validation rows FedAvg has no accuracy on them, and test rows may not decide unless one says so."""
    none = lambda raw: raw["data"].pop("valid_fraction")  # noqa: E731
    assert "expected the baseline of leaving on rows that the first algorithm is judged on, got valid; valid names" in (
        refused(none)
    )
    train = lambda raw: raw["algorithms"][2]["scenarios"][0].update(split="train")  # noqa: E731
    assert "got train; valid names are test, valid" in refused(train)
    raw = raw_config()
    raw["algorithms"] = [raw["algorithms"][0], raw["algorithms"][2]]
    raw["algorithms"][1]["scenarios"][0]["split"] = "test"
    outcome = run.run(config.parse(raw))
    gain = outcome.records["gain"].sel(algorithm="leaving", round=2).transpose("seed", "client").values
    own = outcome.metrics["test_accuracy"].sel(algorithm="leaving", evaluated_round=2).transpose("seed", "client")
    other = outcome.metrics["test_accuracy"].sel(algorithm="fedavg", evaluated_round=2).transpose("seed", "client")
    np.testing.assert_allclose(gain, own.values - other.values, atol=1e-6)


def test_what_is_wrong_in_a_config_is_said_before_anything_is_trained():
    def clusters(table: Any, **others: Any) -> Any:
        return lambda raw: raw["algorithms"][1].update(clustering=table, **others)

    assert "clustering: " in refused(clusters({"name": "f1", "round": 1}))
    assert "expected one of the keys name, rounds, features, rows, late, got" in refused(
        clusters({"name": "f1", "round": 1})
    )
    assert "for each of 9 clusters, got 8 of them" in refused(clusters({"name": "f1"}, clusters=9))
    assert "expected clustering on rows that the server has, got 'mine'" in refused(
        clusters({"name": "f1", "rows": "mine"})
    )
    assert "different ids from 0 to 7, got (1, 8)" in refused(clusters({"name": "f1", "late": [1, 8]}))
    assert (
        "clustering.late: expected a share from 0 to below 1, or a list of different ids of clients, got 1.5"
        in refused(clusters({"name": "f1", "late": 1.5}))
    )
    assert "since tokens are whole, got 1.5" in refused(lambda raw: raw["algorithms"][1].update(tokens={"price": 1.5}))
