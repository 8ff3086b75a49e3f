"""Scenarios that compare clients with the first algorithm: what it reaches at each decision, through a config."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax import config
from fljax.experiments import run
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import resolve_setup
from fljax.results import Results
from fljax.results.events import Event

pytestmark = pytest.mark.thorough

ROUNDS = 8
RAW: dict[str, Any] = {
    "seeds": 2,
    "rounds": ROUNDS,
    "evaluate_every": 4,
    "data": {
        "dataset": "blobs",
        "partition": "cluster_labels",
        "clients": 6,
        "valid_fraction": 0.3,
        "partition_options": {"groups": 2, "minimum": 4},
    },
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 3},
    "participation": {"clients_per_round": 3},
    "algorithms": [
        {"name": "fedavg"},
        {"name": "fedavg", "label": "valid", "scenarios": [{"name": "opting_out", "every": 3}]},
        {"name": "fedavg", "label": "test", "scenarios": [{"name": "opting_out", "every": 5, "split": "test"}]},
    ],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return run.run(config.parse(RAW), directory=folder), folder


def test_the_first_algorithm_is_judged_where_scenarios_decide():
    """After 0, 3 and 6 rounds for the one and after 0 and 5 for the other."""
    assert preparation.decision_rounds(resolve_setup(config.parse(RAW))) == (0, 3, 5, 6)
    numbers = {**RAW, "algorithms": [dict(each) for each in RAW["algorithms"]]}
    numbers["algorithms"][2]["scenarios"] = [{"name": "opting_out", "every": 5, "baseline": 0.4}]
    assert preparation.decision_rounds(resolve_setup(config.parse(numbers))) == (0, 3, 6)
    assert preparation.decision_rounds(resolve_setup(config.parse({**RAW, "algorithms": RAW["algorithms"][:1]}))) == ()


def test_fedavg_loses_nobody_to_itself(finished):
    outcome, _ = finished
    records, metrics = outcome.records, outcome.metrics
    for label in ("valid", "test"):
        own = records.sel(algorithm=label)
        assert not own["opted_out"].values.any()
        assert own.sizes["round"] == ROUNDS
        np.testing.assert_allclose(own["gain"], 0, atol=1e-6)
        np.testing.assert_array_equal(
            metrics["test_accuracy"].sel(algorithm=label), metrics["test_accuracy"].sel(algorithm="fedavg")
        )
    # Otherwise any row would do.
    judged = metrics["decision_valid_accuracy"]
    assert (judged.sel(decision_round=3) != judged.sel(decision_round=6)).any()


def test_everything_else_is_as_without_decisions(finished):
    """Evaluations at decisions are variables of their own: no table and no curve has a round more."""
    outcome, folder = finished
    metrics = outcome.metrics
    assert metrics["evaluated_round"].values.tolist() == [0, 4, 8]
    assert metrics["decision_round"].values.tolist() == [0, 3, 5, 6]
    apart = {"decision_valid_accuracy", "decision_test_accuracy"}
    for name in apart:
        assert metrics[name].dims == ("seed", "decision_round", "client")  # of the first algorithm, which all face
        assert np.isfinite(metrics[name]).all()
    alone = run.run(config.parse({**RAW, "algorithms": RAW["algorithms"][:1]}))
    assert not apart & set(map(str, alone.metrics))
    for name, values in alone.metrics.items():
        if not str(name).startswith(("seconds_", "execution_", "standalone_", "threshold", "opt_out_threshold")):
            first = {"algorithm": "fedavg"} if "algorithm" in values.dims else {}  # or of the federation
            np.testing.assert_array_equal(values.sel(first), metrics[name].sel(first))
    np.testing.assert_array_equal(alone.records["cohort_id"].values[0], outcome.records["cohort_id"].values[0])
    assert "decision" not in (folder / "metrics.csv").read_text().splitlines()[0]
    assert outcome.models["fedavg"].metrics["evaluated_round"].values.tolist() == [0, 4, 8]


class Died(Exception):
    """What stops a run in these tests."""


def test_what_is_resumed_is_compared_with_the_same_baseline(tmp_path):
    """Everybody leaves before round 3, so that the gains of round 6 are over a baseline that went on."""
    raw = {**RAW, "algorithms": [*RAW["algorithms"][:1], {"name": "fedavg", "label": "leaving"}]}
    raw["algorithms"][1]["scenarios"] = [{"name": "opting_out", "every": 3, "delta": 0.05}]
    whole = run.run(config.parse(raw))
    assert whole.records["opted_out"].sel(algorithm="leaving", round=3).values.all()
    assert (whole.records["gain"].sel(algorithm="leaving", round=6).values != 0).any()

    def die(event: Event) -> None:
        if event.stage == "saved":
            raise Died

    with pytest.raises(Died):
        run.run(config.parse(raw), directory=tmp_path, on_event=die)
    resumed = run.run(config.parse(raw), directory=tmp_path, resume=True)
    assert set(resumed.models) == {"leaving"}
    for name in ("gain", "opted_out", "cohort_id"):
        np.testing.assert_array_equal(resumed.records[name], whole.records[name])
    for name in ("test_loss", "decision_valid_accuracy"):
        np.testing.assert_array_equal(resumed.metrics[name], whole.metrics[name])


def test_results_without_decisions_are_not_taken_for_a_baseline(finished):
    outcome, _ = finished
    parsed = config.parse(RAW)
    metrics = outcome.models["fedavg"].metrics.drop_dims("decision_round")
    with pytest.raises(ValueError, match="expected results of fedavg in every round in which a scenario decides"):
        preparation.baselines_of(resolve_setup(parsed), {"fedavg": Results(metrics, outcome.models["fedavg"].records)})
