"""A finished run that goes on for more rounds: as if it had been asked for them at once."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import config as configuration
from fljax.engine import checkpoints
from fljax.engine.loop import history
from fljax.experiments import conductor, saved_models
from fljax.experiments import run as experiment
from fljax.experiments.conductor import Saving
from fljax.experiments.saved_models import path_of
from fljax.results import Results, folders, further_rounds
from fljax.results.further_rounds import joined, rounds_before
from tests.refusals import refuses
from tests.toys.configs import BASE

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

RAW = BASE | {
    "save_models": "last",
    "data": {"dataset": "blobs", "partition": "iid", "clients": 6, "unseen": 2, "valid_fraction": 0.3},
    "local": BASE["local"] | {"decay": 0.9},
    "execution": {"devices": 1},
    "algorithms": [{"name": "fedavg"}, {"name": "scaffold"}],
}


def build(**changes):
    return configuration.parse(RAW | changes, name="tiny")


def go_on(folder, **changes):
    return experiment.run(build(**changes), directory=folder, resume=True)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The folder of a finished run of 4 rounds."""
    folder = tmp_path_factory.mktemp("short")
    experiment.run(build(), directory=folder)
    return folder


@pytest.fixture
def folder(short, tmp_path):
    shutil.copytree(short, tmp_path / "run")
    return tmp_path / "run"


def assert_as_at_once(outcome, rounds, **changes):
    """Everything but times is as in a run that was asked for all rounds at the beginning, bit for bit."""
    wanted = experiment.run(build(rounds=rounds, **changes))
    for name, values in wanted.metrics.items():
        if not str(name).startswith(("seconds_", "execution_")):
            found = outcome.metrics[name].sel({axis: values[axis] for axis in values.dims})
            np.testing.assert_array_equal(found.transpose(*values.dims).values, values.values, err_msg=str(name))
    for name, values in wanted.records.items():
        found = outcome.records[name].transpose(*values.dims)
        np.testing.assert_array_equal(found.values, values.values, err_msg=str(name))


def test_a_finished_run_goes_on_as_if_all_rounds_had_been_asked_for_at_once(folder):
    before = folders.load_results(folder)[0]
    outcome = go_on(folder, rounds=8)
    assert outcome.metrics["evaluated_round"].values.tolist() == [0, 2, 4, 6, 8]
    assert outcome.metrics["rounds_done"].values.tolist() == [8, 8]
    assert_as_at_once(outcome, 8)
    metrics, records = folders.load_results(folder)
    assert records.sizes["round"] == 8
    assert metrics.attrs["continues"] == 4
    assert (metrics["seconds_train"] > before["seconds_train"]).all()
    assert configuration.load(folder / "config.toml").rounds == 8
    assert not (folder / folders.CHECKPOINTS).exists()
    state = saved_models.load(folder, "scaffold").state
    assert np.asarray(state.round).tolist() == [8, 8]
    # Once more, and then it is finished.
    assert go_on(folder, rounds=10).metrics["evaluated_round"].values.tolist() == [0, 2, 4, 6, 8, 10]
    assert go_on(folder, rounds=10).metrics["rounds_done"].values.tolist() == [10, 10]


@pytest.mark.thorough
def test_evaluations_of_the_new_rounds_may_be_others(folder):
    outcome = go_on(folder, rounds=7, evaluate_every=1)
    assert outcome.metrics["evaluated_round"].values.tolist() == [0, 2, 4, 5, 6, 7]


@pytest.mark.thorough
def test_evaluations_are_those_of_a_run_from_the_beginning(tmp_path):
    run = tmp_path / "run"
    experiment.run(build(rounds=3), directory=run)
    outcome = go_on(run, rounds=7)
    assert outcome.metrics["evaluated_round"].values.tolist() == [0, 2, 3, 4, 6, 7]
    assert_as_at_once(outcome, 7)


@pytest.mark.thorough
def test_long_records_have_all_rounds(folder, monkeypatch):
    before = folders.load_results(folder)[1]
    monkeypatch.setattr(history, "LONG", 0)
    monkeypatch.setattr(checkpoints, "CHUNK", 50)
    monkeypatch.setattr(further_rounds, "_AT_ONCE", 3)
    outcome = experiment.run(build(rounds=8), directory=folder, resume=True, saving=Saving(0))
    assert (folder / "records/fedavg").is_dir()
    wanted = experiment.run(build(rounds=8))
    for label in ("fedavg", "scaffold"):
        kept = fljax.load(folder).records_of(label)
        assert kept.sizes["round"] == 8
        for name in ("cohort_id", "bytes_up", "weight"):
            found, own = kept[name], wanted.records[name].sel(algorithm=label)
            np.testing.assert_array_equal(found.transpose(*own.dims).values, own.values, err_msg=name)
        assert kept["cohort_id"].dtype == before["cohort_id"].dtype
    assert outcome.records.sizes["round"] == 8
    refuses(lambda: go_on(folder, rounds=9), r"expected records of fedavg that are short enough")


@pytest.mark.parametrize("how", ["damaged", "foreign", "of another round"])
def test_models_are_read_before_anything_is_computed(folder, how):
    path = path_of(folder, "scaffold")
    good = path.read_bytes()
    arrays = dict(np.load(path))
    if how == "damaged":
        path.write_bytes(b"junk")
    elif how == "foreign":
        shutil.copy(path_of(folder, "fedavg"), path)
    else:
        np.savez(path, **(arrays | {"state.round": arrays["state.round"] + 1}))
    words = {"damaged": "expected whole models in", "foreign": "expected the arrays of a state"}
    refuses(lambda: go_on(folder, rounds=6), words.get(how, "got those after round 5"))
    assert go_on(folder).metrics["rounds_done"].values.tolist() == [4, 4]
    path.write_bytes(good)
    assert go_on(folder, rounds=6).metrics["rounds_done"].values.tolist() == [6, 6]


@pytest.mark.thorough
def test_evaluation_alone_goes_on(tmp_path):
    run = tmp_path / "run"
    alone = experiment.run(build(rounds=0), directory=run)
    assert (alone.metrics["evaluated_round"].values.tolist(), alone.records.sizes["round"]) == ([0], 0)
    assert_as_at_once(go_on(run, rounds=4), 4)


@pytest.mark.thorough
def test_scenarios_that_decide_by_the_first_algorithm_go_on(tmp_path):
    leaving = {"name": "fedavg", "label": "leaving", "scenarios": [{"name": "opting_out", "split": "valid"}]}
    changes = {"algorithms": [{"name": "fedavg"}, leaving]}
    experiment.run(build(rounds=3, **changes), directory=tmp_path / "run")
    assert_as_at_once(go_on(tmp_path / "run", rounds=6, **changes), 6, **changes)


@pytest.mark.thorough
def test_a_run_that_dies_while_it_goes_on_is_resumed(folder, monkeypatch):
    """It dies after the models of the first algorithm, before their results; and then after the results."""
    keep = conductor.save_results

    def dies(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(conductor, "save_results", dies)
    with pytest.raises(KeyboardInterrupt):
        go_on(folder, rounds=8)
    assert folders.load_results(folder)[0]["rounds_done"].values.tolist() == [4, 4]
    calls = []

    def once(*arguments, **named):
        keep(*arguments, **named)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(conductor, "save_results", once)
    with pytest.raises(KeyboardInterrupt):
        go_on(folder, rounds=8)
    metrics, _ = folders.load_results(folder)
    assert (metrics["rounds_done"].values.tolist(), metrics.attrs["continues"]) == ([8, 4], 4)
    refuses(lambda: go_on(folder, rounds=9), "rounds is 8 there and 9 here")
    with pytest.raises(ValueError, match="expected a finished run to give it more rounds, got one that goes on to 8"):
        rounds_before(metrics, configuration.dumps(build(rounds=8)), configuration.dumps(build(rounds=9)))
    refuses(lambda: go_on(folder, rounds=8, save_models="none"), "expected models after the last round")
    monkeypatch.setattr(conductor, "save_results", keep)
    outcome = go_on(folder, rounds=8)
    assert_as_at_once(outcome, 8)
    assert calls == [1]


def refused(folder, match, **changes):
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refuses(lambda: go_on(folder, **changes), match)
    left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in left if left[path] != kept.get(path)} <= {folders.LOG, folders.ENVIRONMENT}
    assert go_on(folder).metrics["rounds_done"].values.tolist() == [4, 4]


def test_what_has_no_more_rounds(folder):
    refused(folder, "rounds is 4 there and 3 here", rounds=3)
    refused(
        folder, "rounds is 4 there and 8 here; local.steps differs, too", rounds=8, local=RAW["local"] | {"steps": 3}
    )
    refused(
        folder, r"expected models after the last round.*save_models = 'last'.*got 'all'", rounds=8, save_models="all"
    )
    path_of(folder, "scaffold").unlink()
    refuses(lambda: go_on(folder, rounds=8), r"expected models after the last round of scaffold, .* got none")


def test_tables_by_round_must_be_long_enough(tmp_path):
    changes = {"algorithms": [{"name": "fedavg", "scenarios": [{"name": "tests.toys.short_table:four_rounds"}]}]}
    run = tmp_path / "run"
    experiment.run(build(**changes), directory=run)
    with pytest.raises(ValueError, match="expected at most 4 rounds, for which the table of four_rounds has rows"):
        go_on(run, rounds=8, **changes)
    assert go_on(run, **changes).metrics["rounds_done"].values.tolist() == [4]


def test_a_run_that_is_not_finished_has_no_more_rounds(short, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(short, run)
    metrics, records = folders.load_results(run)
    first = Results(metrics.isel(algorithm=[0]), records.isel(algorithm=[0]))
    folders.save_results(run, first, configuration.dumps(build()))
    refuses(lambda: go_on(run, rounds=8), "expected a finished run to give it more rounds, got one without scaffold")


def test_a_seed_that_diverged_or_a_run_that_stopped_early_has_no_more_rounds(folder):
    metrics, _ = folders.load_results(folder)
    here, there = (configuration.dumps(build(rounds=rounds)) for rounds in (8, 4))
    assert rounds_before(metrics, there, here) == 4
    frozen = metrics.assign(diverged=metrics["diverged"].copy(data=[[-1, -1], [2, -1]]))
    with pytest.raises(ValueError, match=r"expected a finished run .* got scaffold, of which seeds diverged"):
        rounds_before(frozen, there, here)
    stopped = metrics.assign(rounds_done=metrics["rounds_done"].copy(data=[2, 4]))
    refuses(lambda: rounds_before(stopped, there, here), "got fedavg, which was stopped early after round 2")
    stop = {"metric": "average_loss"}
    here, there = (configuration.dumps(build(rounds=rounds, stop=stop)) for rounds in (8, 4))
    refuses(lambda: rounds_before(metrics, there, here), r"stop: expected none .* got early stopping")


@pytest.mark.quick
def test_counts_until_a_round_are_added():
    def part(rounds, counts):
        return xr.Dataset(
            {
                "dropped_messages": (("seed", "evaluated_round"), np.array([counts])),
                "seconds_train": ((), 2.0),
                "rounds_done": ((), rounds[-1]),
            },
            {"seed": [0], "evaluated_round": rounds},
        )

    found = joined(part([0, 4], [0, 3]), part([4, 6, 8], [0, 1, 2]), "evaluated_round")
    assert found["dropped_messages"].values.tolist() == [[0, 3, 4, 5]]
    assert found["evaluated_round"].values.tolist() == [0, 4, 6, 8]
    assert float(found["seconds_train"]) == 4.0
    assert int(found["rounds_done"]) == 8


@pytest.mark.thorough
def test_contributions_of_the_rounds_done_may_not_change(tmp_path):
    """A file may say more of later rounds, and nothing else of earlier ones."""
    file, folder = tmp_path / "contributions.csv", tmp_path / "run"

    def write(*rows):
        lines = [f"{start},{id},{level}" for start, level in rows for id in range(6)]
        file.write_text("\n".join(["round,client,contribution", *lines]))

    algorithms = [{"name": "iafl", "contribution": {"file": str(file)}}, {"name": "iafl", "label": "measured"}]
    changes = {"rounds": 1, "participation": {"clients_per_round": 6}, "algorithms": algorithms}
    write((0, 1.0))
    experiment.run(build(**changes), directory=folder)
    write((0, 0.5))
    with pytest.raises(ValueError, match=r"expected the contributions that iafl had until round 1, got others"):
        go_on(folder, **changes | {"rounds": 2})
    write((0, 1.0), (1, 0.5))
    outcome = go_on(folder, **changes | {"rounds": 2})
    assert (outcome.metrics["rounds_done"] == 2).all()
