"""Algorithms that ended after different numbers of rounds: joined, compared, in tables and pictures."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import config as configuration
from fljax import report, results
from fljax.config.reading import parse_grid
from fljax.experiments import run, sweep
from fljax.experiments.conductor import Experiment, join
from fljax.metrics.uncertainty import align_clusters
from fljax.report.style import recorded
from fljax.report.tables import when
from fljax.results import folders
from fljax.results.events import WEIGHTS, Event, Results, at_end, end_of, joined_weights, weights_in_words
from fljax.results.records import directions
from tests.refusals import refuses
from tests.toys.configs import BASE

pytestmark = pytest.mark.usefixtures("quick_compilation")


def part(rounds: list[int], accuracy: list[list[float]]) -> Results:
    """Metrics ``[round, client]`` and records of one algorithm with one seed."""
    values = np.asarray(accuracy)[None]
    coordinates = {"seed": [0], "evaluated_round": rounds, "client": [0, 1]}
    metrics = xr.Dataset({"test_accuracy": (("seed", "evaluated_round", "client"), values)}, coordinates)
    metrics["average_accuracy"] = metrics["test_accuracy"].mean("client")
    metrics["rounds_done"] = ((), rounds[-1])
    metrics["diverged"] = (("seed",), [-1])
    done = np.arange(rounds[-1])
    records = xr.Dataset({"polled": (("seed", "round"), np.ones((1, len(done)), int))}, {"seed": [0], "round": done})
    return Results(metrics, records)


BOTH = Experiment("tiny", ("early", "late"), 4)
EARLY = part([0, 2], [[0.0, 0.0], [0.5, 0.7]])
LATE = part([0, 2, 4], [[0.0, 0.0], [0.4, 0.4], [0.6, 0.6]])


def joined(**parts: Results) -> xr.Dataset:
    return join(Experiment("tiny", tuple(parts), 4), parts).metrics


def test_after_the_end_of_a_run_there_is_nothing():
    metrics, records = join(BOTH, {"early": EARLY, "late": LATE})
    assert metrics["evaluated_round"].values.tolist() == [0, 2, 4]
    assert np.isnan(metrics["test_accuracy"].sel(algorithm="early", evaluated_round=4)).all()
    assert np.isnan(records["polled"].sel(algorithm="early", round=3)).all()
    assert [end_of(metrics, label) for label in ("early", "late")] == [1, 2]
    end = at_end(metrics)["average_accuracy"]
    np.testing.assert_allclose(end.sel(algorithm=["early", "late"], seed=0), [0.6, 0.6])


def test_tables_take_the_own_last_evaluation_and_say_where_it_is():
    rows = report.summary(joined(early=EARLY, late=LATE))
    found = {row.algorithm: (row.round, row.mean) for row in rows if row.metric == "average_accuracy"}
    assert found == {"early": (2, pytest.approx(0.6)), "late": (4, pytest.approx(0.6))}
    assert when(rows) == "after round 2 of early, round 4 of late"
    assert when([row for row in rows if row.algorithm == "late"]) == "after round 4"


def test_a_baseline_that_stopped_keeps_the_models_that_it_ended_with():
    metrics = joined(early=EARLY, late=LATE)
    gain = (
        metrics["personalised_model_accuracy_gain"].sel(algorithm="late", seed=0).transpose("evaluated_round", "client")
    )
    np.testing.assert_allclose(gain, [[0, 0], [-0.1, -0.3], [0.1, -0.1]], atol=1e-12)
    opt_outs = {row.algorithm: row.mean for row in report.summary(metrics) if row.metric == "opt_outs"}
    assert opt_outs == {"early": 0.0, "late": 1.0}


def test_an_algorithm_that_stopped_is_compared_with_the_baseline_of_that_round():
    metrics = joined(late=LATE, early=EARLY)
    own = metrics.sel(algorithm="early", seed=0)
    np.testing.assert_allclose(own["personalised_model_accuracy_gain"].sel(evaluated_round=2), [0.1, 0.3])
    assert np.isnan(own["opt_outs"].sel(evaluated_round=4))
    np.testing.assert_allclose(at_end(metrics)["average_gain"].sel(algorithm="early", seed=0), 0.2)


def test_results_without_the_number_of_rounds_end_at_the_last_evaluation():
    metrics = joined(early=EARLY, late=LATE).drop_vars("rounds_done")
    assert end_of(metrics, "late") == 2
    assert at_end(metrics)["average_accuracy"].sizes == {"algorithm": 2, "seed": 1}


@pytest.mark.in_turn
def test_results_come_back_from_the_file(tmp_path: pathlib.Path):
    config = configuration.parse(BASE, name="tiny")
    text = configuration.dumps(config)
    with folders.claim(tmp_path, text):
        folders.save_results(tmp_path, join(BOTH, {"early": EARLY, "late": LATE}), text)
    with folders.claim(tmp_path, text, resume=True) as claimed:
        again = joined(**claimed.finished)
    assert [end_of(again, label) for label in ("early", "late")] == [1, 2]
    np.testing.assert_allclose(
        at_end(again)["average_gain"].sel(seed=0), at_end(joined(early=EARLY, late=LATE))["average_gain"].sel(seed=0)
    )


def test_clusters_are_matched_at_the_own_end():
    accuracy = np.full((1, 3, 2, 2), np.nan)
    accuracy[0, :2] = [[[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.9], [0.8, 0.2]]]
    np.testing.assert_array_equal(align_clusters(accuracy)[0, 1], [[0.8, 0.2], [0.1, 0.9]])


def test_records_end_at_the_last_round_with_a_value():
    values = np.array([[[1.0], [np.nan], [np.nan]], [[np.nan], [2.0], [np.nan]]])
    assert recorded(values).shape == (2, 2, 1)


def test_held_baselines_of_a_sweep():
    """Each cell of a baseline is held after its own end."""
    dims = ("algorithm", "rate", "seed", "evaluated_round", "client")
    values = np.zeros((2, 2, 1, 3, 1))
    values[0, 0, 0, :, 0] = [0.1, 0.2, np.nan]
    values[0, 1, 0, :, 0] = [0.1, 0.2, 0.3]
    values[1] = 0.5
    coordinates = {"algorithm": ["a", "b"], "rate": [1, 2], "seed": [0], "evaluated_round": [0, 2, 4], "client": [0]}
    metrics = xr.Dataset({"test_accuracy": (dims, values)}, coordinates)
    metrics["rounds_done"] = (("algorithm", "rate"), [[2, 4], [4, 4]])
    gain = results.with_gains(metrics, "a")["average_gain"].sel(algorithm="b", seed=0)
    np.testing.assert_allclose(gain.transpose("rate", "evaluated_round"), [[0.4, 0.3, 0.3], [0.4, 0.3, 0.2]])


SLOWLY: dict[str, Any] = {"rounds": 8, "evaluate_every": 2, "seeds": 2}
STOP = {"metric": "average_loss", "patience": 1, "minimum_change": 0.5}


@pytest.mark.thorough
def test_a_config_may_stop_early(tmp_path: pathlib.Path):
    events: list[Event] = []
    config = configuration.parse(BASE | SLOWLY | {"stop": STOP}, name="tiny")
    outcome = run.run(config, directory=tmp_path, on_event=events.append)
    done = outcome.metrics["rounds_done"].to_series()
    assert (done < 8).any()
    for label, round in done.items():
        if round < 8:
            (said,) = [event.message for event in events if event.label == label and "stopped after" in event.message]
            assert said.startswith(
                f"stopped after round {int(round)} of 8: average_loss has not improved by more than 0.5"
            )
    image, page = report.write(tmp_path)
    assert image.stat().st_size > 10_000
    assert "fter round" in page.read_text()
    # What is resumed is what was saved.
    again = run.run(config, directory=tmp_path, resume=True)
    np.testing.assert_array_equal(again.metrics["average_gain"], outcome.metrics["average_gain"])


@pytest.mark.thorough
def test_cells_of_a_sweep_stop_together(tmp_path: pathlib.Path):
    raw = BASE | SLOWLY | {"stop": STOP, "sweep": {"grid": {"local.learning_rate": [0.001, 0.01]}}}
    outcome = sweep.run(parse_grid(raw, name="tiny"), directory=tmp_path)
    done = outcome.metrics["rounds_done"].sel(algorithm="fedavg")
    assert done.dims == ("learning_rate",)
    assert (done < 8).all()
    assert outcome.best
    report.write(tmp_path)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"metric": "average_gain"}, "stop.metric: expected one of the metrics .*got 'average_gain'"),
        ({"metric": "averge_loss"}, "did you mean 'average_loss'"),
        ({"metric": "average_valid_accuracy"}, "stop.metric: expected data.valid_fraction to be positive for"),
        ({"metric": "average_loss", "patience": 0}, "stop.patience: expected a number above 0, got 0"),
        ({"metric": "average_loss", "wait": 0}, "stop.wait: expected one of the keys metric, patience"),
        ({}, "stop.metric: expected a value"),
    ],
)
def test_the_table_of_a_config(stop: dict[str, Any], message: str):
    refuses(lambda: configuration.parse(BASE | {"stop": stop}, name="tiny"), message, configuration.ConfigError)


@pytest.mark.parametrize("path", ["stop.patience", "metrics.opt_out_threshold"])
def test_a_sweep_over_what_is_of_all_cells_is_refused(path: str):
    raw = BASE | {"stop": STOP, "sweep": {"grid": {path: [1, 2]}}}
    with pytest.raises(configuration.ConfigError, match="expected a grid over what may differ between cells"):
        parse_grid(raw, name="tiny")


def test_a_baseline_of_a_scenario_runs_to_its_end():
    leaving = {"name": "incfl", "scenarios": [{"name": "opting_out", "split": "test"}]}
    config = configuration.parse(BASE | {"stop": STOP, "algorithms": [{"name": "fedavg"}, leaving]}, name="tiny")
    refuses(lambda: run.run(config), "stop: expected none where a scenario compares clients with the first")


def test_who_weighs_clients_otherwise_is_said() -> None:
    def part(kinds: dict[str, str]) -> Results:
        return Results(xr.Dataset(attrs={WEIGHTS: json.dumps(kinds)} if kinds else {}), xr.Dataset())

    earlier = part({"fedavg": "size", "scaffold": "uniform"})  # read again from joined results
    found = joined_weights({"fedavg": earlier, "incfl": part({}), "ditto": part({"ditto": "size"})})
    words = "weights of clients differ: size (fedavg, ditto), uniform (scaffold)"
    assert weights_in_words(xr.Dataset(attrs=found)) == directions(xr.Dataset(attrs=found)) == words
    for alike in ({}, {"fedavg": "size", "ditto": "size"}):
        assert weights_in_words(part(alike).metrics) == ""
