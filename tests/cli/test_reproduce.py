"""``fljax reproduce``: what is missing is run once, our numbers stand beside printed ones, errors are sentences."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest
import xarray as xr

from fljax.cli.commands import reproduce
from fljax.experiments import run as experiment
from fljax.published import beside as table_runs
from fljax.published.beside import TableRun, load_run, rows_of
from fljax.published.tables import cell_of, read, read_cells, tables
from fljax.published.verdicts import claims_of
from fljax.results import folders
from tests.toys import command

CONFIG = """
name = "tiny-table"
rounds = 4
seeds = 2
evaluate_every = 2
[data]
dataset = "digits"
partition = "cluster_labels"
clients = 6
unseen = 6
train_fraction = 0.6
[data.partition_options]
groups = 2
[model]
name = "logistic_regression"
[local]
learning_rate = 0.1
batch_size = 8
steps = 2
[standalone]
steps = 4
[participation]
clients_per_round = 3
[published]
tables = ["incfl_table1_unseen"]
dataset = "FMNIST"
[[algorithms]]
name = "fedavg"
[[algorithms]]
name = "incfl"
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch, quick_compilation):
    """The table's run is a tiny config; returns the folder for results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    monkeypatch.setattr(table_runs, "table_runs", lambda table: (TableRun(str(tmp_path / "tiny.toml")),))
    return tmp_path / "out"


call = functools.partial(command.call, "reproduce")
loaded = functools.cache(load_run)  # many tables have the same runs


@pytest.mark.thorough
def test_a_table_is_run_once_and_compared(tiny, monkeypatch):
    asked = ("incfl_table1_unseen", "--dataset", "FMNIST", "--out", tiny, "--quiet")
    cells = tiny / "cells.csv"
    code, printed, wrong = call(*asked, "--save", cells)
    assert (code, wrong) == (0, "")
    assert "INCFL, Table1: FMNIST, 5 clusters x 2 labels" in printed
    assert "not run (no algorithm MW-Fed)" in printed
    assert "Kendall's tau" in printed
    assert "Claims about incfl_table1_unseen" in printed
    assert "not run (no number of FedProx, MW-Fed)" in printed
    assert "QUICK" not in printed
    metrics = folders.load_results(tiny / "tiny-table")[0]
    saved = {(each.cell.algorithm, each.cell.metric): each for each in read_cells(cells)}
    assert set(saved) == {
        (label, metric) for label in ("FedAvg", "INCFL") for metric in ("IPR", "pref_model_test_acc_pct")
    }
    own = metrics["unseen_incentivised_participation_rate"].sel(algorithm="incfl").isel(evaluated_round=-1)
    assert saved["INCFL", "IPR"].mean == pytest.approx(float(own.mean()), abs=1e-5)
    assert (saved["INCFL", "IPR"].seeds, saved["INCFL", "IPR"].rounds) == (2, 4)
    assert "tiny-table" in saved["INCFL", "IPR"].note

    monkeypatch.setattr(experiment, "resolve_setup", None)  # nothing is trained again
    code, again, _ = call(*asked, "--json")
    assert code == 0
    found = json.loads(again)
    assert found["quick"] is False
    incfl = next(each for each in found["cells"] if (each["algorithm"], each["metric"]) == ("INCFL", "IPR"))
    assert incfl["our_mean"] == pytest.approx(saved["INCFL", "IPR"].mean, abs=1e-5)
    assert incfl["verdict"]["word"] in ("agrees", "differs", "undecided")
    assert {each["metric"] for each in found["columns"]} == {"IPR", "pref_model_test_acc_pct"}
    assert [each["verdict"]["word"] for each in found["claims"]] == ["not run"] * 3

    code, printed, _ = call("incfl_table1_unseen", tiny / "tiny-table", "--dataset", "FMNIST")
    assert code == 0
    assert "difference / error" in printed


@pytest.fixture
def fake(tiny, monkeypatch):
    """As ``tiny``, with an experiment that takes no time; returns the folder and the calls."""
    calls = []

    def run(config, *, directory, resume, **_):
        calls.append((config, directory, resume))
        dims = ("algorithm", "seed", "evaluated_round")
        share = np.full((2, len(config.seeds), 1), 0.55)
        share[0] = 0.08
        names = ("incentivised_participation_rate", "preferred_model_accuracy")
        metrics = xr.Dataset(
            {f"unseen_{name}": (dims, share) for name in names}
            | {"diverged": (dims[:2], np.where(np.arange(2 * len(config.seeds)).reshape(2, -1) == 3, 3, -1))},
            {"algorithm": ["fedavg", "incfl"], "seed": list(config.seeds), "evaluated_round": [config.rounds]},
        )
        return experiment.Outcome(metrics, xr.Dataset(), (("incfl", 0, 3),), {}, ())

    monkeypatch.setattr(experiment, "run", run)
    return tiny, calls


def test_numbers_verdicts_and_orders(fake):
    out, calls = fake
    code, printed, wrong = call("incfl_table1_unseen", "--dataset", "FMNIST", "--out", out, "--quiet")
    assert code == 0
    assert [(directory, resume) for _, directory, resume in calls] == [(out / "tiny-table", True)]
    lines = [" ".join(line.replace("│", " ").split()) for line in printed.splitlines()]
    assert "IPR unseen FedAvg 0.08 ± 0.01 0.08 ± 0.00 2 +0.0 agrees" in lines
    assert "pref_model_test_acc_pct unseen INCFL 98.8 ± 0.1 55.0 ± 0.0† 2 -1265.3 differs" in lines
    assert "†: diverged and frozen there: INCFL 1 of 2 seeds, round 3" in printed
    assert "FMNIST, 5 clusters x 2 labels, unseen IPR 2 0 0 2 +1.00" in lines
    assert "incfl diverged with seed 0 in round 3" in wrong


def test_quick_output_is_marked(fake):
    out, calls = fake
    asked = ("incfl_table1_unseen", "--dataset", "FMNIST", "--out", out, "--quiet", "--quick")
    code, printed, _ = call(*asked)
    assert code == 0
    assert printed.count("QUICK: two rounds of one seed") == 3
    (config, directory, _) = calls[0]
    assert (config.rounds, config.seeds, directory) == (2, (0,), out / "quick" / "tiny-table")
    assert json.loads(call(*asked, "--json")[1])["quick"] is True


def test_an_interrupted_table_goes_on_by_the_same_command(tiny, monkeypatch):
    def run(config, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", run)
    code, _, wrong = call("incfl_table1_unseen", "--dataset", "FMNIST", "--out", "out", "--quiet")
    assert code == 130
    assert wrong.strip().endswith("to go on: fljax reproduce incfl_table1_unseen --dataset FMNIST --out out --quiet")


@pytest.mark.thorough
def test_quick_results_are_marked_and_apart(tiny):
    code, printed, _ = call("incfl_table1_unseen", "--dataset", "FMNIST", "--out", tiny, "--quiet", "--quick")
    assert code == 0
    assert printed.count("QUICK: two rounds of one seed") == 3
    assert folders.load_results(tiny / "quick" / "tiny-table")[0].sizes["seed"] == 1
    assert not (tiny / "tiny-table").exists()


@pytest.mark.thorough
def test_results_of_another_config_are_not_mixed(tiny):
    asked = ("incfl_table1_unseen", "--dataset", "FMNIST", "--out", tiny, "--quiet")
    assert call(*asked)[0] == 0
    code, _, wrong = call(*asked, "--seeds", 1)
    assert code == 2
    assert "expected the config of the results in" in wrong


def test_data_that_are_not_here_are_named(tiny, monkeypatch):
    monkeypatch.setattr(reproduce, "missing_data", lambda dataset: f"fljax data prepare {dataset}")
    code, printed, wrong = call("incfl_table1_unseen", "--dataset", "FMNIST", "--out", tiny)
    assert code == 1
    assert "98.8 ± 0.1" in printed
    assert "no data set digits: fljax data prepare digits" in wrong
    assert not tiny.exists()


def test_without_running(tiny):
    code, printed, wrong = call("incfl_table1_unseen", "--dataset", "FMNIST", "--no-run", "--out", tiny)
    assert (code, wrong) == (0, "")
    assert "98.8 ± 0.1" in printed
    assert "ours" not in printed
    assert not tiny.exists()
    code, printed, _ = call("incfl_table1_unseen", "--dataset", "FMNIST", "--no-run", "--out", tiny, "--json")
    assert {each["verdict"]["word"] for each in json.loads(printed)["cells"]} == {"not run"}


@pytest.mark.parametrize("table", ["iafl_table1_IPR_accu", "iafl_table2_pearson_rho", "maxfl_table2_byzantine"])
def test_all_claims_about_a_table_are_shown(tmp_path, table):
    code, printed, _ = call(table, "--no-run", "--json", "--out", tmp_path)
    assert code == 0
    assert [each["name"] for each in json.loads(printed)["claims"]] == [each.name for each in claims_of(table)]


def test_whether_data_are_here():
    assert (reproduce.missing_data("digits"), reproduce.missing_data("synthetic")) == ("", "")
    assert reproduce.missing_data("tiny_imagenet") in ("", "fljax data prepare tiny_imagenet")
    assert reproduce.missing_data("mine.csv") == ""


@pytest.mark.in_turn
def test_the_list_says_what_tables_cost():
    code, printed, _ = call("--list", "--json")
    assert code == 0
    found = json.loads(printed)
    assert {each["table"] for each in found} == set(tables())
    (own,) = [each for each in found if (each["table"], each["dataset"]) == ("incfl_table1_unseen", "fashion_mnist")]
    assert (own["settings"], own["local_runs"], own["minutes"]) == (1, 4 * 3 * 200 * 10, 4.0)
    code, printed, _ = call("maxfl_table2_byzantine", "--list")
    assert code == 0
    assert "fashion_mnist" in printed
    assert "incfl" not in printed


def test_files_that_cannot_be_written(tiny):
    tiny.mkdir()
    (tiny / "cells.csv").write_text("mine\n")
    asked = ("incfl_table1_unseen", "--dataset", "FMNIST", "--out", tiny, "--quiet", "--quick", "--no-run")
    code, _, wrong = call(*asked[:-2], "--no-run", "--save", tiny / "cells.csv")
    assert code == 2
    assert "expected the columns paper,table," in wrong
    (tiny / "file").write_text("")
    code, _, wrong = call(*asked[:3], "--out", tiny / "file", "--quiet")
    assert code == 2
    assert "expected a folder to write in" in wrong


@pytest.mark.in_turn
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(tables()))
def test_every_setting_of_a_table_has_a_run(name):
    runs = table_runs.table_runs(name)
    covered = set()
    for run in runs:
        config = loaded(run)
        assert config.published is not None
        assert name in config.published.tables
        assert not run.changes or config.name != loaded(TableRun(run.config)).name
        covered |= {cell_of(row) for row in rows_of(config, name)}
    assert covered == {cell_of(row) for row in read(name)}


@pytest.mark.in_turn
def test_runs_have_folders_of_their_own():
    runs = {run for name in tables() for run in table_runs.table_runs(name)}
    names = [loaded(run).name for run in runs]
    assert len(names) == len(set(names))
    measured = {run.config for run in runs if not math.isnan(run.minutes)}
    assert measured == set(table_runs._read()["minutes"])


@pytest.mark.parametrize(("config", "steps"), [("incfl/table1_fmnist", (10, None)), ("iafl/fmnist_iid", (None, 1))])
def test_quick_runs_are_small(config, steps):
    small = load_run(TableRun(config), quick=True)
    assert (small.rounds, small.evaluate_every, small.seeds) == (2, 2, (0,))
    assert (small.standalone.steps, small.standalone.epochs) == steps
    assert len(load_run(TableRun(config), ["seeds=4"]).seeds) == 4
