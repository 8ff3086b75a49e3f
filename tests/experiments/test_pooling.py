"""Pooled training: its rows, its steps (a NumPy transcription), and metrics of every client."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import fljax
from fljax import data
from fljax.engine.rounds.states import by_id
from fljax.experiments.inputs.preparation import pooled
from fljax.protocol import Labelled
from tests.refusals import refuses
from tests.toys.federation import TRAIN, UNSEEN_TRAIN, tiny_federation
from tests.toys.quick import quick_programs
from tests.toys.task import logistic_regression

FEDERATION, TASK = by_id(tiny_federation()), logistic_regression()
ROUNDS, STEPS, RATE, DECAY = 3, 2, 0.4, 0.5
ALL = sum(TRAIN)
LOCAL = fljax.Local(RATE, batch_size=ALL, steps=STEPS, decay=DECAY, shuffle=False)


@pytest.fixture(scope="module")
def comparison() -> Any:
    entries = {"fedavg": "fedavg", "pooled": ("fedavg", {"pooled": True})}
    with quick_programs():
        return fljax.compare(
            entries,
            FEDERATION,
            TASK,
            LOCAL,
            rounds=ROUNDS,
            seeds=(5, 9),
            evaluate_every=1,
            scores=["auroc"],
            extra_metrics=["objective", "objective_gradient_norm", "gradient_steps"],
            progress=False,
        )


def test_one_client_has_all_rows_and_everybody_is_unseen() -> None:
    whole = pooled(data.stack([FEDERATION, FEDERATION]))
    for part in ("train", "valid"):
        lists = data.row_numbers(FEDERATION, part)
        for found in data.row_numbers(whole, part):
            np.testing.assert_array_equal(found, np.concatenate(lists))
    for part in ("train", "valid", "test"):
        expected = [*data.row_numbers(FEDERATION, part), *data.row_numbers(FEDERATION, part, unseen=True)]
        found = data.row_numbers(whole, part, unseen=True)
        assert len(found) == 2 * len(expected)
        for mine, other in zip(found, expected * 2, strict=True):
            np.testing.assert_array_equal(mine, other)
    assert whole.clients.id.shape == (2, 1)
    assert not np.any(whole.clients.test.size)


def test_noise_of_clients_is_refused() -> None:
    noisy = FEDERATION._replace(clients=FEDERATION.clients._replace(noise=np.full(len(TRAIN), 0.1, np.float32)))
    refuses(lambda: pooled(noisy), "expected clients without noise on their features to pool their rows")


def _transcription(start: Any) -> np.ndarray:
    """Full-batch gradient descent on the rows of all seen clients: weights with the bias as the last row."""
    rows = np.concatenate(data.row_numbers(FEDERATION))
    x = np.asarray(FEDERATION.examples.x, np.float64)[rows]
    x, y = np.concatenate([x, np.ones((len(x), 1))], axis=1), np.eye(3)[np.asarray(FEDERATION.examples.y)[rows]]
    for round in range(ROUNDS):
        for _ in range(STEPS):
            start = start - RATE * DECAY**round * x.T @ (softmax(x @ start, axis=1) - y) / len(x)
    return start


def _weights(model: Any) -> np.ndarray:
    """The model as a matrix, from what it says of unit vectors."""
    rows = np.concatenate([np.zeros((1, 4)), np.eye(4)]).astype(np.float32)
    logits = np.asarray(TASK.logits(model, rows), np.float64)
    return np.concatenate([logits[1:] - logits[0], logits[:1]])


@pytest.mark.in_turn
def test_it_is_descent_on_all_rows_with_the_steps_of_one_client(comparison: Any) -> None:
    result = comparison.results["pooled"]
    begin = fljax.simulate(
        fljax.Plan(fljax.algorithms.fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": 3}),
        FEDERATION,
        rounds=0,
        seeds=(5, 9),
    )
    for place in range(2):
        expected = _transcription(_weights(begin.deployed(0, seed=place)))
        np.testing.assert_allclose(_weights(result.deployed(0, seed=place)), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.in_turn
@pytest.mark.parametrize("unseen", [False, True])
def test_every_client_is_judged_on_its_test_rows(comparison: Any, unseen: bool) -> None:
    prefix, axis = ("unseen_", "unseen") if unseen else ("", "client")
    metrics = comparison.last.sel(algorithm="pooled")
    result, count = comparison.results["pooled"], len(UNSEEN_TRAIN if unseen else TRAIN)
    for client, rows in enumerate(data.row_numbers(FEDERATION, "test", unseen=unseen)):
        y = np.asarray(FEDERATION.examples.y)[rows]
        logits = result.predict(client, np.asarray(FEDERATION.examples.x)[rows], seed=1, unseen=unseen)
        loss = -log_softmax(np.asarray(logits, np.float64), axis=1)[np.arange(len(y)), y].mean()
        np.testing.assert_allclose(metrics[f"{prefix}test_loss"].sel(seed=9, **{axis: client}), loss, rtol=1e-5)
    # What compares with standalone models compares with those of the same clients.
    better = metrics[f"{prefix}test_loss"] < metrics[f"{prefix}standalone_test_loss"]
    np.testing.assert_allclose(metrics[f"{prefix}incentivised_participation_rate"], better.mean(axis))
    assert metrics.sizes[axis] == count
    np.testing.assert_allclose(
        metrics[f"{prefix}average_score_auroc"], metrics[f"{prefix}score_auroc"].mean(axis), rtol=1e-6
    )
    assert metrics[f"{prefix}score_auroc"].attrs["lower"] == 0


@pytest.mark.in_turn
def test_gains_over_the_first_algorithm_and_the_table(comparison: Any) -> None:
    gain = comparison.last.test_accuracy.sel(algorithm="pooled") - comparison.last.test_accuracy.sel(algorithm="fedavg")
    found = comparison.last.personalised_model_accuracy_gain.sel(algorithm="pooled")
    np.testing.assert_allclose(found.transpose(*gain.dims), gain, atol=1e-6)
    assert list(comparison.table().index) == ["fedavg", "pooled"]


@pytest.mark.in_turn
def test_what_is_computed_of_a_pool(comparison: Any) -> None:
    last = comparison.last.sel(algorithm="pooled")
    # One client with its steps in every round; the objective is of each client's training rows.
    np.testing.assert_array_equal(last.gradient_steps, ROUNDS * STEPS)
    assert np.isnan(last.objective).all()
    assert np.isnan(last.objective_gradient_norm).all()
    assert np.isfinite(comparison.last.objective_gradient_norm.sel(algorithm="fedavg")).all()
    assert np.isfinite(last.worse_off_by_noise).all()
    assert np.isfinite(last.unseen_worse_off_by_noise).all()


@pytest.mark.in_turn
def test_clients_that_are_not_there_are_refused(comparison: Any) -> None:
    predict = pickle.loads(pickle.dumps(comparison.results["pooled"].predict._replace(function=_echo)))
    assert predict(1, "x", seed=1, unseen=True) == (len(TRAIN) + 1, "x", 1, True)
    refuses(lambda: predict(2, "x", unseen=True), "expected a client below 2, got 2")


def _echo(client: int, x: str, *, seed: int, unseen: bool) -> Any:
    return client, x, seed, unseen


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("incfl", {"pooled": True}), "expected an algorithm without numbers of each client for pooled = true"),
        (("fedavg", {"pooled": 1}), "expected pooled to be True or False, got 1"),
    ],
)
def test_what_cannot_be_pooled_is_refused(entry: Any, words: str) -> None:
    refuses(lambda: fljax.compare({"one": entry}, FEDERATION, TASK, LOCAL, rounds=1, progress=False), words)


def test_labels_of_a_block() -> None:
    from fljax.experiments.inputs.preparation import by_client

    values = {"unseen_test_loss": np.arange(6.0).reshape(2, 3), "test_loss": np.full((2, 1), np.nan)}
    values |= {"unseen_average_loss": np.ones(2), "average_loss": np.ones(2)}
    found = by_client(values, 2, 1)
    assert found.keys() == {"test_loss", "unseen_test_loss"}
    assert isinstance(found["test_loss"], Labelled)
    assert found["test_loss"].values.tolist() == [[0, 1], [3, 4]]
