"""Tasks with a score of their own, and tasks without any: accuracies are what the score says, or there are none."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl
from fljax.contributions import measure
from fljax.engine import Schedule, estimate, print_progress, simulate, standalone
from fljax.protocol import Federation, Task
from fljax.results import join, with_gains
from fljax.results.non_finite import InfiniteLoss, infinite_losses
from fljax.training import Local
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.models_per_client import models_per_client
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOCAL = Local(0.2, batch_size=2, steps=2)
PLAIN = logistic_regression()
SILENT = PLAIN._replace(score=None)


def accuracies(metrics: Any) -> list[str]:
    words = ("accuracy", "correlation", "gain", "opt_outs", "participation_rate")
    of_losses = "incentivised_participation_rate"
    return [str(name) for name in metrics if any(w in str(name) for w in words) and not str(name).endswith(of_losses)]


@pytest.mark.thorough
def test_without_a_score_nothing_is_made_of_accuracies() -> None:
    data = tiny_federation()
    reference = standalone(SILENT, data, LOCAL)
    assert reference.test_accuracy is None
    assert reference.unseen_test_accuracy is None
    written: list[str] = []
    algorithms = {
        "incfl": incfl(SILENT, LOCAL, threshold=reference.threshold[0]),
        "contributing": models_per_client(SILENT, LOCAL, contribution=np.ones(5, np.float32)),
    }
    found = {}
    for name, algorithm in algorithms.items():
        calls = [print_progress(written.append)]
        result = simulate(algorithm, data, rounds=2, reference=reference, callbacks=calls)
        assert accuracies(result.metrics) == []
        for metric in ("average_loss", "incentivised_participation_rate", "ipr_loss", "unseen_average_loss"):
            assert np.isfinite(result.metrics[metric]).all(), metric
        assert result.predict(0, np.ones((2, 4), np.float32)).shape == (2, 3)
        found[name] = result.metrics
    assert all("loss " in line and "accuracy" not in line for line in written)
    assert accuracies(with_gains(join(found), "incfl")) == []
    # The losses do not depend on whether there is a score.
    scored = simulate(incfl(PLAIN, LOCAL, threshold=reference.threshold[0]), data, rounds=2)
    np.testing.assert_array_equal(scored.metrics["test_loss"], found["incfl"]["test_loss"])


@pytest.mark.thorough
def test_accuracies_are_what_the_score_says() -> None:
    task = PLAIN._replace(score=lambda logits, y: jnp.where(y == 0, 0.25, 0.75))
    data = tiny_federation()
    result = simulate(fedavg(task, LOCAL), data, rounds=0, reference=standalone(task, data, LOCAL))
    y, rows = np.asarray(data.examples.y), data.clients.test
    for place, id in enumerate(np.asarray(data.clients.id)):
        own = y[np.asarray(rows.index)[place, : int(rows.size[place])]]
        mean = np.where(own == 0, 0.25, 0.75).mean()
        for name in ("test_accuracy", "global_test_accuracy"):
            np.testing.assert_allclose(result.metrics[name].values[0, 0, id], mean, rtol=1e-6)
        np.testing.assert_allclose(result.metrics["standalone_test_accuracy"].values[0, id], mean, rtol=1e-6)


def test_contributions_of_accuracies_need_a_score() -> None:
    facts = {"size": np.ones((1, 3), int), "population": 3, "standalone_loss": np.ones((1, 3))}
    np.testing.assert_array_equal(measure("size", facts), np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"expected a task with a score for the contribution 'standalone_accuracy'"):
        measure("standalone_accuracy", facts)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": lambda logits, y: jnp.mean(logits)}, r"expected the loss <lambda> to return one number per sample"),
        ({"loss": lambda logits, y: logits[:, :1]}, r"expected the loss <lambda> to return one number per sample"),
        ({"score": lambda logits, y: logits > 0}, r"expected the score <lambda> to return one number per sample"),
    ],
)
def test_losses_and_scores_are_one_number_per_sample(change: Any, message: str) -> None:
    """Broadcasting would make some number of any shape."""
    task = PLAIN._replace(**change)
    refuses(lambda: standalone(task, tiny_federation(), LOCAL), message)
    refuses(lambda: simulate(fedavg(task, LOCAL), tiny_federation(), rounds=1), message)


def with_label(data: Federation, row: int, label: Any) -> Federation:
    y = np.array(data.examples.y)
    y[row] = label
    return data._replace(examples=data.examples._replace(y=y))


def owned_row(data: Federation, whose: str) -> int:
    if whose == "held":
        return int(np.asarray(data.held["test"].index)[0])
    population: Any = data.unseen if whose == "unseen" else data.clients
    return int(np.asarray(population.test.index)[1, 0])


@pytest.mark.parametrize("run", ["standalone", "simulate", "estimate"])
@pytest.mark.parametrize(("whose", "named"), [("seen", "client 0"), ("unseen", "unseen client 1"), ("held", "'test'")])
def test_labels_beyond_the_classes_are_refused_before_training(run: str, whose: str, named: str) -> None:
    data = tiny_federation()
    assert int(data.clients.id[1]) == 0
    wrong = with_label(data, owned_row(data, whose), 3)
    start = {
        "standalone": lambda: standalone(PLAIN, wrong, LOCAL),
        "simulate": lambda: simulate(fedavg(PLAIN, LOCAL), wrong, rounds=1),
        "estimate": lambda: estimate(fedavg(PLAIN, LOCAL), wrong, Schedule(1)),
    }[run]
    refuses(start, rf"expected labels in 0..2, .*got label 3 of .*{named}")


@pytest.mark.in_turn
def test_labels_of_nobody_do_not_matter() -> None:
    data = tiny_federation()
    last = len(data.examples.y) - 1
    result = simulate(fedavg(PLAIN, LOCAL), with_label(data, last, 99), rounds=1)
    expected = simulate(fedavg(PLAIN, LOCAL), data, rounds=1)
    np.testing.assert_array_equal(result.metrics["test_loss"], expected.metrics["test_loss"])


def bounded(limit: float) -> Task:
    """A loss that leaves the range of floats while parameters are small: infinite as soon as logits pass a limit."""

    def loss(logits: Any, y: Any) -> Any:
        return jnp.where(jnp.max(jnp.abs(logits), axis=1) > limit, jnp.inf, PLAIN.loss(logits, y))

    return PLAIN._replace(loss=loss)


@pytest.mark.thorough
def test_an_infinite_loss_is_reported_with_seed_round_and_clients() -> None:
    algorithm = fedavg(bounded(30.0), Local(1e3, batch_size=2, steps=1))
    result = simulate(algorithm, tiny_federation(), rounds=2, evaluate_every=2, seeds=[4])
    assert result.diverged == ()
    (found,) = result.infinite
    assert (found.run, found.metric) == ({"seed": 4}, "test_loss")
    losses = result.metrics["test_loss"].sel(seed=4)
    first = next(at for at in (0, 2) if np.isinf(losses.sel(evaluated_round=at)).any())
    assert found.round == first == 2
    np.testing.assert_array_equal(found.clients, np.flatnonzero(np.isinf(losses.sel(evaluated_round=2))))
    assert str(found).startswith("the test_loss of client")
    assert "is infinite after round 2 (seed 4)" in str(found)
    assert simulate(fedavg(PLAIN, LOCAL), tiny_federation(), rounds=1).infinite == ()


@pytest.mark.in_turn
def test_examples_that_are_nan_in_a_federation_made_by_hand_are_found_before_training() -> None:
    """No front door has seen them: the first evaluation names their client."""
    data = tiny_federation()
    x = np.array(data.examples.x)
    x[owned_row(data, "seen")] = np.nan
    wrong = data._replace(examples=data.examples._replace(x=jnp.asarray(x)))
    (found,) = simulate(fedavg(PLAIN, LOCAL), wrong, rounds=0).infinite
    assert found == InfiniteLoss({"seed": 0}, 0, "test_loss", (0,))


@pytest.mark.thorough
def test_infinite_losses_of_joined_results() -> None:
    result = simulate(fedavg(PLAIN, LOCAL), tiny_federation(), rounds=1, seeds=[3, 5]).metrics
    bad = result.copy(deep=True)
    bad["unseen_test_loss"].values[1, 1, 0] = np.inf
    bad["standalone_test_loss"] = (("seed", "client"), np.where(np.arange(5) == 2, np.inf, np.ones((2, 5))))
    found = infinite_losses(join({"a": result, "b": bad}))
    assert InfiniteLoss({"algorithm": "b", "seed": 5}, 1, "unseen_test_loss", (0,)) in found
    assert InfiniteLoss({"seed": 3}, None, "standalone_test_loss", (2,)) in found
    assert len(found) == 3
